"""A model as a chain of blocks 1..L: what one batch holds and how long it takes, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

__all__ = ["Chain"]


@dataclass(frozen=True)
class Chain:
    """Bytes and seconds of one batch. Tuples have one entry a block, in forward order.

    Args:
        saved: bytes that a block's forward keeps for its backward.
        gradients: bytes of parameter gradients that a block's backward leaves until the batch's turn.
        forward_transient: bytes that a block's forward needs on top while it runs.
        backward_transient: bytes that a block's backward needs, while it runs, on top of what is held when it starts.
        update_transient: bytes that the turn (exchange and update) needs on top of the gradients.
        forward_seconds: of each block.
        backward_seconds: of each block.
        update_seconds: of the turn.

    Raises:
        ValueError: no block, tuples of different lengths, or a negative entry.
    """

    saved: tuple[int, ...]
    gradients: tuple[int, ...]
    forward_transient: tuple[int, ...] = ()
    backward_transient: tuple[int, ...] = ()
    update_transient: int = 0
    forward_seconds: tuple[float, ...] = ()
    backward_seconds: tuple[float, ...] = ()
    update_seconds: float = 0.0
    rising: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Bytes that a batch holds at most from the start of block j on: entry j, for j from 0 (not begun) to L."""
    falling: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Bytes that a batch holds at most at position i: 0 is forward done, L backward done, L+1 turn done."""

    def __post_init__(self) -> None:
        num_blocks = len(self.saved)
        if num_blocks == 0:
            raise ValueError("a chain needs at least one block.")
        for name in ("gradients", "forward_transient", "backward_transient", "forward_seconds", "backward_seconds"):
            values = getattr(self, name) or (0,) * num_blocks
            if len(values) != num_blocks:
                raise ValueError(f"{name} has {len(values)} entries for {num_blocks} blocks.")
            object.__setattr__(self, name, tuple(values))
        everything = (self.saved, self.gradients, self.forward_transient, self.backward_transient)
        if min(map(min, everything)) < 0 or self.update_transient < 0:
            raise ValueError("bytes cannot be negative.")
        object.__setattr__(self, "rising", self._rising())
        object.__setattr__(self, "falling", self._falling())

    @property
    def num_blocks(self) -> int:
        """L."""
        return len(self.saved)

    @property
    def peak(self) -> int:
        """Bytes that one batch alone holds at most."""
        return max(*self.rising, *self.falling)

    def _rising(self) -> tuple[int, ...]:
        kept = accumulate(self.saved)
        return (0, *(held + transient for held, transient in zip(kept, self.forward_transient, strict=True)))

    def _falling(self) -> tuple[int, ...]:
        held = sum(self.saved)
        done = 0
        entries = []
        blocks = zip(self.saved, self.gradients, self.backward_transient, strict=True)
        for saved, gradient, transient in reversed(list(blocks)):
            entries.append(held + done + transient)  # while that block's backward runs
            held, done = held - saved, done + gradient
        return (*entries, done + self.update_transient, 0)
