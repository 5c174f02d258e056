"""What the measurements say: a row for each system, and where Wavelet wins and loses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from wavelet.bench.rounds import Results
from wavelet.bench.systems import System

__all__ = ["NOT_IN_MEAN", "Row", "Verdict", "geometric_mean", "judge", "make_rows", "sentences"]

NOT_IN_MEAN = "mlp-small-ops"
"""The job that is published but kept out of the geometric mean: the interpreter bounds it."""


@dataclass(frozen=True)
class Row:
    """One system over all rounds. The numbers are medians, or None if it failed.

    Args:
        ratio: samples/s over the best plain loop; for compiled systems over the best compiled plain loop.
        best: whether it is the loop that `ratio` refers to.
        failure: why it could not be measured.
    """

    system: System
    samples_per_second: float | None = None
    lowest: float | None = None
    highest: float | None = None
    ratio: float | None = None
    best: bool = False
    validation_loss: float | None = None
    peak_resident_bytes: int | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Verdict:
    """Wavelet's fastest rule against the others, as ratios of median samples/s; None where one of the two is missing.

    Args:
        best_plain: name of the fastest eager plain loop.
        best_rule: the fastest of Wavelet's rules, eager blocks.
        over_plain: `best_rule` over `best_plain`.
        over_ddp: `best_rule` over DDP.
        of_ceiling: `best_rule` over the plain loops that share nothing.
        one_wave: Wavelet with one wave over the plain loop with as many threads.
        compiling_helps: the fastest compiled plain loop beats `best_plain`; None if it was not asked for.
        over_compiled: Wavelet with compiled replicas over the fastest compiled plain loop.
        best_over_best: the fastest of Wavelet's systems over the fastest plain loop, each compiled or not.
    """

    job: str
    allocator: str
    best_plain: str
    best_rule: str | None
    over_plain: float | None
    over_ddp: float | None
    of_ceiling: float | None
    one_wave: float | None
    compiling_helps: bool | None
    over_compiled: float | None
    best_over_best: float | None


def make_rows(results: Results) -> list[Row]:
    """A row for each system, in order."""
    baselines = {compiled: _fastest_plain(results, compiled) for compiled in (False, True)}
    rows = []
    for system in results.systems:
        failure = results.why_not(system)
        if failure:
            rows.append(Row(system, failure=failure))
            continue
        rates = [run.samples_per_second for run in results.runs(system)]
        baseline = baselines[system.compile]
        rows.append(
            Row(
                system,
                samples_per_second=median(rates),
                lowest=min(rates),
                highest=max(rates),
                ratio=_over(results, system, baseline),
                best=system == baseline,
                validation_loss=results.median_loss(system, lambda run: run.validation_loss),
                peak_resident_bytes=round(median(run.peak_resident_bytes for run in results.runs(system))),
            )
        )
    return rows


def judge(results: Results) -> Verdict:
    """The verdict on one job under one allocator."""
    plain = _fastest_plain(results, False)
    compiled = _fastest_plain(results, True)
    assert plain is not None  # take_turns raises otherwise
    rule = _fastest(results, lambda system: system.kind == "waves" and system.waves > 1 and not system.compile)
    blocks = _fastest(results, lambda system: system.kind == "waves" and system.compile)
    ours = _fastest(results, lambda system: system.kind == "waves" and system.waves > 1)
    single = _fastest(results, lambda system: system.kind == "waves" and system.waves == 1)
    as_many = single and _fastest(results, lambda system: system == System("plain", single.threads))
    asked = any(system.kind == "plain" and system.compile for system in results.systems)
    compiling = _over(results, compiled, plain)
    return Verdict(
        job=results.plan.job,
        allocator=results.allocator,
        best_plain=plain.name,
        best_rule=rule.update if rule else None,
        over_plain=_over(results, rule, plain),
        over_ddp=_over(results, rule, _fastest(results, lambda system: system.kind == "ddp")),
        of_ceiling=_over(results, rule, _fastest(results, lambda system: system.kind == "ceiling")),
        one_wave=_over(results, single, as_many),
        compiling_helps=(compiling is not None and compiling > 1) if asked else None,
        over_compiled=_over(results, blocks, compiled),
        best_over_best=_over(results, ours, _fastest(results, lambda system: system.kind == "plain")),
    )


def sentences(verdict: Verdict) -> list[str]:
    """The verdict in words, a line for each comparison; those that Wavelet loses say so."""
    if verdict.best_rule is None:
        return ["Wavelet could not be measured."]
    ours = f"Wavelet {verdict.best_rule}"
    lines = [
        _compare(ours, verdict.over_plain, f"the best plain loop ({verdict.best_plain})"),
        _compare(ours, verdict.over_ddp, "DDP"),
    ]
    if verdict.of_ceiling is not None:
        lines.append(f"{ours}: {verdict.of_ceiling:.0%} of the ceiling.")
    if verdict.compiling_helps is not None:
        lines.append(f"Compiling {'helps' if verdict.compiling_helps else 'does not help'} the plain loop.")
        lines.append(_compare("Wavelet, compiled", verdict.over_compiled, "the best compiled loop"))
        lines.append(_compare("Wavelet's fastest", verdict.best_over_best, "the fastest plain loop, compiled or not"))
    return [line for line in lines if line]


def _compare(ours: str, ratio: float | None, other: str) -> str:
    """One line; empty if there is nothing to compare."""
    if ratio is None:
        return ""
    return f"{ours}: {ratio:.2f} × {other}{': it loses' if ratio < 1 else ''}."


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """The geometric mean; None of nothing."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def _over(results: Results, system: System | None, baseline: System | None) -> float | None:
    """Median samples/s of one system over another's."""
    above, below = (results.median(each, lambda run: run.samples_per_second) for each in (system, baseline))
    return None if above is None or below is None else above / below


def _fastest(results: Results, wanted: Callable[[System], bool]) -> System | None:
    return results.fastest(wanted, lambda run: -run.samples_per_second)


def _fastest_plain(results: Results, compiled: bool) -> System | None:
    return _fastest(results, lambda system: system.kind == "plain" and system.compile is compiled)
