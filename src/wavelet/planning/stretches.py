"""Layers divided among the iterations of a period, in stretches: the division that waits least for communication."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from wavelet.planning.cluster import Floats

__all__ = ["stretches", "wait_of"]


def wait_of(backward_seconds: Sequence[float], communication_seconds: Sequence[float], layers: Sequence[int]) -> float:
    """Seconds from the end of a backward until the last of these layers is sent: max(0, C_last − B_L).

    Each is sent once its backward B_i and the layer before it are done: C_i = max(B_i, C_before) + c_i.

    Args:
        backward_seconds: of each layer, in backward order.
        communication_seconds: of each layer, in backward order.
        layers: their numbers from 0, ascending.
    """
    done = list(accumulate(backward_seconds))
    sent = 0.0
    for layer in layers:
        sent = max(done[layer], sent) + communication_seconds[layer]
    return max(0.0, sent - done[-1])


def stretches(
    backward_seconds: Sequence[float], communication_seconds: Sequence[float], period: int
) -> list[tuple[int, ...]]:
    """For each iteration of a period, the layers that it sends, in backward order and counted from 0.

    Each layer is sent once, and each iteration's are neighbours; the iterations together wait as little as that
    allows. With fewer layers than iterations, some send nothing.

    Args:
        backward_seconds: of each layer, in backward order.
        communication_seconds: of each layer, in backward order.
        period: H.
    """
    num_layers = len(backward_seconds)
    waits = _waits(backward_seconds, communication_seconds)
    least = np.full(num_layers + 1, np.inf)  # of the layers before each, in so many stretches
    least[0] = 0.0
    begins = []  # for each number of stretches and each end, where the last stretch begins
    for _ in range(min(period, num_layers)):
        found = least[:, None] + waits
        begins.append(found.argmin(axis=0))
        least = found.min(axis=0)
    parts: list[tuple[int, ...]] = []
    end = num_layers
    for row in reversed(begins):
        parts.append(tuple(range(int(row[end]), end)))
        end = int(row[end])
    return [*reversed(parts), *[()] * (period - len(parts))]


def _waits(backward: Sequence[float], communication: Sequence[float]) -> Floats:
    """What an iteration waits that sends the layers from one (the row) until before another (the column)."""
    done = list(accumulate(backward))
    found = np.full((len(done) + 1, len(done) + 1), np.inf)
    for first in range(len(done)):
        sent = 0.0
        for layer in range(first, len(done)):
            sent = max(done[layer], sent) + communication[layer]
            found[first, layer + 1] = max(0.0, sent - done[-1])
    return found
