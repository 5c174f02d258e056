"""Takes the measurements over ranks: all systems in turn, round after round, on the same batches."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from wavelet.bench.allocators import environment
from wavelet.bench.hosts import Host, cores_of
from wavelet.bench.launch import Event, RunFailed, run_side_by_side
from wavelet.bench.ranks import (
    BUCKETS,
    BY_DEFAULT,
    PRECISIONS,
    Precision,
    RankMeasurement,
    RankPlan,
    RankResults,
    RankSystem,
)
from wavelet.bench.ranks_worker import RankSpec
from wavelet.bench.results import take_turns
from wavelet.bench.systems import round_up
from wavelet.bench.worker import NUM_SEEDS

__all__ = ["EVEN", "NUM_CALIBRATIONS", "calibrate_ranks", "measure_ranks", "take_rank_turns"]

EVEN = 2
"""Batches of a rank are a multiple of it: two waves, or two batches for one update."""

NUM_CALIBRATIONS = len(PRECISIONS) * len(BUCKETS)
"""Runs of one calibration."""

_SHORT = 10

Hear = Callable[[Event], None]


def calibrate_ranks(
    plan: RankPlan,
    hosts: Sequence[Host] | None,
    *,
    allocator: str,
    seconds: float | None,
    on_event: Hear = lambda event: None,
) -> tuple[RankPlan, dict[Precision, int | None]]:
    """A short run of DDP with each bucket size, of ten batches at most.

    Args:
        seconds: about how long a timed run of the fastest is to be; None: the plan keeps its batches.

    Returns:
        `plan` with as many batches as are wanted but no fewer than now, and for each precision the fastest size (None
        where DDP fails, which the turns will tell).
    """
    tuned: dict[Precision, int | None] = {}
    fastest = math.inf
    short = replace(plan, batches=min(plan.batches, _SHORT))
    for precision in PRECISIONS:
        found: dict[int, float] = {}
        for size in BUCKETS:
            system = replace(BY_DEFAULT[precision], bucket_mb=size)
            try:
                run = measure_ranks(system, short, 0, hosts, allocator=allocator, on_event=on_event, evaluate=False)
                found[size] = run.seconds_per_batch
            except RunFailed:
                pass
            on_event({"event": "finish"})
        tuned[precision] = min(found, key=lambda size: found[size], default=None)
        fastest = min([fastest, *found.values()])
    if seconds is None or fastest == math.inf:
        return plan, tuned
    return replace(plan, batches=round_up(max(math.ceil(seconds / fastest), plan.batches), EVEN)), tuned


def take_rank_turns(
    results: RankResults,
    hosts: Sequence[Host] | None,
    on_run: Callable[[int, RankSystem, Event], None] = lambda number, system, event: None,
) -> None:
    """See `wavelet.bench.results.take_turns`.

    Raises:
        RunFailed: the plain loop itself failed; there is nothing to compare with.
    """

    def take(system: RankSystem, number: int, hear: Hear) -> RankMeasurement:
        return measure_ranks(system, results.plan, number, hosts, allocator=results.allocator, on_event=hear)

    take_turns(results, take, lambda system: system.kind == "compute", on_run)


def measure_ranks(
    system: RankSystem,
    plan: RankPlan,
    number: int,
    hosts: Sequence[Host] | None,
    *,
    allocator: str,
    on_event: Hear,
    evaluate: bool = True,
) -> RankMeasurement:
    """The run of `system` in round `number`, in fresh processes, one for each rank.

    Raises:
        RunFailed: see `run_side_by_side`.
    """
    seed = (plan.seed + number) % NUM_SEEDS
    with tempfile.TemporaryDirectory() as folder:
        specs = [
            RankSpec(
                job=plan.spec,
                system=system,
                seed=seed,
                batch_size=plan.batch_size,
                warmup=plan.warmup,
                steps=plan.batches,
                rank=rank,
                ranks=plan.ranks,
                rendezvous=f"{folder}/rendezvous",
                cores=hosts[rank].cores if hosts else cores_of(rank, plan.ranks),
                link=hosts[rank].interface if hosts else None,
                evaluate=evaluate,
            )
            for rank in range(plan.ranks)
        ]
        module = "wavelet.bench.ranks_worker"
        runs = run_side_by_side(specs, environment(allocator), on_event, module=module, hosts=hosts)
    return _combine(system, number, seed, runs)


def _combine(system: RankSystem, number: int, seed: int, runs: Sequence[Event]) -> RankMeasurement:
    """The measurement of a system from the results of its ranks."""
    seconds = max(run["end"] for run in runs) - min(run["start"] for run in runs)
    batches = runs[0]["batches"]
    return RankMeasurement(
        system=system,
        round=number,
        seed=seed,
        batches=batches,
        samples=sum(run["samples"] for run in runs),
        seconds=seconds,
        seconds_per_batch=seconds / batches,
        sent_bytes_per_batch=fmean(run["sent_bytes"] / run["batches"] for run in runs),
        training_loss=runs[0]["training_loss"],
        validation_loss=runs[0]["validation_loss"],
        validation_accuracy=runs[0]["validation_accuracy"],
        peak_resident_bytes=sum(run["peak_resident_bytes"] for run in runs),
    )
