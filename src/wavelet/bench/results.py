"""What a bench keeps of one job under one allocator, for systems of any kind, and the turns in which it is taken."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, Protocol, TypeVar

from wavelet.bench.launch import Event, RunFailed

__all__ = ["Failure", "Results", "take_turns"]


class _System(Protocol):
    @property
    def name(self) -> str: ...


class _Plan(Protocol):
    @property
    def job(self) -> str: ...

    @property
    def rounds(self) -> int: ...


class _Measurement(Protocol):
    @property
    def system(self) -> _System: ...


S = TypeVar("S", bound=_System)
P = TypeVar("P", bound=_Plan)
M = TypeVar("M", bound=_Measurement)


@dataclass(frozen=True)
class Failure(Generic[S]):
    """A system that could not be measured, and why."""

    system: S
    reason: str
    details: str


@dataclass
class Results(Generic[P, S, M]):
    """What one job gave under one allocator.

    Args:
        systems: in the order in which they take turns.
        measurements: runs, in the order in which they were made.
    """

    plan: P
    allocator: str
    systems: Sequence[S]
    measurements: list[M] = field(default_factory=list)
    failures: list[Failure[S]] = field(default_factory=list)

    def title(self, number: int, system: S) -> str:
        """What a run in round `number` is called while it is on."""
        return f"{self.plan.job}, {self.allocator}, round {number + 1}/{self.plan.rounds}: {system.name}"

    def runs(self, system: S) -> list[M]:
        """Those of `system`."""
        return [run for run in self.measurements if run.system == system]

    def why_not(self, system: S) -> str | None:
        """Why there are no numbers of `system`, which failed even if only once; None if there are."""
        reasons = [failure.reason for failure in self.failures if failure.system == system]
        return reasons[-1] if reasons else None if self.runs(system) else "not run"

    def median(self, system: S | None, value: Callable[[M], float]) -> float | None:
        """Of a value over the runs of `system`; None if there are no numbers of it."""
        return None if system is None or self.why_not(system) else median(map(value, self.runs(system)))

    def median_loss(self, system: S, loss: Callable[[M], float | None]) -> float | None:
        """The same of a loss that some runs may lack."""
        found = [each for each in map(loss, self.runs(system)) if each is not None]
        return median(found) if found else None

    def fastest(self, wanted: Callable[[S], bool], slowness: Callable[[M], float]) -> S | None:
        """The system with the lowest median, among those wanted that have one."""
        found = {
            system: slow
            for system in self.systems
            if wanted(system) and (slow := self.median(system, slowness)) is not None
        }
        return min(found, key=lambda system: found[system], default=None)


def take_turns(
    results: Results[P, S, M],
    measure: Callable[[S, int, Callable[[Event], None]], M],
    needed: Callable[[S], bool],
    on_run: Callable[[int, S, Event], None],
) -> None:
    """Run all systems of `results` once a round, in their order, and add what they give.

    A system that fails is left out of the later rounds.

    Args:
        measure: runs a system in a round, and has what hears its events.
        needed: whether there is nothing to compare with if a system fails.
        on_run: hears the number of the round, the system, and each run's events, the last being ``finish``.

    Raises:
        RunFailed: a system that is needed failed.
    """
    for number, system in itertools.product(range(results.plan.rounds), results.systems):
        hear = functools.partial(on_run, number, system)
        if not any(failure.system == system for failure in results.failures):
            try:
                results.measurements.append(measure(system, number, hear))
            except RunFailed as failure:
                if needed(system):
                    raise
                results.failures.append(Failure(system, failure.reason, failure.details))
        hear({"event": "finish"})
