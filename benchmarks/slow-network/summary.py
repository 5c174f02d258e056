"""What the runs say: medians and spread of the time a step takes, and losses at equal samples and at equal time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Point", "Row", "Run", "loss_at", "make_rows"]


@dataclass(frozen=True)
class Point:
    """One validation.

    Args:
        seconds: of training since the end of the warm-up.
        samples: of all ranks since the beginning.
    """

    seconds: float
    samples: int
    loss: float


@dataclass(frozen=True)
class Run:
    """One run of one system: the clock is that of all ranks together, and stands still while a loss is measured.

    Args:
        steps: timed steps, after the warm-up.
        sent_bytes_per_step: of one rank, counted on its link, the mean over ranks.
        points: the first after the warm-up, at 0 seconds; the last at the end.
    """

    rate: str
    system: str
    round: int
    seed: int
    steps: int
    seconds: float
    seconds_per_step: float
    sent_bytes_per_step: float
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Row:
    """One system at one rate: medians over the rounds.

    Args:
        over_ddp: how many times as fast as DDP; None if DDP was not measured.
        loss: at the end, when all systems have seen equally many samples.
        equal_seconds: when the fastest system of a round was at its end.
        loss_then: the loss at that time, on a straight line between two validations.
    """

    rate: str
    system: str
    seconds_per_step: float
    lowest: float
    highest: float
    over_ddp: float | None
    sent_bytes_per_step: float
    loss: float
    equal_seconds: float
    loss_then: float


def loss_at(points: Sequence[Point], seconds: float) -> float:
    """The loss at some time, on a straight line between the validations before and after it.

    Raises:
        ValueError: nothing is known of that time.
    """
    for before, after in itertools.pairwise(points):
        if before.seconds <= seconds <= after.seconds:
            share = (seconds - before.seconds) / (after.seconds - before.seconds)
            return before.loss + share * (after.loss - before.loss)
    raise ValueError(f"{seconds:g} s is not between {points[0].seconds:g} s and {points[-1].seconds:g} s")


def make_rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each rate and system, in the order of their first runs.

    Equal time is that of one round: systems that were left out of it do not count.
    """
    ends: dict[tuple[str, int], float] = {}
    for run in runs:
        key = (run.rate, run.round)
        ends[key] = min(ends.get(key, run.points[-1].seconds), run.points[-1].seconds)
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.rate, run.system), []).append(run)
    rows = []
    for (rate, system), group in groups.items():
        times = [run.seconds_per_step for run in group]
        ddp = [run.seconds_per_step for run in groups.get((rate, "ddp"), [])]
        rows.append(
            Row(
                rate=rate,
                system=system,
                seconds_per_step=median(times),
                lowest=min(times),
                highest=max(times),
                over_ddp=median(ddp) / median(times) if ddp else None,
                sent_bytes_per_step=median(run.sent_bytes_per_step for run in group),
                loss=median(run.points[-1].loss for run in group),
                equal_seconds=median(ends[rate, run.round] for run in group),
                loss_then=median(loss_at(run.points, ends[rate, run.round]) for run in group),
            )
        )
    return rows
