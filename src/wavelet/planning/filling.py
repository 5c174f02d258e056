"""Layers that are sent more than once a period, in time that the link has left."""

from __future__ import annotations

from bisect import insort

import numpy as np
from numpy.typing import NDArray

from wavelet.planning.overlap import LayerTimes
from wavelet.planning.partition import Parts

__all__ = ["filled"]

Counts = NDArray[np.int64]


def filled(times: LayerTimes, parts: Parts) -> Parts:
    """For each iteration the layers that it can send besides its own, ascending, without waiting any longer.

    Iterations are filled one after the other, until nothing fits. A layer's replicas have drifted apart for *a*
    iterations since it was last sent, and will be sent in *b* iterations anyway: sending it now takes a × b off the
    sum, over the period, of the iterations since. The layer with the largest a × b comes first, which is one of those
    sent longest ago unless its turn is near; then that sent longest ago; then that whose gradient is there first.

    Args:
        times: of all layers.
        parts: each layer in one of them; the period repeats.
    """
    period, num_layers = len(parts), times.num_layers
    sent = np.zeros((period, num_layers), dtype=bool)
    for iteration, part in enumerate(parts):
        sent[iteration, part] = True
    extra: Parts = []
    for iteration, part in enumerate(parts):
        wait = times.exposed(part)
        if times.exposed(range(num_layers)) <= wait:
            added = [layer for layer in range(num_layers) if not sent[iteration, layer]]
        else:
            since = _distance(np.roll(sent, -iteration, axis=0)[::-1])
            until = _distance(np.roll(sent, -iteration - 1, axis=0))
            best_first = np.lexsort((-since, -since * until)).tolist()
            added = _added(times, part, [layer for layer in best_first if not sent[iteration, layer]])
        sent[iteration, added] = True
        extra.append(added)
    return extra


def _distance(sent: NDArray[np.bool_]) -> Counts:
    """How many iterations to each layer's first sending, the first row being one away."""
    distance: Counts = sent.argmax(axis=0) + 1
    return distance


def _added(times: LayerTimes, part: list[int], candidates: list[int]) -> list[int]:
    """Those of ``candidates`` that fit, taken in their order."""
    wait = times.exposed(part)
    until = (times.ready[-1] + wait) * (1 + 1e-9)
    layers, busy = list(part), sum(times.communication_seconds[layer] for layer in part)
    added: list[int] = []
    for layer in candidates:
        seconds = times.communication_seconds[layer]
        first = min(layer, layers[0]) if layers else layer
        if times.ready[layer] + seconds > until or times.ready[first] + busy + seconds > until:
            continue  # no need to look closer
        trial = list(layers)
        insort(trial, layer)
        if times.exposed(trial) <= wait:
            layers, busy = trial, busy + seconds
            insort(added, layer)
    return added
