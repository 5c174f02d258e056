"""Biased local SGD: slow ranks make fewer updates a period, so that all of them are there at the same time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from wavelet.exchange.channel import Channel
from wavelet.exchange.choice import Training, check_each, check_whole
from wavelet.exchange.local_sgd import LocalSGD
from wavelet.exchange.periodic import Clock

__all__ = ["BiasedLocalSGD", "MeasuredClock"]

_MEASURED = 1  # the period in which speeds are measured: in the one before, everything is set up
_LONGEST = 10  # updates of those two periods, on every rank


@dataclass(frozen=True, eq=False)
class BiasedLocalSGD(LocalSGD):
    """Local SGD in which each rank makes as many updates a period as it can while the fastest makes ``period``.

    Lim et al., "Biased Local SGD", 2025, whose slow ranks also train on what has the highest loss: give them a
    `HighLossSampler`. The mean of the weights stays unweighted. Intervals in the paper: 32 (fast) and 1 (slow).

    Speeds are measured in the second period (the first two have at most 10 updates on every rank), so two runs may
    differ; a checkpoint keeps what was measured. With ``periods`` nothing is measured, and runs are reproducible.

    The other arguments are those of `LocalSGD`.

    Args:
        period: H of the fastest rank, in updates of a wave's own.
        periods: H of each rank, in place of measuring; the largest of them is ``period``.

    Raises:
        ValueError: an argument makes no sense.
    """

    periods: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.weights is not None:
            raise ValueError("BiasedLocalSGD takes the plain mean: leave weights out, or use LocalSGD with it.")
        if callable(self.period):
            raise ValueError("BiasedLocalSGD needs a whole number as period: use LocalSGD for a schedule.")
        if self.periods is not None:
            check_each("periods", self.periods, check_whole)
            if not self.periods or max(self.periods) != self.period:
                raise ValueError(
                    f"the largest of periods={list(self.periods)!r} is that of the fastest rank: it must be "
                    f"period={self.period}."
                )
        super().__post_init__()

    def check(self, training: Training) -> None:
        super().check(training)
        if self.periods is not None and len(self.periods) != training.num_ranks:
            raise ValueError(
                f"periods has {len(self.periods)} numbers for {training.num_ranks} ranks: give one a rank."
            )

    def _clock(self, channel: Channel) -> Clock:
        if self.periods is not None:
            return Clock(self.periods[channel.ranks.rank])
        assert isinstance(self.period, int)
        return MeasuredClock(self.period, channel.ranks.rank, channel.ranks.size)


class MeasuredClock(Clock):
    """Periods by the speed of each rank.

    Args:
        period: H of the fastest.
        rank: this one.
        num_ranks: of all.
    """

    def __init__(self, period: int, rank: int, num_ranks: int) -> None:
        super().__init__(period)
        self._rank, self._num_ranks = rank, num_ranks
        self._fastest, self._first = period, min(period, _LONGEST)
        self._own: int | None = None
        self._started = 0.0

    def __call__(self, number: int) -> int:
        # What is measured counts two periods later, when every wave of this rank has ended the one in between.
        return self._first if number <= _MEASURED + 1 or self._own is None else self._own

    def starts(self, number: int, phase: int) -> None:
        # In the first half, waves that mix after this one may still wait for slower ranks.
        if number == _MEASURED and phase == self._first // 2:
            self._started = time.perf_counter()

    def ends(self, number: int) -> Sequence[float]:
        seconds = [0.0] * (self._num_ranks if number == _MEASURED else 0)
        if seconds:
            seconds[self._rank] = time.perf_counter() - self._started
        return seconds

    def joins(self, number: int) -> Sequence[float]:
        return [0.0] * (self._num_ranks if number == _MEASURED else 0)

    def learn(self, number: int, told: Tensor) -> None:
        if number == _MEASURED:
            seconds = told.tolist()
            fastest, own = min((each for each in seconds if each > 0), default=1.0), seconds[self._rank]
            # A rank that was not there in that period makes as many as the fastest.
            self._own = max(1, int(self._fastest * fastest / own)) if own > 0 else self._fastest

    def state_dict(self) -> dict[str, Any]:
        return {"own": self._own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._own = state["own"]
