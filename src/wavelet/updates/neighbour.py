"""``neighbour``, the paper's rule: each wave steps with the mean of the last K batches' gradients.

Wavelet (MLSys 2021), section on tick-tock data parallelism. With plain SGD, a constant rate η and no weight decay this
is Φₙ = Φₙ₋₁ − (η/K)·ḡₙ with batch n evaluated at Φₙ₋ₖ.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wavelet.updates.gradients import Gradients, mean_of_window
from wavelet.updates.hyper_parameters import HyperParameters
from wavelet.updates.optimizer import OptimizerCopy
from wavelet.updates.rule import UpdateRule

__all__ = ["Neighbour"]


class Neighbour(UpdateRule):
    """A replica and an optimizer a wave; a missing predecessor counts as zero."""

    name = "neighbour"

    def _make_optimizers(self, face: list[nn.Parameter], optimizer: Optimizer) -> list[OptimizerCopy]:
        self._window: deque[Gradients] = deque()  # the gradients of the last K−1 updates, oldest first
        self._num_updates = [0] * self.num_waves
        return [OptimizerCopy(optimizer, face, own) for own in self.weights]

    def _update(self, wave: int, gradients: Gradients | None, hyper_parameters: HyperParameters) -> None:
        finite = gradients is not None
        self._window.append(gradients if gradients is not None else [None] * len(self.weights[wave]))
        if finite:
            mean = mean_of_window(list(self._window), self.num_waves)
            if self.num_waves > 1:
                self._device.retire([gradient for gradient in self._window[0] if gradient is not None])
        if len(self._window) == self.num_waves:
            self._window.popleft()
        if finite:
            self.optimizers[wave].step(mean, hyper_parameters, self._largest_norm(hyper_parameters))
        self._num_updates[wave] += 1
        if self.settings.resync is not None and self._num_updates[wave] % self.settings.resync == 0:
            self._resync(wave)
        self.newest = wave

    @torch.no_grad()
    def _resync(self, wave: int) -> None:
        """Average weights and optimizer states with the predecessor's, writing only this wave's."""
        mine, theirs = self.optimizers[wave], self.optimizers[wave - 1]
        written: list[Tensor] = [p for p in mine.own if p.requires_grad]
        read: list[Tensor] = [q for p, q in zip(mine.own, theirs.own, strict=True) if p.requires_grad]
        for parameter, other in zip(mine.own, theirs.own, strict=True):
            if parameter.requires_grad:
                state, others = mine.optimizer.state.get(parameter, {}), theirs.optimizer.state.get(other, {})
                for name, value in state.items():
                    if _is_averaged(name, value, parameter) and isinstance(others.get(name), Tensor):
                        written.append(value)
                        read.append(others[name])
        torch._foreach_add_(written, read)
        torch._foreach_div_(written, 2)

    def kept(self) -> dict[str, Any]:
        return {**super().kept(), "window": list(self._window), "num_updates": list(self._num_updates)}

    def load_kept(self, kept: dict[str, Any]) -> None:
        super().load_kept(kept)
        self._window = deque(list(gradients) for gradients in kept["window"])
        self._num_updates = list(kept["num_updates"])


def _is_averaged(name: str, value: object, parameter: nn.Parameter) -> bool:
    """State tensors such as moments, not scalars such as Adam's step."""
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return False
    return value.dim() > 0 or (parameter.dim() == 0 and name != "step")
