"""``synchronous``: all batches of a round see the same weights; one step a round with their mean gradient.

Equals the plain loop that accumulates the round's micro-batches and divides once, bitwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from wavelet.updates.gradients import Gradients, add_, take_gradients
from wavelet.updates.hyper_parameters import HyperParameters
from wavelet.updates.optimizer import OptimizerCopy, stand_in
from wavelet.updates.rule import UpdateRule

__all__ = ["Synchronous"]


class Synchronous(UpdateRule):
    """The waves' parameters share one storage; the gradients of a round fold into one sum in batch order."""

    name = "synchronous"

    shares_weights = True

    def _make_optimizers(self, face: list[nn.Parameter], optimizer: Optimizer) -> list[OptimizerCopy]:
        for wave in self.weights[1:]:
            for parameter, first in zip(wave, self.weights[0], strict=True):
                parameter.data = first.data
        self._total: Gradients = [None] * len(face)
        self._last_wave = 0
        own = [stand_in(parameter) for parameter in self.weights[0]]
        return [OptimizerCopy(optimizer, face, own)]

    def updates_after(self, position: int) -> bool:
        return position == self.round_size - 1

    def micro_batches(self) -> int:
        return self.round_size

    def folded(self, wave: int) -> int:
        return sum(self._num_folded)

    def next_update(self, position: int) -> int:
        return 0

    def after_next_update(self, position: int) -> int:
        return 0

    def pending(self) -> list[int]:
        return [self._last_wave] if any(self._num_folded) else []

    def kept(self) -> dict[str, Any]:
        return {**super().kept(), "total": list(self._total), "last_wave": self._last_wave}

    def load_kept(self, kept: dict[str, Any]) -> None:
        super().load_kept(kept)
        self._total, self._last_wave = list(kept["total"]), kept["last_wave"]

    def turn(self, wave: int, hyper_parameters: HyperParameters, *, updates: bool) -> None:
        gradients = take_gradients(self.weights[wave])
        add_(self._total, gradients)
        self._last_wave = wave
        self._device.retire([gradient for gradient in gradients if gradient is not None])
        super().turn(wave, hyper_parameters, updates=updates)

    def _take(self, wave: int) -> tuple[Gradients, int]:
        total, count = self._total, sum(self._num_folded)
        self._total, self._num_folded = [None] * len(total), [0] * self.num_waves
        return total, count

    def _waves_seeing_update_of(self, wave: int) -> Sequence[int]:
        return range(self.num_waves)

    def _update(self, wave: int, gradients: Gradients | None, hyper_parameters: HyperParameters) -> None:
        optimizer = self.optimizers[0]
        for own, parameter in zip(optimizer.own, self.weights[wave], strict=True):
            own.requires_grad_(parameter.requires_grad)
        if gradients is not None:
            optimizer.step(gradients, hyper_parameters, self._largest_norm(hyper_parameters))
