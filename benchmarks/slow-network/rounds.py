"""Takes the measurements: at each rate all systems in turn, round after round, on the same batches."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from summary import Point, Run
from systems import Setting
from worker import RankSpec

from wavelet.bench.allocators import environment
from wavelet.bench.hosts import Hosts
from wavelet.bench.launch import Event, RunFailed, run_side_by_side
from wavelet.bench.worker import NUM_SEEDS

__all__ = ["Failure", "Plan", "Results", "take_turns"]


@dataclass(frozen=True)
class Plan:
    """What every system does.

    Args:
        spec: a built-in job or a job file; `job` is its name.
        period: updates of a wave from one averaging to the next.
        warmup: steps before the clock starts.
        steps: timed steps; `validations` of them in equal stretches, each a whole number of periods of all waves.
        seed: of the first round; round r uses ``seed + r``.
        batch_size: samples in one batch of one rank; the job's own if None.
    """

    job: str
    spec: str
    hosts: int
    period: int
    max_norm: float
    warmup: int
    steps: int
    validations: int
    rounds: int
    seed: int
    batch_size: int | None
    allocator: str


@dataclass(frozen=True)
class Failure:
    """A system that could not be measured at a rate, and why; it is left out of the later rounds."""

    rate: str
    system: str
    reason: str
    details: str


@dataclass
class Results:
    """What came of it so far."""

    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


def take_turns(
    plan: Plan,
    rates: Sequence[str],
    systems: Sequence[str],
    *,
    on_event: Callable[[str, Event], None],
    on_round: Callable[[Results], None],
) -> Results:
    """Measure all systems once a round, in their order.

    Args:
        on_event: hears what is on, and its events, the last being ``finish``.
        on_round: called after each round with all results so far.
    """
    results = Results()
    for rate in rates:
        with Hosts(plan.hosts, rate=rate) as hosts:
            for number in range(plan.rounds):
                for system in systems:
                    title = f"{plan.job}, {rate}, round {number + 1}/{plan.rounds}: {system}"
                    if not any((failure.rate, failure.system) == (rate, system) for failure in results.failures):
                        try:
                            results.runs.append(_measure(plan, rate, system, number, hosts, on_event, title))
                        except RunFailed as failure:
                            results.failures.append(Failure(rate, system, failure.reason, failure.details))
                    on_event(title, {"event": "finish"})
                on_round(results)
    return results


def _measure(
    plan: Plan,
    rate: str,
    system: str,
    number: int,
    hosts: Hosts,
    on_event: Callable[[str, Event], None],
    title: str,
) -> Run:
    """The run of `system` in round `number`, in fresh processes, one on each host.

    Raises:
        RunFailed: see `run_side_by_side`.
    """
    seed = (plan.seed + number) % NUM_SEEDS
    with tempfile.TemporaryDirectory() as folder:
        specs = [
            RankSpec(
                job=plan.spec,
                system=system,
                setting=Setting(plan.period, plan.max_norm, rank, plan.hosts),
                seed=seed,
                batch_size=plan.batch_size,
                warmup=plan.warmup,
                every=plan.steps // plan.validations,
                validations=plan.validations,
                folder=folder,
                core=host.cores[0],
                link=host.interface,
            )
            for rank, host in enumerate(hosts)
        ]
        ranks = run_side_by_side(
            specs, _environment(plan.allocator), lambda event: on_event(title, event), module="worker", hosts=hosts
        )
    return _combine(plan, rate, system, number, seed, ranks)


def _environment(allocator: str) -> dict[str, str]:
    """In which a process finds `worker`."""
    folders = [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    return {**environment(allocator), "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def _combine(plan: Plan, rate: str, system: str, number: int, seed: int, ranks: Sequence[Event]) -> Run:
    """One run from the results of its ranks; a stretch lasts from the first rank's start to the last one's end."""
    stretches = list(zip(*(rank["stretches"] for rank in ranks), strict=True))
    seconds = [max(part["end"] for part in parts) - min(part["start"] for part in parts) for parts in stretches]
    sent = sum(fmean(part["sent_bytes"] for part in parts) for parts in stretches)
    samples_per_step = sum(rank["samples_per_step"] for rank in ranks)
    every = plan.steps // plan.validations
    points = [
        Point(elapsed, (plan.warmup + index * every) * samples_per_step, loss)
        for index, (elapsed, loss) in enumerate(
            zip(itertools.accumulate(seconds, initial=0.0), ranks[0]["losses"], strict=True)
        )
    ]
    return Run(
        rate=rate,
        system=system,
        round=number,
        seed=seed,
        steps=plan.steps,
        seconds=points[-1].seconds,
        seconds_per_step=points[-1].seconds / plan.steps,
        sent_bytes_per_step=sent / plan.steps,
        points=tuple(points),
    )
