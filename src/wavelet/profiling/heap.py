"""How many bytes torch's allocator has given out between marks: exact, from the profiler's memory events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Mark", "record_heap"]

_PREFIX = "wavelet mark "


@dataclass(frozen=True)
class Mark:
    """A moment in the recorded work.

    Args:
        name: as given.
        seconds: since recording started.
        held: bytes given out since then and not yet given back.
        peak: most of them since the mark before.
    """

    name: str
    seconds: float
    held: int
    peak: int


def record_heap(work: Callable[[Callable[[str], None]], None], device: torch.device) -> list[Mark]:
    """Run ``work(mark)`` in this thread and give the marks that it set by ``mark(name)``, and a last one, ``"end"``.

    Counts what this thread, and backwards that it starts, take from torch's allocator of ``device``; libraries that
    allocate on their own are not seen, and on the CPU memory from before that is given back meanwhile is not either.
    """
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)

    def mark(name: str) -> None:
        with torch.profiler.record_function(_PREFIX + name):
            pass

    with torch.profiler.profile(activities=kinds, profile_memory=True) as profiler:
        mark("start")
        work(mark)
        mark("end")
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    return _marks(profiler.profiler.kineto_results.events(), device)


def _marks(events: list[Any], device: torch.device) -> list[Mark]:
    marks: list[Mark] = []
    held = peak = start = 0
    for event in sorted(events, key=lambda event: event.start_ns()):  # stable: events of one moment keep their order
        name = event.name()
        if name == "[memory]":
            if _is_on(event, device):
                held += event.nbytes()
                peak = max(peak, held)
        elif name == _PREFIX + "start":
            held = peak = 0
            start = event.start_ns()
        elif name.startswith(_PREFIX):
            marks.append(Mark(name.removeprefix(_PREFIX), (event.start_ns() - start) / 1e9, held, peak))
            peak = held
    return marks


def _is_on(event: Any, device: torch.device) -> bool:
    return bool(event.device_type().name == device.type.upper())
