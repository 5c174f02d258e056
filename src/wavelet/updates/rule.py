"""What an update rule is: when a wave's turn comes, what becomes of its gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from wavelet.devices import Device
from wavelet.exchange import Exchange
from wavelet.updates.gradients import Gradients, all_finite, divide_, take_gradients
from wavelet.updates.hyper_parameters import HyperParameters
from wavelet.updates.loss_scale import LossScale
from wavelet.updates.optimizer import OptimizerCopy

__all__ = ["UpdateRule", "UpdateSettings"]


@dataclass(frozen=True)
class UpdateSettings:
    """What all rules share.

    Args:
        accumulate: micro-batches a wave gives to one update.
        clip_grad_norm: largest norm of the gradient that the optimizer uses; None for no clipping.
        resync: updates of its own after which a wave averages with its predecessor; None for never.
    """

    accumulate: int = 1
    clip_grad_norm: float | None = None
    resync: int | None = None

    def among(self, waves: int) -> UpdateSettings:
        """Those for this number of waves: one has no predecessor."""
        return self if waves > 1 else replace(self, resync=None)


class UpdateRule(ABC):
    """Owns the weights of all waves and the optimizers that change them. Its methods run one at a time, in batch order.

    A wave sums the gradients of its own A micro-batches in its parameters' ``.grad``, oldest first, and then updates;
    `Synchronous` overrides that.

    Args:
        weights: each wave's parameters, in the order of the user's ``model.parameters()``.
        face: the user's parameters.
        optimizer: the user's optimizer, which is copied.
        settings: see `UpdateSettings`.
        loss_scale: the scale of fp16 losses, if any.
        device: where the waves run.
    """

    name: ClassVar[str]
    exchange: Exchange  # given once the ranks have met
    shares_weights: ClassVar[bool] = False
    """Whether all waves see one storage, so that a round's first forwards wait for every turn of the round before."""

    def __init__(
        self,
        weights: Sequence[Sequence[nn.Parameter]],
        face: Sequence[nn.Parameter],
        optimizer: Optimizer,
        settings: UpdateSettings,
        loss_scale: LossScale | None,
        device: Device,
    ) -> None:
        self.weights = [list(wave) for wave in weights]
        self.num_waves = len(weights)
        self.settings = settings
        self.loss_scale = loss_scale
        self.newest = 0
        self._device = device
        self._num_folded = [0] * self.num_waves
        self.optimizers = self._make_optimizers(list(face), optimizer)

    @abstractmethod
    def _make_optimizers(self, face: list[nn.Parameter], optimizer: Optimizer) -> list[OptimizerCopy]:
        """One optimizer a wave, or a single one; also sets up what the rule keeps."""

    @abstractmethod
    def _update(self, wave: int, gradients: Gradients | None, hyper_parameters: HyperParameters) -> None:
        """Update ``wave`` with its mean gradient; None: it was not finite and counts as missing."""

    @property
    def round_size(self) -> int:
        """Micro-batches that make a round: micro-batch m of a round goes to wave m mod K."""
        return self.num_waves * self.settings.accumulate

    def updates_after(self, position: int) -> bool:
        """Whether the micro-batch at ``position`` of its round is the last before an update."""
        return position >= self.round_size - self.num_waves

    def pending(self) -> list[int]:
        """The waves that would update if the round were closed now, in that order."""
        return [wave for wave, count in enumerate(self._num_folded) if count]

    def unscale_(self, gradients: Sequence[Tensor | None], wave: int) -> None:
        """Divide gradients of ``wave`` by its loss scale, in place."""
        if self.loss_scale is not None:
            self.loss_scale.unscale_(list(gradients), wave)

    def inverse_scale(self, wave: int) -> float:
        """By what `unscale_` multiplies."""
        return 1.0 if self.loss_scale is None else self.loss_scale.inverse(wave)

    def micro_batches(self) -> int:
        """How many a rank gives to one update of a whole round."""
        return self.settings.accumulate

    def folded(self, wave: int) -> int:
        """How many micro-batches the next update of ``wave`` has so far."""
        return self._num_folded[wave]

    def next_update(self, position: int) -> int:
        """The wave of the next update, ``position`` micro-batches into a round."""
        return max(0, position - (self.round_size - self.num_waves))

    def after_next_update(self, position: int) -> int:
        """The position once the next update has been made with what there is."""
        return (self.round_size - self.num_waves + self.next_update(position) + 1) % self.round_size

    def scaled(self, wave: int, loss: Tensor) -> Tensor:
        """The loss of a batch of ``wave``, times its loss scale."""
        return loss if self.loss_scale is None else self.loss_scale.scale(loss, wave)

    def turn(self, wave: int, hyper_parameters: HyperParameters, *, updates: bool) -> None:
        """The turn of ``wave`` after one of its backwards."""
        self._num_folded[wave] += 1
        if updates:
            self.update(wave, hyper_parameters)

    def update(self, wave: int, hyper_parameters: HyperParameters) -> None:
        """Apply what ``wave`` has accumulated."""
        total, divisor = self.exchange.finish(wave, *self._take(wave))
        gradients = self._mean(total, divisor)
        self._update(wave, gradients, hyper_parameters)
        if self.loss_scale is not None:
            self.loss_scale.updated(self._waves_seeing_update_of(wave), finite=gradients is not None)
        self.exchange.updated(wave)

    def adopt_optimizer(self, optimizer: Optimizer) -> None:
        """Take over groups and states of the user's optimizer."""
        for copy in self.optimizers:
            copy.adopt(optimizer)

    def regroup(self, optimizer: Optimizer) -> None:
        """Take over which parameters are in which group of the user's optimizer."""
        for copy in self.optimizers:
            copy.regroup(optimizer)

    def optimizer_of(self, wave: int) -> OptimizerCopy:
        """The optimizer whose state belongs to the weights of ``wave``."""
        return self.optimizers[wave % len(self.optimizers)]

    def write(self, index: int, value: Tensor) -> None:
        """Write ``value`` into parameter ``index`` of every wave."""
        for wave in self.weights:
            if wave[index].data_ptr() != value.data_ptr():
                wave[index].data.copy_(value)

    def kept(self) -> dict[str, Any]:
        """What is held between updates, for saving: the tensors themselves, not copies."""
        gradients = [[parameter.grad for parameter in wave] for wave in self.weights]
        return {"gradients": gradients, "num_folded": list(self._num_folded), "newest": self.newest}

    def load_kept(self, kept: dict[str, Any]) -> None:
        """Restore what `kept` gave."""
        self.newest, self._num_folded = kept["newest"], list(kept["num_folded"])
        for wave, gradients in zip(self.weights, kept["gradients"], strict=True):
            for parameter, gradient in zip(wave, gradients, strict=True):
                parameter.grad = gradient

    def _take(self, wave: int) -> tuple[Gradients, int]:
        """Give up the sum of gradients that the update of ``wave`` uses, and the number of micro-batches in it."""
        count, self._num_folded[wave] = self._num_folded[wave], 0
        return take_gradients(self.weights[wave]), count

    def _largest_norm(self, hyper_parameters: HyperParameters) -> float | None:
        """Of the gradient that the optimizer uses."""
        if self.exchange.max_step_norm is None:
            return self.settings.clip_grad_norm
        rate = max(float(group["lr"]) for group in hyper_parameters)
        return self.exchange.max_step_norm / rate if rate > 0 else None

    def _waves_seeing_update_of(self, wave: int) -> Sequence[int]:
        return [wave]

    def _mean(self, total: Gradients, divisor: float) -> Gradients | None:
        if self.loss_scale is not None and not all_finite(total):
            return None
        if divisor != 1:
            divide_(total, divisor)
        return total
