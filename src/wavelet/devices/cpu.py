"""The CPU: intra-op threads are divided among the waves; order between waves is the order of the threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from wavelet.devices.allocator import install_from_environment, pool_in_use
from wavelet.devices.cores import pin, share_cores
from wavelet.devices.device import Device, HostValue

__all__ = ["Cpu", "flushes_denormals"]


def flushes_denormals() -> bool:
    """Whether the current thread flushes denormals to zero; torch has a setter but no getter."""
    return float(torch.full((), 1e-38) * 0.01) == 0.0


def _keep_freed_memory() -> None:
    """Let glibc keep what a step frees for the next one, where it would give it back and fault it in again.

    Two waves free in one thread what another allocated, which cost 2,000 page faults a step. glibc learns from a freed
    mapping (mallopt(3), M_MMAP_THRESHOLD): after one of almost 32 MiB, never touched, it keeps up to 64 MiB a thread.
    Other allocators do not care.
    """
    torch.empty(2**25 - 2**14, dtype=torch.uint8)


class _Ready(HostValue):
    def __init__(self, scalar: Tensor) -> None:
        self._scalar = scalar

    def item(self) -> float:
        return float(self._scalar.item())


class Cpu(Device):
    """CPU cores shared by ``num_waves`` waves and the caller's forward.

    At most one forward runs beside the backwards of the other waves, so the caller and each wave take an equal share
    of the intra-op threads, and on Linux of the cores. ``torch.set_num_threads`` counts for the calling thread and
    for threads started later.
    """

    def __init__(self, device: torch.device, num_waves: int) -> None:
        super().__init__(device, num_waves)
        self._callers_threads: int | None = None
        self._flush = False
        self.threads_per_wave = max(1, torch.get_num_threads() // num_waves)
        self._cores = share_cores(num_waves)
        self._warm: set[int] = set()
        install_from_environment()
        if not pool_in_use():
            _keep_freed_memory()

    def synchronize(self) -> None:
        pass

    def enter(self) -> None:
        self._callers_threads = torch.get_num_threads()
        self._flush = flushes_denormals()
        if self._callers_threads != self.threads_per_wave:
            torch.set_num_threads(self.threads_per_wave)

    def leave(self) -> None:
        if self._callers_threads is not None and torch.get_num_threads() != self._callers_threads:
            torch.set_num_threads(self._callers_threads)
        self._callers_threads = None

    def enter_wave(self, wave: int) -> None:
        torch.set_num_threads(self.threads_per_wave)
        torch.set_flush_denormal(self._flush)
        if self._cores:
            pin(self._cores[wave])

    def running(self, wave: int) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def forward(self, wave: int, *, after_turns: bool) -> Iterator[None]:
        if wave not in self._warm or not self._cores:
            self._warm.add(wave)  # threads that its first forward starts must not inherit the share
            yield
            return
        before = os.sched_getaffinity(0)
        pin(self._cores[wave])
        try:
            yield
        finally:
            # This wave's thread wakes up here now; the caller goes where the next wave may be idle.
            pin(self._cores[(wave + 1) % self.num_waves])
            pin(before)

    def share(self, tensors: list[Tensor]) -> None:
        pass

    def begin_turn(self, wave: int) -> None:
        pass

    def end_turn(self, wave: int) -> None:
        pass

    def retire(self, tensors: list[Tensor]) -> None:
        pass

    def keep(self, wave: int, batch: object) -> None:
        pass

    def order(self, wave: int) -> object:
        return None

    def follow(self, order: object, wave: int) -> None:
        pass

    def to_host(self, scalar: Tensor, wave: int) -> HostValue:
        return _Ready(scalar)

    def random_state(self) -> Tensor | None:
        return None

    def set_random_state(self, state: Tensor | None) -> None:
        pass

    def advice(self) -> str | None:
        if torch.get_num_threads() < 2 * self.num_waves and self.num_waves > torch.get_num_threads():
            return f"{self.num_waves} waves share {torch.get_num_threads()} intra-op thread(s): expect little gain."
        return None
