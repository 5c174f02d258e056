"""DreamDDP: every layer is averaged once a period, some at each update, beside its backward."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wavelet.exchange.buckets import Layout
from wavelet.exchange.channel import Channel
from wavelet.exchange.choice import Choice, Training, check_whole
from wavelet.exchange.exchange import Count, Exchange, Gradients, Setting
from wavelet.exchange.flight import Flight
from wavelet.exchange.local import Local
from wavelet.exchange.schedule import Schedule, Times
from wavelet.exchange.weights import copy_means

if TYPE_CHECKING:
    from wavelet.planning import PartialSyncPlan

__all__ = ["DreamDDP", "Partial"]


@dataclass(frozen=True, eq=False)
class DreamDDP(Choice):
    """Local SGD in which each layer is averaged once in ``period`` updates, hidden behind the backward.

    Tang et al., "DreamDDP: Accelerating Data Parallel Distributed LLM Training with Layer-wise Scheduled Partial
    Synchronization", MLSys 2026. When the gradient of a layer is there and its turn has come, the mean of that layer's
    weights over the ranks begins at once; the update then is w ← w̄ − U(g) for it, and the local one for the others. A
    layer is a stretch of parameters in backward order, of at least 256 KiB. `wavelet.planning.partial_sync` chooses
    which go when. With period 1 it is averaging delayed by one update, not the mean of gradients.

    Args:
        period: H, in updates of a wave's own.
        measure: plan from rank 0's measured seconds, and again when they drift by a quarter, so two runs may differ; a
            checkpoint keeps what was measured. False: plan from the sizes of layers alone, reproducibly.
        group: the ranks, as in `AllReduce`.
        timeout: in seconds, as in `AllReduce`.

    Raises:
        ValueError: an argument makes no sense.
    """

    period: int
    measure: bool = True

    def __post_init__(self) -> None:
        check_whole("period", self.period)
        if not isinstance(self.measure, bool):
            raise ValueError(f"measure={self.measure!r} makes no sense: use True or False.")
        super().__post_init__()

    def check(self, training: Training) -> None:
        if training.update == "delayed" and training.waves != 1:
            raise ValueError(
                "DreamDDP sends weights while the backward runs, and under update='delayed' those are not the newest: "
                "use update='neighbour' or 'synchronous', or LocalSGD."
            )

    def make(self, channel: Channel) -> Exchange:
        return Partial(channel, self.period, measures=self.measure)


class Partial(Local):
    """Mixes at each update what the schedule has for it.

    Args:
        channel: to the other ranks.
        period: H.
        measures: whether the schedule follows from measured times.
    """

    def __init__(self, channel: Channel, period: int, *, measures: bool) -> None:
        super().__init__(channel, None, 0, lambda num_samples: 1.0)
        self._updates, self._measures = period, measures
        self._schedules: dict[tuple[Times, tuple[bool, ...]], Schedule] = {}
        self._ready: deque[list[float]] = deque(maxlen=4 * period)  # of the last backwards
        self._planned = 0.0  # when
        self._sent: deque[float] = deque(maxlen=64)  # seconds a byte

    def attach(self, setting: Setting) -> None:
        super().attach(setting)
        self._link = self._channel.ranks.link() if self._measures else (0.0, 0.0)
        self._times = {0: Times.by_size(setting.weights[0], self._updates)}  # from which period on they count
        self._flights: list[Flight | None] = [None] * len(setting.weights)
        self._leaving: list[Flight | None] = [None] * len(setting.weights)
        self._started = [0.0] * len(setting.weights)
        self._seen_ready: list[dict[int, float]] = [{} for _ in setting.weights]
        for wave, weights in enumerate(setting.weights):
            for index, parameter in enumerate(weights):
                if parameter.is_floating_point() or parameter.is_complex():
                    trains = parameter.requires_grad
                    parameter.requires_grad_(True)  # or no hook can be registered
                    parameter.register_post_accumulate_grad_hook(self._hook(wave, index))
                    parameter.requires_grad_(trains)

    @property
    def plan(self) -> PartialSyncPlan | None:
        """Of the open period; None if nothing was ever trained."""
        return self.schedule(max(self._period), tuple(self._trained)).plan

    def schedule(self, period: int, trained: tuple[bool, ...]) -> Schedule:
        """What is sent in a period, of the weights that were ever trained."""
        times = self._times[max(since for since in self._times if since <= period)]
        if (times, trained) not in self._schedules:
            self._schedules[times, trained] = Schedule(times, self._setting.weights[0], trained, self._updates)
        return self._schedules[times, trained]

    def state_dict(self) -> dict[str, Any]:
        times = {str(since): each.numbers() for since, each in self._times.items()}
        return {**super().state_dict(), "times": times}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._times = {int(since): Times.of(numbers) for since, numbers in state["times"].items()}

    def _mixing_bytes(self, whole: int) -> int:
        return whole * len(self._setting.weights)  # a schedule may send everything at once, and each wave has a mixing

    def _begins(self, wave: int, trajectory: int) -> Count | None:
        pattern = self._patterns[wave]
        ends = self._phase[trajectory] == self._updates - 1
        if ends and self._buffers_ride(trajectory, self._period[trajectory]):
            self._buffers.want(wave)
        flight = self._open_next(wave, trajectory, self._numbers[wave], pattern, live=True)
        flight.must_be_known = pattern != self._last_pattern
        self._last_pattern = pattern
        self._flights[wave] = flight
        return flight

    @contextmanager
    def _backward(self, wave: int) -> Iterator[None]:
        flight = self._flights[wave]
        assert flight is not None
        self._leaving[wave], self._started[wave] = flight, time.perf_counter()
        try:
            yield
        finally:
            self._leaving[wave] = None
        self._complete(wave, flight)
        self._fell(wave, time.perf_counter() - self._started[wave])

    def _finish(self, wave: int, trajectory: int) -> None:
        flight, self._flights[wave] = self._flights[wave], None
        assert flight is not None
        if flight.must_be_known:  # at a flush nobody has asked
            self._weights.know(flight)
        self._mix(wave, trajectory, flight)

    def _updated(self, wave: int, trajectory: int) -> None:
        self._fresh[trajectory] = self._updates

    def _open_next(self, wave: int, trajectory: int, number: int, pattern: tuple[bool, ...], *, live: bool) -> Flight:
        period, phase = self._period[trajectory], self._phase[trajectory]
        self._phase[trajectory] = (phase + 1) % self._updates
        self._period[trajectory] += phase + 1 == self._updates
        layout = self.schedule(period, pattern).layouts[phase]
        ends = phase == self._updates - 1 and self._buffers_ride(trajectory, period)
        more = self._news(period) if trajectory == phase == 0 and self._measures else ()
        flight = self._open(wave, trajectory, number, layout, live=live, buffers=ends, more=more)
        flight.period = period
        return flight

    def _write(self, wave: int, trajectory: int, means: Gradients, *, closes: bool) -> None:
        copy_means(self._setting.weights[wave], means)

    def _layout(self, pattern: tuple[bool, ...]) -> Layout:
        return self.schedule(self._period[0], pattern).whole

    def _hook(self, wave: int, index: int) -> Callable[[Tensor], None]:
        def sent(parameter: Tensor) -> None:
            flight = self._leaving[wave]
            if flight is not None:
                self._seen_ready[wave][index] = time.perf_counter() - self._started[wave]
                with torch.no_grad():
                    self._weights.put(flight, wave, index)

        return sent

    # Measured times.

    def _fell(self, wave: int, seconds: float) -> None:
        """A backward is over; a gradient that it has not made counts as the last."""
        seen, self._seen_ready[wave] = self._seen_ready[wave], {}
        if self._measures and self._channel.ranks.rank == 0:
            self._ready.append([seen.get(index, seconds) for index in range(len(self._setting.weights[wave]))])

    def _mixed(self, trajectory: int, flight: Flight) -> None:
        super()._mixed(trajectory, flight)
        for number, bucket in enumerate(flight.parcel.layout.buckets, start=1):
            if number in flight.seconds:
                self._sent.append((flight.seconds[number] - self._link[0]) / (bucket.numel * bucket.dtype.itemsize))

    def _news(self, period: int) -> list[float]:
        """What the header tells all ranks: 1 and rank 0's new times, or zeros."""
        count = len(self._setting.weights[0])
        nothing = [0.0] * (2 * count + 3)
        ready = list(self._ready)
        if not ready or self._channel.ranks.rank != 0:
            return nothing
        typical = [median(each) for each in zip(*ready, strict=True)]
        order = sorted(range(count), key=lambda index: (typical[index], -index))
        per_byte = max(0.0, median(self._sent)) if self._sent else self._link[1]
        times = Times(tuple(order), tuple(typical), self._link[0], per_byte)
        before = self._times[max(self._times)]
        if len(self._times) > 1 and (not times.differs(before) or self._plans_too_often()):
            return nothing
        self._planned = time.perf_counter()
        return [1.0, *times.numbers()]

    def _plans_too_often(self) -> bool:
        """Whether planning, which takes up to a second, would take more than a hundredth of the time."""
        longest = max((each.planning_seconds for each in self._schedules.values()), default=0.0)
        return time.perf_counter() - self._planned < 100 * longest

    def _learn(self, trajectory: int, flight: Flight, told: Tensor) -> None:
        if len(told) and told[0]:
            # Other waves may still be in this period: what is learned counts in the next one.
            self._times[flight.period + 1] = Times.of(told[1:].tolist())
            for since in sorted(self._times)[:-2]:
                del self._times[since]
