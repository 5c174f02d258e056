"""What a schedule costs in time: the recurrences of forwards, backwards and turns under an interlock."""

from __future__ import annotations

from wavelet.planning.chain import Chain
from wavelet.planning.interlock import Interlock

__all__ = ["seconds_per_batch"]

WARM_UP, MEASURED = 12, 24
"""Batches; a multiple of 1, 2 and 3 waves. The recurrences are periodic after a few rounds."""


def seconds_per_batch(chain: Chain, interlock: Interlock) -> float:
    """Seconds from turn to turn in the steady state.

    Forwards run one after the other, each wave's backward after its forward, turns in batch order; the seconds of
    ``chain`` must already be those beside other waves.
    """
    turns: list[float] = []
    reached: list[list[float]] = []  # for each batch, when it reached position i
    forward_done = 0.0
    for number in range(WARM_UP + MEASURED):
        now = forward_done
        if number >= interlock.num_waves:
            now = max(now, turns[number - interlock.num_waves])
        for seconds, entry in zip(chain.forward_seconds, interlock.entries, strict=True):
            for back, position in enumerate(entry, start=1):
                if back <= number:
                    now = max(now, reached[number - back][position])
            now += seconds
        forward_done = now
        times = [now]
        for seconds in reversed(chain.backward_seconds):
            times.append(times[-1] + seconds)
        turn = max(times[-1], turns[-1] if turns else 0.0) + chain.update_seconds
        turns.append(turn)
        reached.append([*times, turn])
    return (turns[-1] - turns[WARM_UP - 1]) / MEASURED
