"""BMUF: momentum on what a whole period changes, instead of the plain mean of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wavelet.exchange.channel import Channel
from wavelet.exchange.choice import check_number
from wavelet.exchange.exchange import Gradients
from wavelet.exchange.local_sgd import LocalSGD
from wavelet.exchange.periodic import Outer
from wavelet.exchange.weights import copy_means

__all__ = ["BMUF", "BlockMomentum"]


@dataclass(frozen=True, eq=False, kw_only=True)
class BMUF(LocalSGD):
    """Blockwise model-update filtering: G = w̄ − s, Δ ← mΔ + ζG, W ← W + Δ, with s what the period started from.

    Chen, Huo, "Scalable Training of Deep Learning Machines by Incremental Block Training with Intra-Block Parallel
    Optimization and Blockwise Model-Update Filtering", ICASSP 2016. With m = 0 and ζ = 1 it is local SGD. With a
    constant rate it is SlowMo (Wang, Tantia, Ballas, Rabbat, ICLR 2020), where m is its slow momentum β and ζ its slow
    rate α. A rank keeps W and Δ, twice the weights of each replica.

    The other arguments are those of `LocalSGD`.

    Args:
        block_momentum: m, from 0 to below 1; None for 1 − 1/N with N ranks.
        block_scale: ζ.
        nesterov: ranks go on from W + mΔ instead of W, except after a flush, which leaves W.

    Raises:
        ValueError: an argument makes no sense.
    """

    block_momentum: float | None = None
    block_scale: float = 1.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if self.block_momentum is not None and self.block_momentum != 0:
            check_number("block_momentum", self.block_momentum, "a number from 0 to below 1, or None", most=1)
        check_number("block_scale", self.block_scale, "a number above 0")
        super().__post_init__()

    def _outer(self, channel: Channel) -> Outer:
        momentum = 1 - 1 / channel.ranks.size if self.block_momentum is None else self.block_momentum
        return BlockMomentum(momentum, self.block_scale, nesterov=self.nesterov)


class BlockMomentum(Outer):
    """W and Δ of each trajectory.

    Args:
        momentum: m.
        scale: ζ.
        nesterov: see `BMUF`.
    """

    def __init__(self, momentum: float, scale: float, *, nesterov: bool) -> None:
        self.weights_kept = 2 + nesterov
        self._momentum, self._scale, self._nesterov = momentum, scale, nesterov
        self._model: dict[str, Gradients] = {}  # W by trajectory; None for what is not trained
        self._change: dict[str, Gradients] = {}  # Δ
        self._ahead: set[str] = set()  # trajectories whose period started from W + mΔ

    def begins(self, trajectory: int, weights: Sequence[nn.Parameter]) -> None:
        if str(trajectory) not in self._model:
            trained = [weight if weight.requires_grad else None for weight in weights]
            self._model[str(trajectory)] = [None if each is None else each.detach().clone() for each in trained]
            self._change[str(trajectory)] = [None if each is None else torch.zeros_like(each) for each in trained]

    @torch.no_grad()
    def step(self, trajectory: int, weights: Sequence[nn.Parameter], means: Gradients, *, closes: bool) -> None:
        self.begins(trajectory, weights)  # a rank that has never had a batch
        name = str(trajectory)
        moved = {index: mean for index, mean in enumerate(means) if mean is not None}
        if not moved:
            return
        model = [self._kept(self._model[name], index, mean) for index, mean in moved.items()]
        change = [self._kept(self._change[name], index, torch.zeros_like(mean)) for index, mean in moved.items()]
        gained = list(moved.values())  # becomes G, in the mean's own memory
        torch._foreach_sub_(gained, self._start(name, model, change))
        torch._foreach_mul_(change, self._momentum)
        torch._foreach_add_(change, gained, alpha=self._scale)
        torch._foreach_add_(model, change)
        self._ahead.discard(name)
        if self._nesterov and not closes:
            self._ahead.add(name)
        torch._foreach_copy_([weights[index] for index in moved], self._start(name, model, change))

    @torch.no_grad()
    def left_open(self, trajectory: int, weights: Sequence[nn.Parameter]) -> None:
        name = str(trajectory)
        if name in self._ahead:
            self._ahead.discard(name)
            copy_means(weights, self._model[name])

    def state_dict(self) -> dict[str, Any]:
        return {"model": self._model, "change": self._change, "ahead": sorted(self._ahead)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._model, self._change, self._ahead = dict(state["model"]), dict(state["change"]), set(state["ahead"])

    def _kept(self, kept: Gradients, index: int, first: Tensor) -> Tensor:
        """What is kept for a weight; ``first`` for one that was frozen until now."""
        found = kept[index]
        if found is None:
            found = kept[index] = first.clone()
        return found

    def _start(self, name: str, model: list[Tensor], change: list[Tensor]) -> list[Tensor]:
        """What the ranks go on from, or went on from."""
        return list(torch._foreach_add(model, change, alpha=self._momentum)) if name in self._ahead else model
