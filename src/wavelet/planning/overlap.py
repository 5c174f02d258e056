"""What one iteration of layer-wise synchronisation waits for: communication that the backward does not hide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from numbers import Real
from typing import Any, NamedTuple

__all__ = ["LayerTimes", "OtherWaits", "Sending", "exposed_seconds", "other_waits"]


class Sending(NamedTuple):
    """One layer on the link.

    Args:
        layer: its index in backward order.
        start: in seconds from the beginning of the backward.
        end: likewise.
    """

    layer: int
    start: float
    end: float


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of each layer, in backward order.

    Everything here adds up from left to right, so that every process gets the same bits from the same numbers.

    Args:
        backward_seconds: of each layer's backward.
        communication_seconds: of sending each layer, alone on the link.
    """

    backward_seconds: tuple[float, ...]
    communication_seconds: tuple[float, ...]

    @classmethod
    def of(cls, backward_seconds: Sequence[float], communication_seconds: Sequence[float]) -> LayerTimes:
        """The times that a user gave.

        Raises:
            ValueError: there is no layer, the lengths differ, or an entry is no finite number from 0 on.
        """
        backward = _seconds("backward_seconds", backward_seconds)
        communication = _seconds("communication_seconds", communication_seconds)
        if len(backward) != len(communication):
            raise ValueError(
                f"backward_seconds has {len(backward)} entries and communication_seconds {len(communication)}: "
                "give one of each for every layer."
            )
        if not math.isfinite(2 * (_last(accumulate(backward)) + _last(accumulate(communication)))):
            raise ValueError("the seconds of all layers are too large to add up: give them in seconds.")
        return cls(backward, communication)

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.backward_seconds)

    @cached_property
    def ready(self) -> tuple[float, ...]:
        """When each layer's gradient is there, in seconds from the beginning of the backward."""
        return tuple(accumulate(self.backward_seconds))

    def sendings(self, layers: Iterable[int]) -> Iterator[Sending]:
        """What is on the link when: one layer after the other, each once its gradient is there.

        Args:
            layers: to be sent in one iteration, ascending.
        """
        free = 0.0
        for layer in layers:
            start = max(free, self.ready[layer])
            free = start + self.communication_seconds[layer]
            yield Sending(layer, start, free)

    def exposed(self, layers: Iterable[int]) -> float:
        """Seconds from the end of the backward until the last of ``layers``, ascending, is sent; 0 if it is before."""
        ready, communication = self.ready, self.communication_seconds
        free = 0.0
        for layer in layers:  # the search spends its time here: as `sendings`, without objects
            start = ready[layer]
            free = (free if free > start else start) + communication[layer]
        return max(0.0, free - ready[-1])

    def scaled(self) -> LayerTimes:
        """The same times in a unit of about their sum: a power of two, by which dividing changes no bit."""
        largest = max(self.ready[-1], _last(accumulate(self.communication_seconds)))
        power = math.frexp(largest)[1] - 1
        return LayerTimes(
            tuple(math.ldexp(seconds, -power) for seconds in self.backward_seconds),
            tuple(math.ldexp(seconds, -power) for seconds in self.communication_seconds),
        )


class OtherWaits(NamedTuple):
    """What synchronising every layer at once costs, in seconds that are waited in one period.

    Args:
        every_iteration: all layers in each iteration, each sent while the backward goes on, as data parallelism does.
        end_of_period: all layers once, after the period's last backward and beside nothing, as local SGD does.
    """

    every_iteration: float
    end_of_period: float


def exposed_seconds(
    backward_seconds: Sequence[float], communication_seconds: Sequence[float], layers: Iterable[int]
) -> float:
    """Seconds that an iteration waits after its backward for the layers that it sends.

    Layers go over one link, in backward order, each once its gradient is there and the link is free.

    Args:
        backward_seconds: of each layer's backward, in backward order.
        communication_seconds: of sending each layer, in backward order.
        layers: the indices of the layers that are sent, from 0, in any order.

    Raises:
        ValueError: the seconds make no sense (see `partial_sync`), or a layer is not there or named twice.
    """
    times = LayerTimes.of(backward_seconds, communication_seconds)
    chosen = sorted(layers)
    for layer, before in zip(chosen, (-1, *chosen), strict=False):
        if not isinstance(layer, int) or isinstance(layer, bool) or not 0 <= layer < times.num_layers:
            raise ValueError(f"layer {layer!r} is not there: use indices from 0 to {times.num_layers - 1}.")
        if layer == before:
            raise ValueError(f"layer {layer} is named twice: name each layer once.")
    return times.exposed(chosen)


def other_waits(backward_seconds: Sequence[float], communication_seconds: Sequence[float], period: int) -> OtherWaits:
    """What a period would wait if every layer were synchronised at once: to compare a plan with.

    Args:
        backward_seconds: as in `partial_sync`.
        communication_seconds: likewise.
        period: likewise.

    Raises:
        ValueError: as in `partial_sync`.
    """
    check_period(period)
    times = LayerTimes.of(backward_seconds, communication_seconds)
    return OtherWaits(
        every_iteration=period * times.exposed(range(times.num_layers)),
        end_of_period=_last(accumulate(times.communication_seconds)),
    )


def check_period(period: object) -> None:
    """Refuse what is no number of iterations.

    Raises:
        ValueError: it is no whole number of at least 1.
    """
    if not isinstance(period, int) or isinstance(period, bool) or period < 1:
        raise ValueError(f"period={period!r} makes no sense: use a whole number of iterations of at least 1.")


def _seconds(name: str, values: Sequence[Any]) -> tuple[float, ...]:
    entries = tuple(values)
    if not entries:
        raise ValueError(f"{name} is empty: give the seconds of at least one layer.")
    for index, value in enumerate(entries):
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name}[{index}] is {value!r}: use a finite number of seconds, 0 or more.")
    return tuple(map(float, entries))


def _last(sums: Iterable[float]) -> float:
    *_, last = sums
    return last
