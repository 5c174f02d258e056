"""A model as a chain of blocks 1..L: what one batch holds and how long it takes on its way up and down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["Chain"]


@dataclass(frozen=True)
class Chain:
    """Bytes and seconds of one batch.

    Args:
        rising: bytes that a batch holds at most while it runs block j forward: entry j, from 0 (not begun: 0) to L.
        falling: bytes that it holds at most from position i until the next: i counts the blocks that its backward has
            left, from 0 to L; the last entry, L+1, is 0: its turn is done, and what it held is given back.
        forward_seconds: of each block, in forward order.
        backward_seconds: of each block, in forward order.
        update_seconds: of the turn (exchange and update).

    Raises:
        ValueError: no block, entries of different lengths, or a negative entry.
    """

    rising: tuple[int, ...]
    falling: tuple[int, ...]
    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    update_seconds: float = 0.0

    def __post_init__(self) -> None:
        lengths = [len(self.rising) - 1, len(self.falling) - 2, len(self.forward_seconds), len(self.backward_seconds)]
        if lengths[0] < 1 or len(set(lengths)) != 1:
            raise ValueError(f"a chain needs at least one block, and as many entries everywhere: {lengths}.")
        if self.rising[0] != 0 or self.falling[-1] != 0:
            raise ValueError("a batch that has not begun, or has had its turn, holds nothing.")
        seconds = (*self.forward_seconds, *self.backward_seconds, self.update_seconds)
        if min(*self.rising, *self.falling, *seconds) < 0:
            raise ValueError("bytes and seconds cannot be negative.")

    @classmethod
    def of_parts(
        cls,
        saved: Sequence[int],
        gradients: Sequence[int],
        *,
        forward_transient: Sequence[int] | None = None,
        backward_transient: Sequence[int] | None = None,
        update_transient: int = 0,
        forward_seconds: Sequence[float] | None = None,
        backward_seconds: Sequence[float] | None = None,
        update_seconds: float = 0.0,
    ) -> Chain:
        """A chain from what each block adds and takes away, in forward order.

        Args:
            saved: bytes that a block's forward keeps for its backward.
            gradients: bytes of parameter gradients that a block's backward leaves until the batch's turn.
            forward_transient: bytes that a block's forward needs on top while it runs.
            backward_transient: bytes that a block's backward needs on top of what is held when it starts.
            update_transient: bytes that the turn needs on top of the gradients.
            forward_seconds: as in `Chain`; 0 where left out.
            backward_seconds: as in `Chain`; 0 where left out.
            update_seconds: as in `Chain`.
        """
        nothing = [0] * len(saved)
        rising = [held + extra for held, extra in zip(accumulate(saved), forward_transient or nothing, strict=True)]
        held, done = sum(saved), 0
        falling = []
        for bytes_, gradient, extra in reversed(
            list(zip(saved, gradients, backward_transient or nothing, strict=True))
        ):
            falling.append(held + done + extra)
            held, done = held - bytes_, done + gradient
        return cls(
            (0, *rising),
            (*falling, done + update_transient, 0),
            tuple(forward_seconds or nothing),
            tuple(backward_seconds or nothing),
            update_seconds,
        )

    @property
    def num_blocks(self) -> int:
        """L."""
        return len(self.forward_seconds)

    @property
    def peak(self) -> int:
        """Bytes that one batch alone holds at most."""
        return max(*self.rising, *self.falling)
