"""Resting memory: what the engine holds when all waves are idle after their first step."""

from __future__ import annotations

from wavelet.profiling.profile import Profile

__all__ = ["resting_bytes"]


def resting_bytes(profile: Profile, waves: int, update: str, accumulate: int) -> int:
    """Bytes of replicas, optimizer states, buffers, and what rule and exchange keep between turns.

    Args:
        profile: says how large one of each is.
        waves: K.
        update: the rule.
        accumulate: micro-batches that a wave gives to one update.
    """
    replicas = 1 if update == "synchronous" else waves
    optimizers = waves if update == "neighbour" else 1
    if update == "synchronous":
        gradients = int(waves * accumulate > 1)  # the sum of the round
    else:
        window = waves - 1 if update == "neighbour" else 0
        gradients = window + (waves if accumulate > 1 else 0)  # and what each wave accumulates
    return (
        replicas * profile.parameter_bytes
        + optimizers * profile.optimizer_bytes
        + gradients * profile.gradient_bytes
        + (waves + 2) * profile.buffer_bytes  # of the replicas, of the face, and those carried between forwards
        + profile.exchange_bytes
    )
