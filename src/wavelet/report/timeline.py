"""The timeline of a run: what each wave was doing when, as measured or as a plan predicts it, and what it held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from wavelet.planning.plan import Plan
    from wavelet.profiling.profile import Profile
    from wavelet.profiling.watcher import Event

__all__ = ["Curve", "Kind", "Span", "level_at", "measured_spans", "memory_curve", "peak_of", "predicted_spans"]

Kind = Literal["forward", "backward", "turn", "wait"]

Curve = list[tuple[float, int]]
"""Steps: a moment, and the bytes from then on."""

_ORDER = ("waits", "starts", "rose", "left", "fell", "updates", "turned")


class Span(NamedTuple):
    """What a wave does for a while.

    Args:
        batch: its number.
        wave: the batch's wave.
        kind: ``wait`` is for a gate or for the turn.
        block: that runs or is waited for; of a stretch of backward, the first; 0 for the turn and the wait for it.
        start: in seconds from the beginning of the timeline.
        end: likewise.
    """

    batch: int
    wave: int
    kind: Kind
    block: int
    start: float
    end: float


def measured_spans(events: Iterable[Event], *, num_waves: int, num_blocks: int) -> list[Span]:
    """The spans between events, by the time at which they start.

    Args:
        events: in any order.
        num_waves: K; batch n belongs to wave n mod K.
        num_blocks: L.
    """
    batches: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        batches[event.batch].append(event)
    if not batches:
        return []
    origin = min(event.seconds for happened in batches.values() for event in happened)
    return _by_start(
        Span(batch, batch % num_waves, kind, block, before.seconds - origin, after.seconds - origin)
        for batch, happened in batches.items()
        for before, after in pairwise(sorted(happened, key=_when))
        for kind, block in [_after(before, num_blocks)]
    )


def _when(event: Event) -> tuple[float, int, int]:
    return event.seconds, event.where if event.what in {"waits", "starts"} else 0, _ORDER.index(event.what)


def _after(event: Event, num_blocks: int) -> tuple[Kind, int]:
    """What a batch does from an event on."""
    if event.what == "waits":
        return "wait", event.where
    if event.what == "starts":
        return "forward", event.where
    if event.what == "updates":
        return "turn", 0
    return ("wait", 0) if event.where >= num_blocks else ("backward", num_blocks - event.where)


def predicted_spans(plan: Plan, *, num_batches: int = 12) -> list[Span]:
    """The spans that a plan predicts, by the time at which they start."""
    from wavelet.planning.plan import chain_of, contention_under
    from wavelet.planning.simulate import simulate

    work = simulate(
        chain_of(plan.profile, plan.waves),
        plan.interlock,
        contention_under(plan.profile, plan.interlock),
        num_batches=num_batches,
        round_size=plan.waves * plan.accumulate if plan.update == "synchronous" else 0,
    )
    spans = [Span(done.batch, done.batch % plan.waves, done.kind, done.block, done.start, done.end) for done in work]
    return _by_start([*spans, *_waits(spans, plan.waves)])


def _waits(spans: Sequence[Span], num_waves: int) -> Iterator[Span]:
    """The gaps in each batch's work, and before it, from when its wave and the caller's thread were both free."""
    batches: defaultdict[int, list[Span]] = defaultdict(list)
    for span in _by_start(spans):
        batches[span.batch].append(span)
    free = [0.0] * num_waves
    rose = 0.0
    for batch, own in sorted(batches.items()):
        end = max(rose, free[batch % num_waves])
        for span in own:
            if span.start > end:
                yield Span(batch, span.wave, "wait", span.block, end, span.start)
            end = span.end
        rose = max((span.end for span in own if span.kind == "forward"), default=rose)
        free[batch % num_waves] = end


def _by_start(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.start, span.end, span.batch))


def memory_curve(spans: Iterable[Span], profile: Profile, num_waves: int) -> list[Curve]:
    """For each wave, what its batch holds: the upper values that the promise counts with, not measured bytes.

    A batch that waits in a gate holds what the block before it may hold.
    """
    curves: list[Curve] = [[(0.0, 0)] for _ in range(num_waves)]
    for span in _by_start(spans):
        curve = curves[span.wave]
        before, level = curve[-1]
        if span.kind != "wait" or span.block == 0:
            level = _held(span, profile)
        if before == span.start:
            curve[-1] = (before, level)
        elif level != curve[-1][1]:
            curve.append((span.start, level))
        if span.kind == "turn":
            curve.append((span.end, 0))
    return curves


def _held(span: Span, profile: Profile) -> int:
    if span.kind == "forward":
        return profile.bytes.rising[span.block - 1]
    return profile.bytes.falling[profile.num_blocks - span.block] if span.kind == "backward" else profile.bytes.turn


def level_at(curve: Curve, times: Iterable[float]) -> list[int]:
    """The level of a curve at each of some ascending times; 0 before its first step."""
    levels, level, step = [], 0, 0
    for time in times:
        while step < len(curve) and curve[step][0] <= time:
            level = curve[step][1]
            step += 1
        levels.append(level)
    return levels


def peak_of(curves: Sequence[Curve]) -> int:
    """The most that all waves hold together."""
    times = sorted({moment for curve in curves for moment, _ in curve})
    return max(map(sum, zip(*(level_at(curve, times) for curve in curves), strict=True)), default=0)
