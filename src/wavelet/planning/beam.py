"""Layers divided among iterations in any way: the promising divisions side by side, layer by layer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavelet.planning.overlap import LayerTimes
from wavelet.planning.partition import Array, Parts

__all__ = ["Found", "beam_parts"]

EFFORT = 240_000
"""Divisions looked at, about: it bounds the time. So a division of few layers is searched to the end."""

FEWEST, MOST = 16, 512
"""Divisions kept at a time."""


class Found(NamedTuple):
    """What the search came to.

    Args:
        parts: a division that waits less than it had to, or None.
        complete: whether no division was left out, except for those that wait longer or the same.
    """

    parts: Parts | None
    complete: bool


def beam_parts(times: LayerTimes, num_parts: int, less_than: float) -> Found:
    """A division whose waits sum to less than ``less_than`` seconds.

    From the last layer to the first, each goes into every iteration of every division kept so far, and of all that
    come out the best are kept: those that wait least, and of these those whose room is in few iterations. An iteration
    waits for its last sending, so an earlier layer in front of the others delays them all by its own seconds at most:
    what a division will become depends on two numbers of each iteration alone, its time on the link and its wait.

    Args:
        times: of all layers, in a unit of about their sum (`LayerTimes.scaled`), for squares of them are compared.
        num_parts: how many iterations; some may stay empty.
        less_than: what is not worth finding.
    """
    num_layers = times.num_layers
    width = min(MOST, max(FEWEST, EFFORT // (num_layers * num_parts)))
    busy, waits = np.zeros((1, num_parts)), np.zeros((1, num_parts))
    place = np.zeros((1, num_layers), dtype=np.int64)
    complete = True
    for layer in reversed(range(num_layers)):
        seconds, left = times.communication_seconds[layer], times.ready[-1] - times.ready[layer]
        new_busy = busy + seconds
        new_waits = np.maximum(waits, new_busy - left)
        total = _sum(waits)[:, None] + (new_waits - waits)
        total[_but_one_empty(busy, waits)] = np.inf
        room, new_room = (waits + left - busy) ** 2, (new_waits + left - new_busy) ** 2
        best_first = np.lexsort(((room - new_room - _sum(room)[:, None]).ravel(), total.ravel()))
        best_first = best_first[total.ravel()[best_first] < less_than]
        states: dict[bytes, tuple[Array, Array, int, int]] = {}
        for division, part in zip(*(index.tolist() for index in np.divmod(best_first, num_parts)), strict=True):
            state_busy, state_waits = busy[division].copy(), waits[division].copy()
            state_busy[part], state_waits[part] = new_busy[division, part], new_waits[division, part]
            # Which iteration is which does not matter: states that differ in it alone are one.
            state = np.sort(state_busy + 1j * state_waits).tobytes()
            if state in states:
                continue
            if len(states) == width:
                complete = False
                break
            states[state] = (state_busy, state_waits, division, part)
        if not states:
            return Found(None, complete)
        all_busy, all_waits, divisions, parts = zip(*states.values(), strict=True)
        busy, waits, place = np.array(all_busy), np.array(all_waits), place[list(divisions)]
        place[:, layer] = parts
    best = place[int(_sum(waits).argmin())]
    return Found([np.flatnonzero(best == part).tolist() for part in range(num_parts)], complete)


def _but_one_empty(busy: Array, waits: Array) -> NDArray[np.bool_]:
    """Of each division all empty iterations but the first: it makes no difference which one a layer goes into."""
    empty = (busy == 0) & (waits == 0)
    but_one: NDArray[np.bool_] = empty & (np.cumsum(empty, axis=1) > 1)
    return but_one


def _sum(rows: Array) -> Array:
    """Of each row, from left to right: numpy's own sum adds in an order that differs between machines."""
    total: Array = np.cumsum(rows, axis=1)[:, -1]
    return total
