"""How many bytes torch's allocator has given out between marks: exact, from the profiler's memory events."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

__all__ = ["HeapRecord", "Mark"]

_PREFIX = "wavelet mark "
_DISCOUNT = "discount "


@dataclass(frozen=True)
class Mark:
    """A moment in the recorded work.

    Args:
        name: as given.
        held: bytes given out since recording started and not yet given back.
        peak: most of them since the mark before.
    """

    name: str
    held: int
    peak: int


class HeapRecord:
    """As a context manager: records what this thread, and backwards that it starts, take from torch's allocator.

    Libraries that allocate on their own are not seen, and on the CPU memory from before that is given back meanwhile
    is not either. ``marks`` holds, after leaving, what was set by `mark`, and a last one, ``"end"``.

    Args:
        device: whose memory counts.

    Raises:
        ValueError: on entering, if another profiler of torch runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if device.type == "cuda":
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=kinds, profile_memory=True)
        self._loudness = _less_loud()
        self.marks: list[Mark] = []

    def mark(self, name: str) -> None:
        """Set a mark."""
        with torch.profiler.record_function(_PREFIX + name):
            pass

    def discount(self, count: int) -> None:
        """From now on, ``count`` of the bytes that are held count elsewhere."""
        self.mark(f"{_DISCOUNT}{count}")

    def __enter__(self) -> HeapRecord:
        if torch._C._autograd._profiler_enabled():
            raise ValueError(
                "memory is measured with torch's profiler, and one is running already: stop yours, or pass plan=."
            )
        self._loudness.__enter__()
        self._profiler.__enter__()
        self.mark("start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.mark("end")
        self._profiler.__exit__(kind, error, trace)
        self._loudness.__exit__(kind, error, trace)
        if kind is None:
            assert self._profiler.profiler is not None
            assert self._profiler.profiler.kineto_results is not None
            self.marks = _marks(self._profiler.profiler.kineto_results.events(), self._device)


@contextmanager
def _less_loud() -> Iterator[None]:
    """Keep what the profiler says about itself, and about memory from before, off the user's terminal."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # read when the first profiler starts
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(f"{torch.__path__[0]}/lib/libc10.so"), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # another system, or built with another logger
        yield
        return
    before, level.value = level.value, max(level.value, 2)
    try:
        yield
    finally:
        level.value = before


def _marks(events: list[Any], device: torch.device) -> list[Mark]:
    marks: list[Mark] = []
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):  # stable: events of one moment keep their order
        name = event.name()
        if name == "[memory]":
            if _is_on(event, device):
                held += event.nbytes()
                peak = max(peak, held)
        elif name == _PREFIX + "start":
            held = peak = 0
        elif name.startswith(_PREFIX + _DISCOUNT):
            held -= int(name.removeprefix(_PREFIX + _DISCOUNT))
        elif name.startswith(_PREFIX):
            marks.append(Mark(name.removeprefix(_PREFIX), held, peak))
            peak = held
    return marks


def _is_on(event: Any, device: torch.device) -> bool:
    return bool(event.device_type().name == device.type.upper())
