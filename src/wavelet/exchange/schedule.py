"""Which weights each update of a period sends: DreamDDP's plan, made from what was measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from torch import nn

from wavelet.exchange import buckets
from wavelet.exchange.buckets import Layout

if TYPE_CHECKING:
    from wavelet.planning import PartialSyncPlan

__all__ = ["Schedule", "Times"]

_MOST_LAYERS = 64  # more would make planning slow, and hide no more


@dataclass(frozen=True)
class Times:
    """What a plan is made from.

    Args:
        order: the numbers of all parameters, as backward makes their gradients.
        ready: for each parameter of the model, the seconds of a backward after which its gradient is there.
        latency: seconds of an all-reduce, whatever its size.
        seconds_per_byte: of an all-reduce.
    """

    order: tuple[int, ...]
    ready: tuple[float, ...]
    latency: float
    seconds_per_byte: float

    @classmethod
    def by_size(cls, parameters: Sequence[nn.Parameter], period: int) -> Times:
        """Nothing is measured: a backward takes as long as sending ``1 / period`` of the weights."""
        order = tuple(reversed(range(len(parameters))))
        sums = list(accumulate(parameters[index].nbytes for index in order))
        return cls(order, tuple(float(each) for each in reversed(sums)), 0.0, float(period))

    def numbers(self) -> list[float]:
        """As `of` takes them."""
        return [*map(float, self.order), *self.ready, self.latency, self.seconds_per_byte]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Times:
        """From what `numbers` gave."""
        count = (len(numbers) - 2) // 2
        order = tuple(int(each) for each in numbers[:count])
        return cls(order, tuple(numbers[count : 2 * count]), numbers[-2], numbers[-1])

    def differs(self, other: Times) -> bool:
        """Whether a plan made from ``other`` may be no good plan for this."""
        return any(
            not 1 / _DRIFT < (mine + 1e-12) / (theirs + 1e-12) < _DRIFT
            for mine, theirs in (
                (max(self.ready), max(other.ready)),
                (self.seconds_per_byte, other.seconds_per_byte),
            )
        )


_DRIFT = 1.25


class Schedule:
    """What is sent at each update of a period.

    Args:
        times: of the parameters.
        parameters: of the model.
        trained: which of them were ever trained.
        period: H.
    """

    def __init__(self, times: Times, parameters: Sequence[nn.Parameter], trained: Sequence[bool], period: int) -> None:
        from wavelet.planning import partial_sync

        own = [index for index in times.order if trained[index]]
        most = max(buckets.LEAST_BYTES, sum(parameters[index].nbytes for index in own) // _MOST_LAYERS)
        self.whole = Layout(parameters, own, most)
        self.plan: PartialSyncPlan | None = None  # of a model that trains nothing
        self.planning_seconds = 0.0
        if not self.whole.buckets:
            self.layouts = [self.whole] * period
            return
        ready = accumulate(
            (max(times.ready[slot.index] for slot in bucket.slots) for bucket in self.whole.buckets), max, initial=0.0
        )
        backward = [later - sooner for sooner, later in pairwise(ready)]
        sent = [bucket.numel * bucket.dtype.itemsize for bucket in self.whole.buckets]
        start = time.perf_counter()
        self.plan = partial_sync(
            backward, [times.latency + times.seconds_per_byte * num_bytes for num_bytes in sent], period
        )
        self.planning_seconds = time.perf_counter() - start
        self.layouts = [self.whole.only(layers) for layers in self.plan.assignment]
