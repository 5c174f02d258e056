"""CELGC: local SGD whose every step is bounded by the rank's own gradient norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wavelet.exchange.channel import Channel
from wavelet.exchange.choice import Training, check_number
from wavelet.exchange.exchange import Exchange
from wavelet.exchange.local_sgd import LocalSGD

__all__ = ["CELGC"]


@dataclass(frozen=True, eq=False, kw_only=True)
class CELGC(LocalSGD):
    """Local steps −min(η, γ/‖g‖)·g with the norm of the rank's own gradient; the mean of the weights every period.

    Liu, Zhuang, Lei, Liao, "A Communication-Efficient Distributed Gradient Clipping Algorithm for Training Deep Neural
    Networks", NeurIPS 2022: 8 workers, period 2; γ = 1.0 with η = 0.1 for a ResNet-32, γ = 7.5 with η = 30 for an LSTM.

    The other arguments are those of `LocalSGD`.

    Args:
        max_norm: γ, the largest norm of what a step changes, which is the rate times the gradient's norm; infinity
            makes it local SGD.

    Raises:
        ValueError: an argument makes no sense, or the optimizer is not plain SGD.
    """

    max_norm: float

    def __post_init__(self) -> None:
        if self.max_norm != float("inf"):
            check_number("max_norm", self.max_norm, "a number above 0, or infinity")
        super().__post_init__()

    def check(self, training: Training) -> None:
        super().check(training)
        if type(training.optimizer) is not torch.optim.SGD:
            name = type(training.optimizer).__name__
            raise ValueError(f"CELGC bounds steps of plain SGD, and the optimizer is {name}: use torch.optim.SGD.")
        for group in training.optimizer.param_groups:
            for entry in ("momentum", "weight_decay", "maximize"):
                if group[entry]:
                    raise ValueError(
                        f"CELGC bounds steps of plain SGD, and the optimizer has {entry}={group[entry]}: use LocalSGD, "
                        f"or leave {entry} out."
                    )
        if training.clip_grad_norm is not None:
            raise ValueError(
                "CELGC bounds steps itself, at max_norm / rate: leave clip_grad_norm out, or use LocalSGD with it."
            )

    def make(self, channel: Channel) -> Exchange:
        exchange = super().make(channel)
        exchange.max_step_norm = None if self.max_norm == float("inf") else self.max_norm
        return exchange
