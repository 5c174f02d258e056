"""A timeline as a trace for Perfetto (https://ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from wavelet.report.timeline import Span, level_at, memory_curve
from wavelet.waves.wave import wave_name

if TYPE_CHECKING:
    from wavelet.profiling.profile import Profile

__all__ = ["trace_events"]

PROCESS = 1


def trace_events(spans: Sequence[Span], profile: Profile, num_waves: int) -> dict[str, Any]:
    """The JSON object of a trace: a track for each wave, and a counter of what each holds, in bytes.

    Args:
        spans: of `measured_spans` or `predicted_spans`.
        profile: says what a block holds.
        num_waves: K.
    """
    events = [*_work(spans), *_counters(spans, profile, num_waves)]
    events.sort(key=lambda event: event["ts"])
    return {"traceEvents": [*_names(num_waves), *events], "displayTimeUnit": "ms"}


def _names(num_waves: int) -> Iterable[dict[str, Any]]:
    yield {"ph": "M", "pid": PROCESS, "tid": 0, "name": "process_name", "args": {"name": "wavelet"}}
    for wave in range(num_waves):
        track = {"ph": "M", "pid": PROCESS, "tid": wave + 1}
        yield track | {"name": "thread_name", "args": {"name": wave_name(wave)}}
        yield track | {"name": "thread_sort_index", "args": {"sort_index": wave}}


def _work(spans: Iterable[Span]) -> Iterable[dict[str, Any]]:
    for span in spans:
        start, end = _microseconds(span.start), _microseconds(span.end)
        yield {
            "ph": "X",
            "pid": PROCESS,
            "tid": span.wave + 1,
            "name": f"{span.kind} {span.block}" if span.block else span.kind,
            "cat": span.kind,
            "ts": start,
            "dur": round(end - start, 3),
            "args": {"batch": span.batch, "block": span.block},
        }


def _counters(spans: Sequence[Span], profile: Profile, num_waves: int) -> Iterable[dict[str, Any]]:
    curves = memory_curve(spans, profile, num_waves)
    times = sorted({moment for curve in curves for moment, _ in curve})
    for moment, *levels in zip(times, *(level_at(curve, times) for curve in curves), strict=True):
        held = {wave_name(wave): level for wave, level in enumerate(levels)}
        counter = {"ph": "C", "pid": PROCESS, "tid": 0, "name": "step memory", "args": held}
        yield counter | {"ts": _microseconds(moment)}


def _microseconds(seconds: float) -> float:
    """To the nanosecond, so that neighbours touch and never overlap."""
    return round(seconds * 1e6, 3)
