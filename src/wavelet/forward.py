"""One batch's forward on the caller's thread: it leaves a loss to differentiate, or everything as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wavelet import arguments
from wavelet.devices import Device, move, tensors_in
from wavelet.devices.random_state import RandomState
from wavelet.exchange import Exchange
from wavelet.leaves import check_leaves
from wavelet.waves.hidden_state import refuse_hidden_state
from wavelet.waves.wave import Wave

__all__ = ["Forward", "Result"]

LossFunction = Callable[[nn.Module, Any], "Tensor | Mapping[str, Any]"]


@dataclass
class Result:
    """What a forward gave: loss, other outputs (detached), the batch on the device, and whether torch compiled."""

    loss: Tensor
    outputs: Mapping[str, Any]
    batch: Any
    compiled: bool


class Forward:
    """Runs forwards in batch order and carries the buffers from each to the next.

    A forward starts from a snapshot of the buffers that the one before it left, copied into its own replica's, so that
    nothing that a backward still needs is written; what a recomputation in backward writes to buffers is lost there.

    Args:
        loss: the user's loss function.
        autocast: the lower precision, if any.
        device: where it runs.
        buffers: the snapshot to start from; written after each forward.
        face: the parameters of the user's own model.
        exchange: may write the buffers before a forward.
    """

    def __init__(
        self,
        loss: LossFunction,
        autocast: torch.dtype | None,
        device: Device,
        buffers: list[Tensor | None],
        face: list[nn.Parameter],
        exchange: Exchange,
    ) -> None:
        self.buffers = buffers
        self._loss = loss
        self._autocast = autocast
        self._device = device
        self._face = face
        self._exchange = exchange
        self._num_waves = device.num_waves

    def run(self, wave: Wave, batch: Any, watched: AbstractContextManager[Any], *, after_turns: bool) -> Result:
        """The forward of ``batch`` in ``wave``, inside ``watched``; a wave's first two are looked at more closely.

        If it raises, random state and buffers are as before.
        """
        device, replica = self._device, wave.replica
        random_state = RandomState(device)
        early = wave.num_batches < 2 and self._num_waves > 1
        num_compiled = _num_compiled()
        try:
            with device.forward(wave.index, after_turns=after_turns), watched:
                self._exchange.before_forward(wave.index)
                replica.buffers.load(self.buffers)
                with self._autocasting(), refuse_hidden_state(replica.model) if early else nullcontext():
                    moved = move(batch, device.device)
                    loss, outputs = arguments.split_result(self._loss(replica.model, moved))
                if wave.num_batches == 0:
                    check_leaves(loss, replica.parameters, self._face, moved, num_waves=self._num_waves)
                replica.buffers.save(self.buffers)
                self._exchange.after_forward(wave.index, moved)
        except Exception:
            random_state.restore()
            raise
        if outputs:
            device.share(tensors_in(outputs))
        return Result(loss, outputs, moved, compiled=_num_compiled() != num_compiled)

    def _autocasting(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device.device.type, dtype=self._autocast)


def _num_compiled() -> int:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
