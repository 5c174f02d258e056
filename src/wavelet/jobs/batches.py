"""The built-in jobs' loaders: random batches for training, a list in order for validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["RandomBatches", "num_ranks", "ordered_batches"]

Batch = TypeVar("Batch")


class RandomBatches(Generic[Batch]):
    """Batches of samples drawn with replacement from PyTorch's global generator, one draw a batch.

    With replacement, because then a loader has hardly any state of its own: with the generator and `state_dict`, which
    counts the batches of the pass, a run that is continued sees the very batches that it would have seen. A pass has as
    many batches as the samples fill.

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
        self._num_handed_out = self._first = 0
        len(self)

    def __len__(self) -> int:
        num_own = self._num_samples // num_ranks()
        if not 1 <= self.batch_size <= num_own:
            raise ValueError(
                f"batch_size={self.batch_size} is not possible: give 1 to {num_own}, the number of samples of one rank."
            )
        return num_own // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        self._num_handed_out, self._first = self._first, 0
        return self._rest_of_pass(self._num_handed_out)

    def state_dict(self) -> dict[str, int]:
        """How many batches the pass that began last has handed out."""
        return {"num_batches": self._num_handed_out}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next pass be the rest of the one that was saved."""
        self._num_handed_out = self._first = state["num_batches"]

    def _rest_of_pass(self, first: int) -> Iterator[Batch]:
        rank, world_size = _rank(), num_ranks()
        num_own = self._num_samples // world_size
        for number in range(first, len(self)):
            self._num_handed_out = number + 1
            yield self._gather(rank + world_size * torch.randint(num_own, (self.batch_size,)))


def ordered_batches(num_samples: int, batch_size: int, gather: Callable[[Tensor], Batch]) -> list[Batch]:
    """All samples in order, in batches of one size; samples that do not fill a last batch are left out."""
    starts = range(0, num_samples - batch_size + 1, batch_size)
    return [gather(torch.arange(start, start + batch_size)) for start in starts]


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank() -> int:
    return dist.get_rank() if _is_distributed() else 0


def num_ranks() -> int:
    """How many ranks train; 1 where torch.distributed is not initialised."""
    return dist.get_world_size() if _is_distributed() else 1
