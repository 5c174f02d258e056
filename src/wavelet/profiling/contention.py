"""How much slower work is beside other waves' work: from what happened in a few batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from wavelet.profiling.profile import Contention
from wavelet.profiling.recorders import BlockSeconds
from wavelet.profiling.watcher import Event

__all__ = ["contention_in", "seconds_between"]

Interval = tuple[float, float]
LIMITS = (0.8, 8.0)


def contention_in(events: Sequence[Event], seconds: BlockSeconds) -> Contention:
    """Seconds of work beside other work over its seconds alone.

    A batch's work takes its seconds alone; what of it fell beside no other work went at that speed, and the rest is
    what the seconds beside other work were spent on.

    Args:
        events: of whole batches.
        seconds: of one batch alone.
    """
    forwards, backwards = _work(events)
    everything = [*forwards, *backwards]
    return Contention(
        _slowdown(forwards, everything, sum(seconds.forward)),
        _slowdown(backwards, everything, sum(seconds.backward) + seconds.update),
    )


def seconds_between(events: Sequence[Event], num_waves: int) -> float:
    """The caller's own time between two forwards, the wave being free: the median."""
    rose: dict[int, float] = {}
    turned: dict[int, float] = {}
    started: dict[int, float] = {}
    for event in sorted(events):
        if event.what == "rose":
            rose[event.batch] = event.seconds
        elif event.what == "turned":
            turned[event.batch] = event.seconds
        elif event.what in ("starts", "waits"):
            started.setdefault(event.batch, event.seconds)
    gaps = sorted(
        start - max(rose[batch - 1], turned.get(batch - num_waves, 0.0))
        for batch, start in started.items()
        if batch - 1 in rose
    )
    return max(0.0, gaps[len(gaps) // 2]) if gaps else 0.0


def _work(events: Iterable[Event]) -> tuple[list[list[Interval]], list[list[Interval]]]:
    """Of each batch, the intervals in which its forward ran, and its backward and turn."""
    batches: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events):
        batches[event.batch].append(event)
    forwards: list[list[Interval]] = []
    backwards: list[list[Interval]] = []
    for story in batches.values():
        moments = {event.what: event.seconds for event in story}
        if not {"starts", "rose", "fell", "updates", "turned"} <= moments.keys():
            continue
        forwards.append([(one.seconds, other.seconds) for one, other in pairwise(story) if one.what == "starts"])
        backwards.append([(moments["rose"], moments["fell"]), (moments["updates"], moments["turned"])])
    return forwards, backwards


def _slowdown(mine: list[list[Interval]], everything: list[list[Interval]], alone: float) -> float:
    beside = free = 0.0
    for batch in mine:
        others = [interval for other in everything if other is not batch for interval in other]
        for start, end in batch:
            covered = _covered(start, end, others)
            beside += covered
            free += end - start - covered
    worked = alone * len(mine) - free  # what was done beside others, in seconds alone
    if worked <= 0.1 * alone * len(mine):
        return 1.0  # too little of it to say anything
    return min(max(beside / worked, LIMITS[0]), LIMITS[1])


def _covered(start: float, end: float, others: Iterable[Interval]) -> float:
    """How much of an interval lies in any of the others."""
    covered, reached = 0.0, start
    for first, last in sorted(others):
        until = min(last, end)
        if until > max(first, reached):
            covered += until - max(first, reached)
            reached = until
    return covered
