"""`wavelet bench --ranks`: compares Wavelet with DistributedDataParallel over several processes, and with the limits.

The fields of its JSON: those of `wavelet bench`, with what `wavelet.bench.ranks_report` has in place of its results.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wavelet.bench.hosts import Host, Hosts, bits_per_second, why_not
from wavelet.bench.launch import Event, RunFailed
from wavelet.bench.progress import BenchProgress
from wavelet.bench.ranks import RankPlan, RankResults, RankSystem, choose_rank_systems
from wavelet.bench.ranks_report import about_ranks, rank_document, rank_table
from wavelet.bench.ranks_rounds import EVEN, NUM_CALIBRATIONS, calibrate_ranks, take_rank_turns
from wavelet.bench.ranks_verdict import judge_ranks, make_rank_rows, rank_sentences
from wavelet.bench.systems import round_up
from wavelet.cli.options import Refusal, load_job, refusing
from wavelet.report.progress import Bar
from wavelet.report.tables import show

__all__ = ["RanksSetting", "bench_ranks", "check_ranks"]

_FEWEST_BATCHES = 10
_MOST_SYSTEMS = len(choose_rank_systems({"fp32": 1, "bf16": 1}))


@dataclass(frozen=True)
class RanksSetting:
    """What all jobs have in common.

    Args:
        seconds: of a timed run, about; None: `steps` are given.
        steps: timed batches of each rank; None: `seconds` are given.
    """

    ranks: int
    rate: str | None
    allocators: Sequence[str]
    seconds: float | None
    steps: int | None
    rounds: int
    seed: int
    batch_size: int | None


def check_ranks(ranks: int | None, rate: str | None, others: Sequence[str]) -> None:
    """Whether these go together.

    Args:
        others: options that were given and that say nothing about ranks.

    Raises:
        Refusal: they do not, or there can be no links of a rate here.
    """
    if ranks is None:
        if rate is not None:
            raise Refusal("--rate is of the links between ranks: give --ranks too")
        return
    if others:
        raise Refusal(f"{', '.join(others)} cannot be combined with --ranks: leave it out")
    if rate is None:
        return
    with refusing(ValueError):
        bits_per_second(rate)
    reason = why_not()
    if reason is not None:
        raise Refusal(f"--rate needs a network of its own for each rank, which cannot be had here: {reason}")


def bench_ranks(jobs: Sequence[str], setting: RanksSetting, write: Callable[[dict[str, Any]], None]) -> None:
    """Measure and show all jobs.

    Args:
        write: called after each table with the document's fields so far.

    Raises:
        RunFailed: a system could not be measured; all others have been.
    """
    plans = [_plan(job, setting) for job in dict.fromkeys(jobs)]
    finished: list[RankResults] = []
    turns = NUM_CALIBRATIONS + len(setting.allocators) * setting.rounds * _MOST_SYSTEMS
    with _hosts(setting) as hosts, Bar("starting", len(plans) * turns) as bar:
        for results in _compare(plans, setting, hosts, BenchProgress(bar, announce=False)):
            finished.append(results)
            write(rank_document(finished))  # before anything is printed, which can fail
            with bar.aside():
                _show(results)
    for failure in (failure for results in finished for failure in results.failures):
        raise RunFailed(f"{failure.system.name}: {failure.reason}", failure.details)


def _plan(spec: str, setting: RanksSetting) -> RankPlan:
    """The plan for a job that can be loaded, before it is known how long its batches take."""
    job = load_job(spec, seed=setting.seed, batch_size=setting.batch_size)
    return RankPlan(
        job=job.name,
        spec=spec,
        ranks=setting.ranks,
        rate=setting.rate,
        batches=round_up(setting.steps or _FEWEST_BATCHES, EVEN),
        rounds=setting.rounds,
        seed=setting.seed,
        batch_size=setting.batch_size,
    )


@contextlib.contextmanager
def _hosts(setting: RanksSetting) -> Iterator[Sequence[Host] | None]:
    """A host for each rank where links have a rate."""
    if setting.rate is None:
        yield None
        return
    with Hosts(setting.ranks, rate=setting.rate) as hosts:
        yield hosts


def _compare(
    plans: Sequence[RankPlan], setting: RanksSetting, hosts: Sequence[Host] | None, progress: BenchProgress
) -> Iterator[RankResults]:
    """The results of each job under each allocator, as they come."""
    for draft in plans:
        plan, tuned = calibrate_ranks(
            draft,
            hosts,
            allocator=setting.allocators[0],
            seconds=setting.seconds,
            on_event=lambda event, job=draft.job: progress.move(event, f"{job}: which buckets suit DDP?", 0.0),  # type: ignore[misc]
        )
        for allocator in setting.allocators:
            results = RankResults(plan, allocator, choose_rank_systems(tuned))
            take_rank_turns(results, hosts, functools.partial(_move, progress, results))
            yield results


def _move(progress: BenchProgress, results: RankResults, number: int, system: RankSystem, event: Event) -> None:
    """Move the bar by an event of a run in round `number`."""
    progress.move(event, results.title(number, system), event.get("done", 0) / results.plan.batches)


def _show(results: RankResults) -> None:
    """The table of one job under one allocator, and its verdict."""
    plan = results.plan
    rounds = f"{plan.rounds} round" + "s" * (plan.rounds > 1)
    where = f"{plan.ranks} ranks, {plan.rate or 'loopback'}"
    title = f"{plan.job} under {results.allocator}, {where}: {plan.batches} batches a rank, {rounds}"
    show(rank_table(title, make_rank_rows(results)))
    for failure in results.failures:
        print(f"{failure.system.name} fails: {failure.reason}")
    print(*about_ranks(plan), *rank_sentences(judge_ranks(results)), sep="\n", end="\n\n")
