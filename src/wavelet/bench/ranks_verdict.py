"""What the measurements over ranks say: a row for each system, the limit, and where Wavelet wins and loses."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from wavelet.bench.ranks import PRECISIONS, Precision, RankResults, RankSystem

__all__ = ["RankRow", "RankVerdict", "judge_ranks", "make_rank_rows", "rank_sentences"]


@dataclass(frozen=True)
class RankRow:
    """One system over all rounds. The numbers are medians, or None if it failed.

    Args:
        ratio: how many times as fast as the best DDP of the same precision that sends as much.
        best: whether it is the DDP that `ratio` refers to.
        of_limit: the limit's time over this one's; 1 is all that can be had.
        failure: why it could not be measured.
    """

    system: RankSystem
    seconds_per_batch: float | None = None
    lowest: float | None = None
    highest: float | None = None
    sent_bytes_per_batch: float | None = None
    validation_loss: float | None = None
    ratio: float | None = None
    best: bool = False
    of_limit: float | None = None
    failure: str | None = None


@dataclass(frozen=True)
class RankVerdict:
    """Wavelet against DDP in one precision, at one update and one full exchange a batch; None where one is missing.

    Args:
        best_ddp: name of the fastest DDP.
        wavelet: name of the fastest of Wavelet's.
        over_ddp: how many times as fast `wavelet` is as `best_ddp`.
        limit_seconds: a batch can take no less: the larger of compute alone and all-reduce alone.
        limited_by: `compute` or `all-reduce`, the larger one.
        of_limit: the limit's time over that of `wavelet`.
        ddp_of_limit: the same for `best_ddp`.
    """

    job: str
    allocator: str
    precision: Precision
    best_ddp: str | None
    wavelet: str | None
    over_ddp: float | None
    limit_seconds: float | None
    limited_by: str | None
    of_limit: float | None
    ddp_of_limit: float | None


def make_rank_rows(results: RankResults) -> list[RankRow]:
    """A row for each system, in order."""
    rows = []
    for system in results.systems:
        failure = results.why_not(system)
        if failure:
            rows.append(RankRow(system, failure=failure))
            continue
        times = [run.seconds_per_batch for run in results.runs(system)]
        baseline = _best(results, "ddp", system.precision)
        rows.append(
            RankRow(
                system,
                seconds_per_batch=median(times),
                lowest=min(times),
                highest=max(times),
                sent_bytes_per_batch=median(run.sent_bytes_per_batch for run in results.runs(system)),
                validation_loss=results.median_loss(system, lambda run: run.validation_loss),
                ratio=_times_as_fast(results, system, baseline) if system.trains else None,
                best=system == baseline,
                of_limit=_of_limit(results, system) if system.trains else None,
            )
        )
    return rows


def judge_ranks(results: RankResults) -> list[RankVerdict]:
    """The verdicts on one job under one allocator, one for each precision."""
    verdicts = []
    for precision in PRECISIONS:
        ddp, waves = _best(results, "ddp", precision), _best(results, "waves", precision)
        compute, exchange = _limits(results, precision)
        known = compute is not None and exchange is not None
        verdicts.append(
            RankVerdict(
                job=results.plan.job,
                allocator=results.allocator,
                precision=precision,
                best_ddp=ddp.name if ddp else None,
                wavelet=waves.name if waves else None,
                over_ddp=_times_as_fast(results, waves, ddp),
                limit_seconds=max(compute, exchange) if known else None,  # type: ignore[type-var]
                limited_by=("compute" if compute >= exchange else "all-reduce") if known else None,  # type: ignore[operator]
                of_limit=_of_limit(results, waves),
                ddp_of_limit=_of_limit(results, ddp),
            )
        )
    return verdicts


def rank_sentences(verdicts: list[RankVerdict]) -> list[str]:
    """The verdicts in words; those that Wavelet loses say so."""
    lines = []
    for verdict in verdicts:
        if verdict.wavelet is None or verdict.best_ddp is None:
            missing = "Wavelet" if verdict.wavelet is None else "DDP"
            lines.append(f"{verdict.precision}: {missing} could not be measured.")
            continue
        assert verdict.over_ddp is not None
        loses = ": it loses" if verdict.over_ddp < 1 else ""
        lines.append(f"{verdict.wavelet}: {verdict.over_ddp:.2f} × the best DDP ({verdict.best_ddp}){loses}.")
        if verdict.of_limit is not None and verdict.ddp_of_limit is not None:
            shares = f"Wavelet has {verdict.of_limit:.0%} of it, DDP {verdict.ddp_of_limit:.0%}"
            lines.append(f"The limit in {verdict.precision} is set by {verdict.limited_by}: {shares}.")
    return lines


def _seconds(results: RankResults, system: RankSystem | None) -> float | None:
    """Median seconds a batch."""
    return results.median(system, lambda run: run.seconds_per_batch)


def _times_as_fast(results: RankResults, system: RankSystem | None, baseline: RankSystem | None) -> float | None:
    ours, others = _seconds(results, system), _seconds(results, baseline)
    return None if ours is None or others is None else others / ours


def _best(results: RankResults, kind: str, precision: Precision) -> RankSystem | None:
    """The fastest of a kind, among those that are compared like for like."""
    return results.fastest(
        lambda system: system.kind == kind and system.precision == precision and system.like_for_like,
        lambda run: run.seconds_per_batch,
    )


def _limits(results: RankResults, precision: Precision) -> tuple[float | None, float | None]:
    """Seconds a batch of compute alone, and of the exchange alone."""
    exchange = _seconds(results, RankSystem("all-reduce", precision))
    return _seconds(results, RankSystem("compute")), exchange


def _of_limit(results: RankResults, system: RankSystem | None) -> float | None:
    """The shortest time that the system's compute and exchanges allow, over the time that it took."""
    seconds = _seconds(results, system)
    if system is None or seconds is None:
        return None
    compute, exchange = _limits(results, system.precision)
    if compute is None or exchange is None:
        return None
    return max(compute, exchange * system.exchanges) / seconds
