"""The plan of layer-wise partial synchronisation: which layers each iteration of a period sends while it goes on.

Local SGD synchronises all layers at the end of a period, beside nothing. DreamDDP (Tang et al., "DreamDDP: Accelerating
Data Parallel Distributed LLM Training with Layer-wise Scheduled Partial Synchronization", MLSys 2026) gives each
iteration some of the layers, so that their communication hides behind the iteration's backward.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wavelet.planning.beam import beam_parts
from wavelet.planning.filling import filled
from wavelet.planning.overlap import LayerTimes, OtherWaits, check_period, other_waits
from wavelet.planning.partition import Parts, contiguous_parts, waits_of
from wavelet.planning.trades import SAME, traded
from wavelet.profiling.loading import check_numbers, reading

__all__ = ["PartialSyncPlan", "partial_sync"]

Layers = tuple[int, ...]


@dataclass(frozen=True)
class PartialSyncPlan:
    """Which layers each iteration of a period sends, and what that makes it wait.

    Layers are counted from 0 in backward order: layer 0 is the first whose gradient is there.

    Args:
        backward_seconds: of each layer, as planned for.
        communication_seconds: likewise.
        assignment: for each iteration all layers that it sends, in the order in which it sends them: ascending.
        extra: for each iteration those of them that are sent early, in time that the link has left; every layer is in
            exactly one iteration that does not count it here.
        waits: for each iteration the seconds from the end of its backward until the last of its layers is sent.
        contiguous_wait_seconds: the least that a period can wait if each iteration's own layers are a stretch.
        optimal: whether it was shown that no division of the layers waits less (up to 1e-9 of it). False says only
            that it was not shown.
    """

    backward_seconds: tuple[float, ...]
    communication_seconds: tuple[float, ...]
    assignment: tuple[Layers, ...]
    extra: tuple[Layers, ...]
    waits: tuple[float, ...]
    contiguous_wait_seconds: float
    optimal: bool

    @property
    def period(self) -> int:
        """H: after so many iterations it begins anew."""
        return len(self.assignment)

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.backward_seconds)

    @property
    def wait_seconds(self) -> float:
        """What all iterations of a period wait together."""
        return math.fsum(self.waits)

    @property
    def improved(self) -> bool:
        """Whether it waits less than the best division into stretches; otherwise it is that one."""
        return self.wait_seconds < self.contiguous_wait_seconds * (1 - SAME)

    @property
    def times(self) -> LayerTimes:
        """What it was planned from."""
        return LayerTimes(self.backward_seconds, self.communication_seconds)

    @property
    def others(self) -> OtherWaits:
        """What a period would wait if every layer were synchronised at once."""
        return other_waits(self.backward_seconds, self.communication_seconds, self.period)

    def to_json(self) -> dict[str, Any]:
        """Plain values that `from_json` takes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> PartialSyncPlan:
        """The plan that `to_json` gave.

        Raises:
            ValueError: there are fields missing, or others, or the plan does not keep what it says.
        """
        with reading(fields, "PartialSyncPlan") as values:
            for name in ("backward_seconds", "communication_seconds", "waits"):
                check_numbers({f"{name}[{index}]": value for index, value in enumerate(values[name])})
                values[name] = tuple(map(float, values[name]))
            for name in ("assignment", "extra"):
                values[name] = tuple(map(tuple, values[name]))
            plan = cls(**values)
            plan._check()
            return plan

    def _check(self) -> None:
        """Trust no file: send everything again.

        Raises:
            ValueError: the plan was changed after it was made.
        """
        check_numbers({"contiguous_wait_seconds": self.contiguous_wait_seconds})
        if not isinstance(self.optimal, bool):
            raise ValueError(f"'optimal' is {self.optimal!r}")
        if not self.num_layers == len(self.communication_seconds) > 0:
            raise ValueError("its layers have no times, or not both")
        if not self.period == len(self.extra) == len(self.waits) > 0:
            raise ValueError("its 'assignment', 'extra' and 'waits' are not for the same number of iterations")
        own = []
        for layers, extra in zip(self.assignment, self.extra, strict=True):
            for chosen in (layers, extra):
                whole = all(isinstance(layer, int) and not isinstance(layer, bool) for layer in chosen)
                if not whole or list(chosen) != sorted(set(chosen)) or not set(chosen) <= set(range(self.num_layers)):
                    raise ValueError(f"its {chosen!r} are not the indices of layers, ascending")
            if not set(extra) <= set(layers):
                raise ValueError(f"its 'extra' layers {extra!r} are not among those of their iteration")
            own += sorted(set(layers) - set(extra))
        if sorted(own) != list(range(self.num_layers)):
            raise ValueError("its iterations do not have every layer once, besides those that are 'extra'")
        if self.waits != tuple(self.times.exposed(layers) for layers in self.assignment):
            raise ValueError("its 'waits' are not those of its layers")
        if self.wait_seconds > self.contiguous_wait_seconds * (1 + SAME):
            raise ValueError("its 'contiguous_wait_seconds' are less than it waits")

    def __str__(self) -> str:
        from wavelet.report.partial_sync import partial_sync_text

        return partial_sync_text(self)


def partial_sync(
    backward_seconds: Sequence[float], communication_seconds: Sequence[float], period: int
) -> PartialSyncPlan:
    """Divide layers among the iterations of a period so that the period waits least for communication.

    An iteration sends its layers over one link, in backward order, each once its gradient is there and the link is
    free; it waits from the end of its backward until the last one is sent. First comes the division into stretches of
    layers that waits least, which is exact. Then divisions of any kind are searched, and one is taken if it waits
    less: of few layers all of them, of more the promising ones, with moves and swaps after that. At last the link's
    idle time is filled with layers that are sent early, as long as no iteration waits longer: those whose replicas
    have drifted apart for longest and would go on to, see `wavelet.planning.filling.filled`.

    The same numbers give the same plan in every process: nothing is random, and nothing is timed.

    Args:
        backward_seconds: of each layer's backward, in backward order: the first entry is the layer whose gradient is
            there first, which is the model's last.
        communication_seconds: of sending each layer, in backward order.
        period: H, the number of iterations within which each layer is sent at least once. With 1, every iteration
            sends every layer.

    Raises:
        ValueError: there is no layer, the lengths differ, an entry is no finite number from 0 on, or the period is no
            whole number of at least 1.
    """
    check_period(period)
    times = LayerTimes.of(backward_seconds, communication_seconds)
    stretches, parts, optimal = _divide(times, min(period, times.num_layers))
    parts = sorted((part for part in parts if part), key=min)
    parts += [[] for _ in range(period - len(parts))]
    extra = filled(times, parts)
    return PartialSyncPlan(
        backward_seconds=times.backward_seconds,
        communication_seconds=times.communication_seconds,
        assignment=tuple(tuple(sorted(part + more)) for part, more in zip(parts, extra, strict=True)),
        extra=tuple(map(tuple, extra)),
        waits=tuple(waits_of(times, [sorted(part + more) for part, more in zip(parts, extra, strict=True)])),
        contiguous_wait_seconds=_total(times, stretches),
        optimal=optimal,
    )


def _divide(times: LayerTimes, num_parts: int) -> tuple[Parts, Parts, bool]:
    """The best division into stretches, the best that was found, and whether that is known to be the best of all."""
    scaled = times.scaled()
    stretches = contiguous_parts(scaled, num_parts)
    least = _total(scaled, stretches)
    if num_parts == 1 or least == 0:
        return stretches, stretches, True
    worth = least * (1 - SAME)
    found, complete = beam_parts(scaled, num_parts, worth)
    if complete:
        return stretches, found or stretches, True
    best = traded(scaled, found or stretches)
    return stretches, best if _total(scaled, best) < worth else stretches, False


def _total(times: LayerTimes, parts: Parts) -> float:
    return math.fsum(waits_of(times, parts))
