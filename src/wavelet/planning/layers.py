"""What one iteration computes and sends on one rank, layer by layer: from a profile, or as given."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from wavelet.planning.interlock import Interlock
from wavelet.planning.plan import chain_of, contention_under
from wavelet.profiling.profile import NO_CONTENTION, Contention, Profile

__all__ = ["SHARED", "Layers", "layers_of"]

SHARED = Contention(2.0, 2.0)
"""Work beside work takes twice as long, so that waves gain nothing in compute: where nothing was measured."""


@dataclass(frozen=True)
class Layers:
    """One batch of one rank, alone on its host.

    Args:
        forward: seconds of each layer, in forward order.
        backward: seconds of each layer, in forward order.
        bytes: of each layer's gradient, and of its weights, in forward order.
        update: seconds of the optimizer's step.
        input: seconds of reading a batch, beside the rest.
        copy: seconds of its way to the device.
        samples: in the batch.
        contention: how much longer a wave's work takes beside another wave's.

    Raises:
        ValueError: no layer, lists of different lengths, or a negative number.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    bytes: tuple[float, ...]
    update: float = 0.0
    input: float = 0.0
    copy: float = 0.0
    samples: int = 1
    contention: Contention = SHARED

    def __post_init__(self) -> None:
        lengths = [len(self.forward), len(self.backward), len(self.bytes)]
        if lengths[0] < 1 or len(set(lengths)) != 1:
            raise ValueError(
                f"forward, backward and bytes have {lengths[0]}, {lengths[1]} and {lengths[2]} numbers: "
                "give one of each for every layer, and at least one layer"
            )
        if min(*self.forward, *self.backward, *self.bytes, self.update, self.input, self.copy) < 0:
            raise ValueError("seconds and bytes cannot be negative")
        if self.compute == 0:
            raise ValueError("forward, backward and update take no time at all: give seconds, one for every layer")
        if self.samples < 1:
            raise ValueError(f"samples is {self.samples}: a batch has at least 1")
        if min(self.contention) <= 0:
            raise ValueError(f"contention is {min(self.contention):g}: it must be above 0, and 1 is none")

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.forward)

    @property
    def size(self) -> float:
        """Bytes of all gradients."""
        return sum(self.bytes)

    @property
    def compute(self) -> float:
        """Seconds of forward, backward and update, one after the other."""
        return sum(self.forward) + sum(self.backward) + self.update

    @property
    def alone(self) -> float:
        """Seconds of an iteration of one rank in the ordinary loop, the next batch being fetched meanwhile."""
        return max(self.input + self.copy, self.compute)

    def left(self) -> list[float]:
        """Seconds of backward until it has left the last i layers, for i from 1 to L."""
        return list(accumulate(reversed(self.backward)))


def layers_of(profile: Profile, waves: int = 1, interlock: Interlock | None = None) -> Layers:
    """What a profile measured for so many waves, or for the nearest number; its blocks are the layers.

    Seconds of the caller's own between two forwards belong to the first forward.

    Args:
        profile: of a job's batch.
        waves: K.
        interlock: under which they run; None: freely.
    """
    chain = chain_of(profile, waves)
    contention = profile.timing(waves).contention if interlock is None else contention_under(profile, interlock)
    return Layers(
        forward=chain.forward_seconds,
        backward=chain.backward_seconds,
        bytes=tuple(map(float, profile.bytes.gradients)),
        update=chain.update_seconds,
        samples=profile.samples,
        contention=contention if waves > 1 else NO_CONTENTION,
    )
