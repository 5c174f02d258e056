"""Resting memory: what the engine holds when all waves are idle after their first step."""

from __future__ import annotations

from wavelet.profiling.profile import Profile

__all__ = ["resting_bytes"]


def resting_bytes(profile: Profile, waves: int, update: str, accumulate: int) -> int:
    """Bytes of replicas, optimizer states, buffers, and, as if they were there all the time, gradients and the turn's
    working space. (Turns run one at a time, so they share it.)

    Args:
        profile: says how large one of each is.
        waves: K.
        update: the rule.
        accumulate: micro-batches that a wave gives to one update.
    """
    replicas = 1 if update == "synchronous" else waves
    optimizers = waves if update == "neighbour" else 1
    kept = {"neighbour": waves - 1, "synchronous": int(waves * accumulate > 1), "delayed": 0}[update]
    gradients = waves + kept  # each wave's own, and the window or the sum of the round
    return (
        replicas * profile.parameter_bytes
        + optimizers * profile.optimizer_bytes
        + gradients * profile.gradient_bytes
        + profile.bytes.turn
        + (waves + 2) * profile.buffer_bytes  # of the replicas, of the face, and those carried between forwards
    )
