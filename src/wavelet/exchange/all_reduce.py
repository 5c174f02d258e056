"""The choice of an exchange: all ranks take the mean of their gradients, or each trains alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist

from wavelet.exchange.ranks import group_of

__all__ = ["AllReduce"]

_COMPRESSIONS = (None, "bf16", "fp16", "powersgd")


@dataclass(frozen=True, eq=False)
class AllReduce:
    """Every update uses the mean gradient of all ranks, each batch's sent once and in one order everywhere.

    Gradients leave in buckets while the backward still runs; the next batch computes meanwhile (Wavelet, MLSys 2021,
    sends each twice; here the sum over predecessors is formed on each rank).

    Args:
        group: the ranks, as a ProcessGroup or a DeviceMesh of one dimension; None for all. The engine makes a process
            group of its own among them.
        bucket_mb: MB (2²⁰ bytes) of gradients after which a bucket is closed; a model of less than eight times that is
            cut into about eight, of at least 256 KiB.
        compress: ``"bf16"`` or ``"fp16"``, with error feedback, or ``"powersgd"`` (rank 1, after 10 exchanges).
        check_every: exchanges after which the ranks compare their weights; None for never.
        timeout: seconds after which a rank that does not take part is given up. Below the engine's ``timeout``.

    Raises:
        ValueError: an argument makes no sense.
    """

    group: Any = None
    bucket_mb: float = 25
    compress: Literal["bf16", "fp16", "powersgd"] | None = None
    check_every: int | None = None
    timeout: float = 60

    def __post_init__(self) -> None:
        if not _is_number(self.bucket_mb) or not 0 < self.bucket_mb < float("inf"):
            raise ValueError(f"bucket_mb={self.bucket_mb!r} makes no sense: use a number of MB above 0.")
        if self.compress not in _COMPRESSIONS:
            allowed = ", ".join(map(repr, _COMPRESSIONS))
            raise ValueError(f"compress={self.compress!r} is not known: use one of {allowed}.")
        every: object = self.check_every
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
            raise ValueError(f"check_every={every!r} makes no sense: use a whole number of at least 1, or None.")
        if not _is_number(self.timeout) or not 0 < self.timeout < float("inf"):
            raise ValueError(f"timeout={self.timeout!r} makes no sense: use a number of seconds above 0.")
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "AllReduce needs torch.distributed: call torch.distributed.init_process_group() first, in a process "
                "that torchrun has started."
            )
        group_of(self.group)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
