"""The ranks that save together, and how they agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from wavelet.checkpoints.errors import CheckpointError
from wavelet.exchange.ranks import group_of

__all__ = ["Ranks"]

T = TypeVar("T")


class Ranks:
    """The ranks of ``group``, on a gloo group of their own; one alone where torch.distributed is not initialised.

    A group of their own, because checkpoints are written beside collectives of the training, and those of one group
    must come in the same order on all ranks.

    Args:
        group: the ranks, as a ProcessGroup or a DeviceMesh of one dimension; None for all.
    """

    def __init__(self, group: Any = None) -> None:
        self.group: Any = None
        self.rank, self.size = 0, 1
        if dist.is_available() and dist.is_initialized():
            if group is None:
                self.group = dist.new_group(backend="gloo")
            else:
                members = dist.get_process_group_ranks(group_of(group))
                self.group = dist.new_group(members, backend="gloo", use_local_synchronization=True)
            self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        elif group is not None:
            raise ValueError("group was given, and torch.distributed is not initialised: initialise it first.")

    def check(self) -> None:
        """Refuse to be alone where ranks have met since, which would all write the same files.

        Raises:
            ValueError: torch.distributed was initialised meanwhile.
        """
        if self.group is None and dist.is_available() and dist.is_initialized():
            raise ValueError(
                "Checkpoints was made before torch.distributed was initialised, or is closed: make one afterwards."
            )

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, on every rank."""
        values: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self.group)
        return values

    def of_first(self, function: Callable[[], T]) -> T:
        """What ``function`` gives on rank 0, on every rank; what it raises there is raised on every rank."""
        found: list[Any] = [None, None]
        if self.rank == 0:
            try:
                found[0] = function()
            except Exception as error:
                found[1] = error
        if self.size > 1:
            dist.broadcast_object_list(found, src=dist.get_global_rank(self.group, 0), group=self.group)
        if found[1] is not None:
            raise found[1]
        return found[0]  # type: ignore[no-any-return]

    def together(self, function: Callable[[], T], what: str) -> T:
        """Run ``function`` on every rank, and go on only if it raised on none.

        Raises:
            Exception: what it raised here, if it did.
            ValueError: it raised one on another rank; begins with ``what``.
            CheckpointError: it raised something else there.
        """
        value, mine = None, None
        try:
            value = function()
        except Exception as error:
            mine = error
        errors = self.gather(None if mine is None else (isinstance(mine, ValueError), str(mine)))
        if mine is not None:
            raise mine
        for rank, raised in enumerate(errors):
            if raised is not None:
                kind = ValueError if raised[0] else CheckpointError
                raise kind(f"{what}: rank {rank} raised an error ({raised[1]}).")
        return value  # type: ignore[return-value]

    def close(self) -> None:
        """Give the group up."""
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
        self.group = None
