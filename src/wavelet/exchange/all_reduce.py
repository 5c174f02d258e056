"""The choice of the ordered all-reduce: all ranks take the mean of their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from wavelet.exchange.channel import Channel
from wavelet.exchange.choice import Choice, check_number, check_whole
from wavelet.exchange.exchange import Exchange

__all__ = ["AllReduce"]

_COMPRESSIONS = (None, "bf16", "fp16", "powersgd")


@dataclass(frozen=True, eq=False)
class AllReduce(Choice):
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
        check_number("bucket_mb", self.bucket_mb, "a number of MB above 0")
        if self.compress not in _COMPRESSIONS:
            allowed = ", ".join(map(repr, _COMPRESSIONS))
            raise ValueError(f"compress={self.compress!r} is not known: use one of {allowed}.")
        if self.check_every is not None:
            check_whole("check_every", self.check_every)
        super().__post_init__()

    def make(self, channel: Channel) -> Exchange:
        from wavelet.exchange.ordered import OrderedAllReduce

        return OrderedAllReduce(self, channel)
