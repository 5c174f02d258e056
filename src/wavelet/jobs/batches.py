"""The built-in jobs' loaders: random batches for training, a list in order for validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["RandomBatches", "ordered_batches"]

Batch = TypeVar("Batch")


class RandomBatches(Generic[Batch]):
    """Batches of samples drawn with replacement from PyTorch's global generator, one draw a batch.

    With replacement, because then a loader has no state of its own: saving the generator saves the position, and a
    run that is continued sees the very batches that it would have seen. A pass has as many batches as the samples fill.

    When torch.distributed is initialised, rank r of w draws from the samples r, r + w, r + 2w, …: whatever the ranks'
    generators do, no two ranks share a sample, and all have equally many batches.

    Args:
        num_samples: number of samples in the data, over all ranks.
        batch_size: samples in one batch of one rank.
        gather: makes the batch from the samples' numbers, an int64 tensor of shape ``(batch_size,)``.

    Raises:
        ValueError: `batch_size` is below 1 or above the number of samples of one rank.
    """

    def __init__(self, num_samples: int, batch_size: int, gather: Callable[[Tensor], Batch]) -> None:
        self.batch_size = batch_size
        self._num_samples = num_samples
        self._gather = gather
        len(self)

    def __len__(self) -> int:
        num_own = self._num_samples // _world_size()
        if not 1 <= self.batch_size <= num_own:
            raise ValueError(
                f"batch_size={self.batch_size} is not possible: give 1 to {num_own}, the number of samples of one rank."
            )
        return num_own // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        num_batches, rank, world_size = len(self), _rank(), _world_size()
        num_own = self._num_samples // world_size
        for _ in range(num_batches):
            yield self._gather(rank + world_size * torch.randint(num_own, (self.batch_size,)))


def ordered_batches(num_samples: int, batch_size: int, gather: Callable[[Tensor], Batch]) -> list[Batch]:
    """All samples in order, in batches of one size; samples that do not fill a last batch are left out."""
    starts = range(0, num_samples - batch_size + 1, batch_size)
    return [gather(torch.arange(start, start + batch_size)) for start in starts]


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank() -> int:
    return dist.get_rank() if _is_distributed() else 0


def _world_size() -> int:
    return dist.get_world_size() if _is_distributed() else 1
