"""Local SGD: each rank steps alone, and all take the mean of their weights every H updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from wavelet.exchange.all_reduce import AllReduce
from wavelet.exchange.channel import Channel
from wavelet.exchange.choice import Choice, Training, check_each, check_number, check_whole
from wavelet.exchange.exchange import Exchange
from wavelet.exchange.ordered import OrderedAllReduce
from wavelet.exchange.periodic import Averaging, Clock, Outer, Periodic

__all__ = ["LocalSGD", "pr_sgd_period"]

Weighting = Literal["samples"] | Sequence[float] | None


@dataclass(frozen=True, eq=False)
class LocalSGD(Choice):
    """Ranks step with their own gradients, and take the mean of their weights every ``period`` updates.

    Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; with ``warmup`` it is post-local SGD (Lin,
    Stich, Patel, Jaggi, ICLR 2020), with ``weights="samples"`` the BSP of Li et al. 2017. Replica k is mixed with
    replica k of the other ranks; optimizer states stay with their rank; buffers of floating-point numbers are mixed
    with trajectory 0, integers stay. A flush takes the mean too, so all ranks then have the same model.

    Args:
        period: H, in updates of a wave's own; or a function that gives H for period 0, 1, ….
        warmup: updates that all ranks first make together, with the mean of their gradients.
        weights: None for the plain mean; ``"samples"``: each rank counts by the samples that it has seen since the last
            mean (the length of a batch's first tensor); or one number a rank.
        group: the ranks, as in `AllReduce`.
        timeout: in seconds, as in `AllReduce`; longer than the slowest rank's period.

    Raises:
        ValueError: an argument makes no sense.
    """

    period: int | Callable[[int], int]
    warmup: int = 0
    weights: Weighting = None

    def __post_init__(self) -> None:
        if not callable(self.period):
            check_whole("period", self.period)
        check_whole("warmup", self.warmup, least=0)
        if self.weights is not None and self.weights != "samples":
            check_each("weights", self.weights, lambda name, value: check_number(name, value, "a number above 0"))
        super().__post_init__()

    def check(self, training: Training) -> None:
        given = self.weights
        if given is not None and given != "samples" and len(given) != training.num_ranks:
            raise ValueError(f"weights has {len(given)} numbers for {training.num_ranks} ranks: give one a rank.")

    def make(self, channel: Channel) -> Exchange:
        warm_up = OrderedAllReduce(AllReduce(self.group, timeout=self.timeout), channel) if self.warmup else None
        return Periodic(channel, warm_up, self.warmup, self._share(channel), self._clock(channel), self._outer(channel))

    def _share(self, channel: Channel) -> Callable[[int], float]:
        given, rank = self.weights, channel.ranks.rank
        if given is None:
            return lambda num_samples: 1.0
        if given == "samples":
            return lambda num_samples: float(max(1, num_samples))
        return lambda num_samples: float(given[rank])

    def _clock(self, channel: Channel) -> Clock:
        return Clock(self.period)

    def _outer(self, channel: Channel) -> Outer:
        return Averaging()


def pr_sgd_period(num_updates: int, num_ranks: int) -> int:
    """The longest period that keeps the rate O(1/√(NT)): T^¼ / N^¾, rounded down, at least 1.

    Yu, Yang, Zhu, "Parallel Restarted SGD with Faster Convergence and Less Communication", AAAI 2019.

    Args:
        num_updates: T, that each rank makes in all.
        num_ranks: N.

    Raises:
        ValueError: one of them is below 1.
    """
    check_whole("num_updates", num_updates)
    check_whole("num_ranks", num_ranks)
    return max(1, int(num_updates**0.25 / num_ranks**0.75 + 1e-9))
