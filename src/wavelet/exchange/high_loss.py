"""Which samples a rank with little time trains on: those with the highest loss among a few candidates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Sampler

from wavelet.exchange.choice import check_whole
from wavelet.exchange.ranks import group_of

__all__ = ["HighLossSampler"]


class HighLossSampler(Sampler[int]):
    """Each pass draws ``candidates`` × ``quota`` samples and gives the ``quota`` of them with the highest loss known.

    Lim et al., "Biased Local SGD", 2025, for the slow ranks of `BiasedLocalSGD`. A sample that no rank has scored
    counts as infinite, so it comes first.

    Args:
        num_samples: in the data set.
        quota: samples of one pass.
        candidates: how many times as many are drawn, without replacement.
        seed: of the draws; the same seed gives the same candidates.

    Raises:
        ValueError: an argument makes no sense.
    """

    def __init__(self, num_samples: int, quota: int, *, candidates: int = 4, seed: int = 0) -> None:
        check_whole("num_samples", num_samples)
        check_whole("quota", quota)
        check_whole("candidates", candidates)
        if quota > num_samples:
            raise ValueError(f"quota={quota} is more than the {num_samples} samples: use at most as many.")
        self._quota, self._candidates = quota, candidates
        self._scores = torch.full((num_samples,), float("inf"))
        self._generator = torch.Generator().manual_seed(seed)

    def record(self, indices: Tensor, losses: Tensor) -> None:
        """Remember the losses of samples.

        Args:
            indices: of the samples, shape (n,).
            losses: of each of them, shape (n,).

        Raises:
            ValueError: there is not one loss a sample.
        """
        if indices.shape != losses.shape or indices.dim() != 1:
            raise ValueError(
                f"indices have the shape {tuple(indices.shape)} and losses {tuple(losses.shape)}: give one loss for "
                "each sample, in two vectors."
            )
        self._scores[indices.cpu()] = losses.detach().to("cpu", torch.float32)

    def share(self, group: Any = None) -> None:
        """Take the smallest score that a rank has for each sample.

        All ranks of ``group`` call this together, after `wavelet.Wavelet.flush`: before it a rank may still wait for a
        mean that another one has not come to.
        """
        dist.all_reduce(self._scores, op=dist.ReduceOp.MIN, group=group_of(group))

    def __iter__(self) -> Iterator[int]:
        num_samples = len(self._scores)
        drawn = torch.randperm(num_samples, generator=self._generator)[: self._candidates * self._quota]
        highest = self._scores[drawn].argsort(descending=True, stable=True)[: self._quota]
        # In the order in which they were drawn, or every pass would begin with the highest losses.
        return iter(drawn[highest.sort().values].tolist())

    def __len__(self) -> int:
        return self._quota

    def state_dict(self) -> dict[str, Any]:
        """What the next pass depends on, as clones."""
        return {"scores": self._scores.clone(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._scores = state["scores"].clone()
        self._generator.set_state(state["generator"])
