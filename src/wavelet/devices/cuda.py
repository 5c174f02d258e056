"""A CUDA GPU: a stream for each wave (or one shared), and events where one wave reads what another wrote.

The caching allocator never gives a block freed on one stream to another stream, so with ``streams="separate"`` and the
native back end the waves do not share a memory valley; ``backend:cudaMallocAsync`` does, once an event orders the free
before the allocation. One shared stream shares memory under either back end, without concurrent kernels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from wavelet.devices.cpu import flushes_denormals
from wavelet.devices.device import Device, HostValue

__all__ = ["Cuda"]


class _Arriving(HostValue):
    def __init__(self, scalar: Tensor, stream: torch.cuda.Stream) -> None:
        self._host = torch.empty((), dtype=scalar.dtype, pin_memory=True)
        self._host.copy_(scalar.reshape(()), non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(stream)

    def item(self) -> float:
        self._arrived.synchronize()
        return float(self._host.item())


class Cuda(Device):
    """One GPU shared by ``num_waves`` waves.

    Args:
        device: the GPU.
        num_waves: the number of waves.
        streams: ``"separate"``, ``"shared"``, or ``"auto"``: separate where the allocator can pass memory between
            streams (``cudaMallocAsync``), shared otherwise.
    """

    def __init__(self, device: torch.device, num_waves: int, streams: str) -> None:
        super().__init__(device, num_waves)
        self.backend = torch.cuda.get_allocator_backend()
        if streams == "auto":
            streams = "separate" if self.backend == "cudaMallocAsync" else "shared"
        self.stream_mode = streams
        count = num_waves if streams == "separate" else 1
        distinct = [torch.cuda.Stream(device) for _ in range(count)]
        self._streams = [distinct[wave % count] for wave in range(num_waves)]
        self._callers_stream = torch.cuda.current_stream(device)
        self._last_forward: torch.cuda.Event | None = None
        self._last_turn: torch.cuda.Event | None = None
        self._retired: list[Tensor] = []
        self._kept: list[deque[tuple[torch.cuda.Event, object]]] = [deque() for _ in range(num_waves)]
        self._flush = False

    def enter(self) -> None:
        self._flush = flushes_denormals()
        self._callers_stream = torch.cuda.current_stream(self.device)

    def synchronize(self) -> None:
        for stream in set(self._streams):
            stream.synchronize()

    def leave(self) -> None:
        self.synchronize()
        self._retired.clear()
        for kept in self._kept:
            kept.clear()

    def enter_wave(self, wave: int) -> None:
        torch.cuda.set_device(self.device)
        torch.set_flush_denormal(self._flush)

    @contextmanager
    def running(self, wave: int) -> Iterator[None]:
        # Autograd has one worker thread a device, which two backwards would share; this keeps each in its own thread.
        with torch.cuda.stream(self._streams[wave]), torch.autograd.set_multithreading_enabled(False):
            yield

    @contextmanager
    def forward(self, wave: int, *, after_turns: bool) -> Iterator[None]:
        stream = self._streams[wave]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        if self._last_forward is not None:
            stream.wait_event(self._last_forward)
        if after_turns and self._last_turn is not None:
            stream.wait_event(self._last_turn)
        with self.running(wave):
            yield
        self._last_forward = self._event(wave)

    def share(self, tensors: list[Tensor]) -> None:
        stream = torch.cuda.current_stream(self.device)
        if tensors and self._last_forward is not None:
            stream.wait_event(self._last_forward)
            for tensor in tensors:
                tensor.record_stream(stream)  # the caller frees them, whenever it likes

    def begin_turn(self, wave: int) -> None:
        if self._last_turn is not None:
            self._streams[wave].wait_event(self._last_turn)
        self._retired.clear()

    def end_turn(self, wave: int) -> None:
        self._last_turn = self._event(wave)

    def retire(self, tensors: list[Tensor]) -> None:
        if self.stream_mode == "separate":
            self._retired.extend(tensors)

    def keep(self, wave: int, batch: object) -> None:
        kept = self._kept[wave]
        kept.append((self._event(wave), batch))
        while kept and (len(kept) > 2 or kept[0][0].query()):
            kept[0][0].synchronize()  # the host runs at most two batches a wave ahead of the device
            kept.popleft()

    def order(self, wave: int) -> object:
        return self._event(wave) if self.stream_mode == "separate" else None

    def follow(self, order: object, wave: int) -> None:
        if order is not None:
            self._streams[wave].wait_event(cast("torch.cuda.Event", order))

    def to_host(self, scalar: Tensor, wave: int) -> HostValue:
        return _Arriving(scalar, self._streams[wave])

    def random_state(self) -> Tensor | None:
        return torch.cuda.get_rng_state(self.device)

    def set_random_state(self, state: Tensor | None) -> None:
        if state is not None:
            torch.cuda.set_rng_state(state, self.device)

    def advice(self) -> str | None:
        if self.stream_mode == "separate" and self.backend != "cudaMallocAsync":
            return (
                "Separate streams do not share freed memory under the native allocator: set "
                "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync before CUDA starts, or use streams='shared'."
            )
        return None

    def _event(self, wave: int) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(self._streams[wave])
        return event
