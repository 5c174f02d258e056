"""``delayed``: one trajectory; batch n's gradient, taken K−1 versions ago, updates the newest version.

Equals serial SGD with delay d = K−1, bitwise. At full rate that is less stable: on ½λx² it converges iff
ηλ < 2·sin(π/(2(2d+1))), that is 2, 1, 0.618, 0.445 for K = 1, 2, 3, 4 (Yu, Chen, Poor 2024, discrete form).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from wavelet.updates.gradients import Gradients
from wavelet.updates.hyper_parameters import HyperParameters
from wavelet.updates.optimizer import OptimizerCopy, stand_in
from wavelet.updates.rule import UpdateRule

__all__ = ["Delayed"]


class Delayed(UpdateRule):
    """A buffer of weights a wave; a single optimizer, moved to the buffer that it is to make the newest."""

    name = "delayed"

    def _make_optimizers(self, face: list[nn.Parameter], optimizer: Optimizer) -> list[OptimizerCopy]:
        self._ever_trained = [False] * len(face)
        own = [stand_in(parameter) for parameter in self.weights[0]]
        return [OptimizerCopy(optimizer, face, own)]

    def kept(self) -> dict[str, Any]:
        return {**super().kept(), "ever_trained": list(self._ever_trained)}

    def load_kept(self, kept: dict[str, Any]) -> None:
        super().load_kept(kept)
        self._ever_trained = list(kept["ever_trained"])

    @torch.no_grad()
    def _update(self, wave: int, gradients: Gradients | None, hyper_parameters: HyperParameters) -> None:
        target, newest = self.weights[wave], self.weights[self.newest]
        # What was never trained is the same in every buffer.
        self._ever_trained = [ever or p.requires_grad for ever, p in zip(self._ever_trained, target, strict=True)]
        if wave != self.newest:
            pairs = [(p, q) for p, q, ever in zip(target, newest, self._ever_trained, strict=True) if ever]
            torch._foreach_copy_([p for p, _ in pairs], [q for _, q in pairs])
        optimizer = self.optimizers[0]
        for moved, parameter in zip(optimizer.own, target, strict=True):
            moved.data = parameter.data
            moved.requires_grad_(parameter.requires_grad)
        if gradients is not None:
            optimizer.step(gradients, hyper_parameters, self._largest_norm(hyper_parameters))
        self.newest = wave
