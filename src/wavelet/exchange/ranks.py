"""The ranks of one engine: a process group of its own, and what is agreed before training starts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Ranks", "group_of"]

NUM_GLOO_THREADS = 2
LARGEST_GLOO_PART = 2**20
"""Bytes."""


def group_of(group: Any) -> dist.ProcessGroup | None:
    """The process group that a user gave, as one or as a DeviceMesh of one dimension; None for all ranks.

    Raises:
        ValueError: it is something else, or this rank is not in it.
    """
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"the DeviceMesh given as group has {group.ndim} dimensions: give the one of data parallelism, such as "
                "mesh['dp']."
            )
        return group.get_group()
    if group is None or isinstance(group, dist.ProcessGroup):
        return group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not in the group that was given: make the engine on its members only.")
    raise ValueError(f"group is a {type(group).__name__}: give a ProcessGroup, a DeviceMesh, or None for all ranks.")


class Ranks:
    """A process group that no other code uses: collectives of the user's own may run at any time.

    Args:
        group: whose ranks; None for all.
        device: where the gradients are.
        timeout: seconds after which a collective fails.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device, timeout: float) -> None:
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.size = len(members)
        self._device = device
        self.rank = members.index(dist.get_rank())
        self._on_cpu = device.type == "cpu"
        backend = "gloo" if self._on_cpu else f"cpu:gloo,{device.type}:{_accelerators_backend(group, device)}"
        self.group: dist.ProcessGroup = dist.new_group(
            None if group is None else members,
            timeout=timedelta(seconds=timeout),
            backend=backend,
            use_local_synchronization=group is not None,
            group_desc="wavelet",
        )

    def check_alike(self, facts: Mapping[str, Any]) -> None:
        """Refuse to train together what differs.

        Raises:
            ValueError: naming the first fact in which a rank differs from rank 0, on every rank.
        """
        everyones: list[Any] = [None] * self.size
        dist.all_gather_object(everyones, dict(facts), group=self.group)
        for rank, theirs in enumerate(everyones):
            for name, value in everyones[0].items():
                if theirs.get(name) != value:
                    raise ValueError(
                        f"rank {rank} has {name}={theirs.get(name)!r} and rank 0 has {value!r}: all ranks must train "
                        "the same."
                    )

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Make ``tensors`` those of rank 0, in place."""
        with torch.no_grad():
            for tensor in tensors:
                whole = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                sent = whole.contiguous()
                dist.broadcast(sent, group=self.group, group_src=0)
                if sent.data_ptr() != whole.data_ptr():
                    whole.copy_(sent)

    def of_first(self, value: Any) -> Any:
        """What rank 0 has."""
        box = [value]
        dist.broadcast_object_list(box, group=self.group, group_src=0)
        return box[0]

    def link(self) -> tuple[float, float]:
        """Seconds that an all-reduce takes whatever its size, and for each byte more; as seen by this rank."""
        small, large = (self._all_reduce_seconds(numel) for numel in (256, 2**18))
        return small, max(0.0, large - small) / 2**20

    def _all_reduce_seconds(self, numel: int) -> float:
        tensor, found = torch.zeros(numel, device=self._device), []
        for _ in range(3):
            start = time.perf_counter()
            dist.all_reduce(tensor, group=self.group)
            tensor[0].item()  # a GPU is waited for
            found.append(time.perf_counter() - start)
        return min(found[1:])

    def transport_bytes(self, largest: int) -> int:
        """The most bytes on the device that the transport itself takes to sum tensors of up to ``largest`` bytes.

        Gloo sums a tensor in parts, and each of its threads has two of them in memory of its own (seen with memray).
        What NCCL takes is outside of torch's allocator, and not counted.
        """
        return NUM_GLOO_THREADS * min(2 * LARGEST_GLOO_PART, largest) if self._on_cpu else 0

    def leave(self) -> None:
        """The group is not used any more."""
        if dist.is_initialized():
            dist.destroy_process_group(self.group)


def _accelerators_backend(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """That of the user's group, where it has one for such devices: two ranks that share a GPU need gloo."""
    chosen = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return chosen.get(device.type) or str(dist.get_default_backend_for_device(device))
