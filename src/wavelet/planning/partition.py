"""Layers divided among iterations in stretches: the division that waits least, exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavelet.planning.overlap import LayerTimes

__all__ = ["Array", "Parts", "contiguous_parts", "waits_of"]

Array = NDArray[np.float64]

Parts = list[list[int]]
"""For each iteration its layers, ascending; none is in two of them."""


def waits_of(times: LayerTimes, parts: Parts) -> list[float]:
    """What each iteration waits, in seconds."""
    return [times.exposed(part) for part in parts]


def contiguous_parts(times: LayerTimes, num_parts: int) -> Parts:
    """The stretches of layers, in order, whose waits have the least sum; a stretch may be empty.

    A dynamic programme over the ends of the stretches: L² steps for each stretch, and L² numbers in memory.

    Args:
        times: of all layers.
        num_parts: how many stretches.
    """
    waits = _waits(times)
    ends = np.arange(times.num_layers + 1)
    least = waits[0]
    begins = []
    for _ in range(num_parts - 1):
        total = least[:, None] + waits
        begin = total.argmin(axis=0)
        begins.append(begin)
        least = total[begin, ends]
    end = times.num_layers
    parts: Parts = []
    for begin in reversed(begins):
        parts.append(list(range(int(begin[end]), end)))
        end = int(begin[end])
    parts.append(list(range(end)))
    return parts[::-1]


def _waits(times: LayerTimes) -> Array:
    """Entry (i, j): what all layers from i on and before j wait together; infinite for i > j."""
    num_layers = times.num_layers
    waits = np.full((num_layers + 1, num_layers + 1), np.inf)
    np.fill_diagonal(waits, 0)
    free = np.zeros(num_layers)
    for layer, seconds in enumerate(times.communication_seconds):
        begun = slice(layer + 1)
        free[begun] = np.maximum(free[begun], times.ready[layer]) + seconds
        waits[begun, layer + 1] = np.maximum(free[begun] - times.ready[-1], 0)
    return waits
