"""Takes the measurements: all systems in turn, round after round, on the same number of batches."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wavelet.bench import results
from wavelet.bench.allocators import environment
from wavelet.bench.launch import Event, run_side_by_side
from wavelet.bench.systems import System, round_up, warmup_batches
from wavelet.bench.worker import NUM_SEEDS, Spec

__all__ = ["Measurement", "Plan", "Results", "calibrate", "measure", "take_turns"]


@dataclass(frozen=True)
class Plan:
    """What every system does with a job.

    Args:
        job: the job's name in tables.
        spec: a built-in job or a job file.
        waves: K; warm-up and timed batches are multiples of it.
        batches: timed batches of a run, all processes together.
        seed: of the first round; round r uses ``seed + r``.
        batch_size: samples in one batch of one process; the job's own if None.
    """

    job: str
    spec: str
    waves: int
    batches: int
    rounds: int
    seed: int = 0
    batch_size: int | None = None


@dataclass(frozen=True)
class Measurement:
    """One run of one system: rates are over wall clock, memory is summed over processes."""

    system: System
    round: int
    seed: int
    samples: int
    seconds: float
    samples_per_second: float
    training_loss: float
    validation_loss: float | None
    validation_accuracy: float | None
    peak_resident_bytes: int


Results = results.Results[Plan, System, Measurement]


def calibrate(
    plan: Plan,
    systems: Sequence[System],
    *,
    seconds: float,
    allocator: str,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Plan:
    """`plan` with as many batches, but no fewer than now, as the fastest of `systems` trains in about `seconds`.

    Raises:
        RunFailed: one of them cannot train the job.
    """
    runs = [measure(system, plan, 0, allocator=allocator, on_event=on_event, evaluate=False) for system in systems]
    batches = math.ceil(plan.batches * seconds / min(run.seconds for run in runs))
    return replace(plan, batches=round_up(max(batches, plan.batches), plan.waves))


def take_turns(
    found: Results, on_run: Callable[[int, System, Event], None] = lambda number, system, event: None
) -> None:
    """See `wavelet.bench.results.take_turns`.

    Raises:
        RunFailed: the plain loop itself failed; there is nothing to compare with.
    """

    def take(system: System, number: int, hear: Callable[[Event], None]) -> Measurement:
        return measure(system, found.plan, number, allocator=found.allocator, on_event=hear)

    results.take_turns(found, take, lambda system: system.kind == "plain" and not system.compile, on_run)


def measure(
    system: System,
    plan: Plan,
    number: int,
    *,
    allocator: str,
    on_event: Callable[[Event], None],
    evaluate: bool = True,
) -> Measurement:
    """The run of `system` in round `number`: fresh processes, each with its share of the plan's batches.

    Raises:
        RunFailed: see `run_side_by_side`.
    """
    seed = (plan.seed + number) % NUM_SEEDS
    with tempfile.TemporaryDirectory() as folder:
        specs = [
            Spec(
                job=plan.spec,
                system=system,
                # The processes of DDP build one model; those of the ceiling are to share nothing.
                seed=(seed + rank) % NUM_SEEDS if system.kind == "ceiling" else seed,
                batch_size=plan.batch_size,
                warmup=warmup_batches(plan.waves) // system.processes,
                steps=plan.batches // system.processes,
                rank=rank,
                rendezvous=f"{folder}/rendezvous",
                evaluate=evaluate and system.kind != "ceiling",
            )
            for rank in range(system.processes)
        ]
        return _combine(system, number, seed, run_side_by_side(specs, environment(allocator), on_event))


def _combine(system: System, number: int, seed: int, runs: Sequence[dict[str, Any]]) -> Measurement:
    """The measurement of a system from the results of its processes."""
    seconds = max(run["end"] for run in runs) - min(run["start"] for run in runs)
    samples = sum(run["samples"] for run in runs)
    return Measurement(
        system=system,
        round=number,
        seed=seed,
        samples=samples,
        seconds=seconds,
        samples_per_second=samples / seconds,
        training_loss=runs[0]["training_loss"],
        validation_loss=runs[0]["validation_loss"],
        validation_accuracy=runs[0]["validation_accuracy"],
        peak_resident_bytes=sum(run["peak_resident_bytes"] for run in runs),
    )
