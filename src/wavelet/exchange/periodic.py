"""All weights are mixed at once, at the end of a period: what local SGD and its relatives do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from wavelet.exchange.buckets import Layout
from wavelet.exchange.channel import Channel
from wavelet.exchange.exchange import Count, Exchange, Gradients
from wavelet.exchange.flight import Flight
from wavelet.exchange.local import Local
from wavelet.exchange.weights import copy_means

__all__ = ["Averaging", "Clock", "Outer", "Periodic"]

_BUCKET_BYTES = 25 * 2**20


class Outer:
    """The step that is made with the mean of all ranks' weights."""

    def begins(self, trajectory: int, weights: Sequence[nn.Parameter]) -> None:
        """An update is about to be made on ``weights``; the first one starts from what all ranks have."""
        return

    weights_kept: int = 0
    """How many times the weights of each trajectory are kept or made for a step."""

    @abstractmethod
    def step(self, trajectory: int, weights: Sequence[nn.Parameter], means: Gradients, *, closes: bool) -> None:
        """Write the weights that ranks go on with; ``closes``: nobody knows when."""

    def left_open(self, trajectory: int, weights: Sequence[nn.Parameter]) -> None:
        """A flush comes right after a step."""
        return

    def state_dict(self) -> dict[str, Any]:
        """What is kept from step to step: the tensors themselves."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        return


class Averaging(Outer):
    """All ranks go on with the mean."""

    def step(self, trajectory: int, weights: Sequence[nn.Parameter], means: Gradients, *, closes: bool) -> None:
        copy_means(weights, means)


class Clock:
    """How many updates a period has, on this rank.

    Args:
        period: that number; or a function that gives it for the period 0, 1, ….
    """

    def __init__(self, period: int | Callable[[int], int]) -> None:
        self._period = period

    def __call__(self, number: int) -> int:
        """The updates of period ``number``.

        Raises:
            ValueError: the user's function gave no whole number of at least 1.
        """
        if not callable(self._period):
            return self._period
        updates = self._period(number)
        if not isinstance(updates, int) or isinstance(updates, bool) or updates < 1:
            raise ValueError(f"period({number}) gave {updates!r}: give a whole number of updates, at least 1.")
        return updates

    def starts(self, number: int, phase: int) -> None:
        """Update ``phase`` of period ``number`` begins, in the caller's thread."""
        return

    def ends(self, number: int) -> Sequence[float]:
        """The last update of period ``number`` is made; gives numbers of which all ranks are to know the sum."""
        return ()

    def joins(self, number: int) -> Sequence[float]:
        """As `ends`, on a rank that had no updates."""
        return ()

    def learn(self, number: int, told: Tensor) -> None:
        """Those sums."""
        return

    def state_dict(self) -> dict[str, Any]:
        """What later periods depend on."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        return


class Periodic(Local):
    """Mixes all weights after the last update of a period, in its turn; the other waves compute meanwhile.

    Args:
        channel, warm_up, num_warm, weigh: as for `Local`.
        clock: how long periods are.
        outer: what is made of the mean.
    """

    def __init__(
        self,
        channel: Channel,
        warm_up: Exchange | None,
        num_warm: int,
        weigh: Callable[[int], float],
        clock: Clock,
        outer: Outer,
    ) -> None:
        super().__init__(channel, warm_up, num_warm, weigh)
        self._clock, self._outer = clock, outer
        self._layouts: dict[tuple[bool, ...], Layout] = {}
        self._due: dict[int, int] = {}  # waves whose coming update is the last of a period, with its number

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "clock": self._clock.state_dict(), "outer": self._outer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._clock.load_state_dict(state["clock"])
        self._outer.load_state_dict(state["outer"])

    def _mixing_bytes(self, whole: int) -> int:
        return whole * (1 + self._outer.weights_kept * self._setting.num_trajectories)  # in turns one is under way

    def _begins(self, wave: int, trajectory: int) -> Count | None:
        number, phase = self._period[trajectory], self._phase[trajectory]
        if trajectory == 0:
            self._clock.starts(number, phase)
        self._phase[trajectory] += 1
        if self._phase[trajectory] >= self._clock(number):
            self._phase[trajectory] = 0
            self._period[trajectory] += 1
            self._due[wave] = number
            if self._buffers_ride(trajectory, number):
                self._buffers.want(wave)
        return None

    def _finish(self, wave: int, trajectory: int) -> None:
        newest = self._wave(trajectory, self._setting.newest())
        self._outer.begins(trajectory, self._setting.weights[newest])

    def _updated(self, wave: int, trajectory: int) -> None:
        self._fresh[trajectory] = 1
        period = self._due.pop(wave, None)
        if period is not None:
            pattern = self._patterns[wave]
            flight = self._mixing(wave, trajectory, period, self._numbers[wave], pattern, live=True)
            self._check_pattern(pattern, flight)
            self._mix(wave, trajectory, flight)

    def _open_next(self, wave: int, trajectory: int, number: int, pattern: tuple[bool, ...], *, live: bool) -> Flight:
        period = self._period[trajectory]
        self._period[trajectory] += 1
        return self._mixing(wave, trajectory, period, number, pattern, live=live)

    def _mixing(
        self, wave: int, trajectory: int, period: int, number: int, pattern: tuple[bool, ...], *, live: bool
    ) -> Flight:
        more = (self._clock.ends(period) if live else self._clock.joins(period)) if trajectory == 0 else ()
        ride = self._buffers_ride(trajectory, period)
        flight = self._open(wave, trajectory, number, self._layout(pattern), live=live, buffers=ride, more=more)
        flight.period = period
        return flight

    def _learn(self, trajectory: int, flight: Flight, told: Tensor) -> None:
        if trajectory == 0:
            self._clock.learn(flight.period, told)

    def _write(self, wave: int, trajectory: int, means: Gradients, *, closes: bool) -> None:
        self._outer.step(trajectory, self._setting.weights[wave], means, closes=closes)

    def _left_open(self, wave: int, trajectory: int) -> None:
        self._outer.left_open(trajectory, self._setting.weights[wave])

    def _layout(self, pattern: tuple[bool, ...]) -> Layout:
        if pattern not in self._layouts:
            own = [index for index in reversed(range(len(pattern))) if pattern[index]]
            self._layouts[pattern] = Layout(self._setting.weights[0], own, _BUCKET_BYTES)
        return self._layouts[pattern]
