"""A division of layers among iterations, bettered by moves and swaps of layers."""

from __future__ import annotations

import numpy as np

from wavelet.planning.overlap import LayerTimes
from wavelet.planning.partition import Array, Parts, waits_of

__all__ = ["SAME", "traded"]

SAME = 1e-9
"""Waits that differ by less than this share of them differ by rounding."""

MOST_ROUNDS = 16
"""Rounds of trades; rarely more than a few find anything."""


def traded(times: LayerTimes, parts: Parts) -> Parts:
    """``parts`` after trades, for as long as there are trades that lessen the sum of waits.

    A trade moves one layer to another iteration or swaps two layers of two iterations. In each round all of them are
    valued, and the best are made, at most one for each iteration.

    Args:
        times: of all layers.
        parts: is left as it is.
    """
    parts = [list(part) for part in parts]
    for _ in range(MOST_ROUNDS):
        if not _round(times, parts):
            break
    return parts


def _round(times: LayerTimes, parts: Parts) -> bool:
    """Make the best trades in place; False if there are none."""
    num_layers = times.num_layers
    owner = np.zeros(num_layers, dtype=np.int64)
    for part, layers in enumerate(parts):
        owner[layers] = part
    # What an iteration gives: one of its layers, or nothing. Entry L + h stands for nothing from iteration h.
    givers = np.concatenate([owner, np.arange(len(parts))])
    waits = np.array(waits_of(times, parts))
    after = _waits_after(times, givers, len(parts))
    gain = waits[givers][:, None] + waits[givers][None, :] - after - after.T
    gain[givers[:, None] == givers[None, :]] = 0
    gain[num_layers:, num_layers:] = 0
    gain[np.tril_indices(len(givers))] = 0  # each trade once
    flat = gain.ravel()
    worth = np.flatnonzero(flat > SAME * waits.max())
    best_first = worth[np.argsort(-flat[worth], kind="stable")][: 4 * len(givers)]
    busy: set[int] = set()
    for one, other in zip(*(index.tolist() for index in np.divmod(best_first, len(givers))), strict=True):
        pair = {int(givers[one]), int(givers[other])}
        if busy & pair:
            continue
        busy |= pair
        for given, giver, taker in ((one, givers[one], givers[other]), (other, givers[other], givers[one])):
            if given < num_layers:
                parts[giver].remove(given)
                parts[taker] = sorted([*parts[taker], given])
    return bool(busy)


def _waits_after(times: LayerTimes, givers: np.ndarray[tuple[int], np.dtype[np.int64]], num_parts: int) -> Array:
    """Entry (a, b): what the iteration that gives a waits once it has given a and taken b."""
    num_layers, end = times.num_layers, times.ready[-1]
    rows = np.arange(num_layers)
    kept = givers[:, None] == givers[None, :num_layers]
    kept[rows, rows] = False
    free = np.zeros((len(givers), num_layers + 1))  # the link, before layer j of those kept
    for layer, seconds in enumerate(times.communication_seconds):
        sent = np.maximum(free[:, layer], times.ready[layer]) + seconds
        free[:, layer + 1] = np.where(kept[:, layer], sent, free[:, layer])
    busy, last = np.zeros_like(free), np.zeros_like(free)  # from layer j on: on the link, and sent, if it were free
    for layer in reversed(range(num_layers)):
        here, seconds = kept[:, layer], times.communication_seconds[layer]
        busy[:, layer] = busy[:, layer + 1] + np.where(here, seconds, 0)
        alone = np.maximum(last[:, layer + 1], times.ready[layer] + busy[:, layer])
        last[:, layer] = np.where(here, alone, last[:, layer + 1])
    taken = np.maximum(free[:, :-1], times.ready) + times.communication_seconds
    with_layer = np.maximum(taken + busy[:, 1:], last[:, 1:])
    with_nothing = np.repeat(free[:, -1:], num_parts, axis=1)
    return np.maximum(np.concatenate([with_layer, with_nothing], axis=1) - end, 0)
