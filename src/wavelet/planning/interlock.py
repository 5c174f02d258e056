"""The interlock (invariant I2): where a rising batch waits for those before it, and the worst state that it allows.

A *position* of a falling batch is 0 once its forward is done, i once its backward has left the last i blocks, L once
its backward is done and L+1 once its turn is done. Entry j of the table holds, for the start of block j of batch n,
the positions that batches n−1, …, n−K+1 must have reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from wavelet.planning.chain import Chain

__all__ = ["Interlock", "State", "least_budget", "states", "worst_state"]


@dataclass(frozen=True)
class Interlock:
    """The table: ``entries[j − 1]`` has K−1 positions for block j. Later blocks never wait for less.

    Raises:
        ValueError: entries of different lengths, positions outside 0..L+1, or entries that fall.
    """

    entries: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        last = len(self.entries) + 1
        if not self.entries or len({len(entry) for entry in self.entries}) != 1:
            raise ValueError("an interlock needs one entry a block, each with K−1 positions.")
        for entry, later in zip(self.entries, (*self.entries[1:], (last,) * len(self.entries[0])), strict=True):
            if any(not 0 <= position <= after <= last for position, after in zip(entry, later, strict=True)):
                raise ValueError(f"positions must lie in 0..{last} and never fall from block to block: {self.entries}")

    @property
    def num_waves(self) -> int:
        """K."""
        return len(self.entries[0]) + 1

    @property
    def num_blocks(self) -> int:
        """L."""
        return len(self.entries)

    def gates(self) -> set[int]:
        """The blocks that wait for more than the block before them."""
        before = (0,) * (self.num_waves - 1)
        return {block for block, (old, new) in enumerate(pairwise((before, *self.entries)), start=1) if old != new}


@dataclass(frozen=True)
class State:
    """Where the batches in flight are.

    Args:
        block: the block that the newest batch runs forward, or 0 once its forward is done.
        positions: of the batches whose forward is done, newest first.
    """

    block: int
    positions: tuple[int, ...]

    def bytes(self, chain: Chain) -> int:
        """What all of them hold at most there."""
        return chain.rising[self.block] + sum(chain.falling[position] for position in self.positions)


def states(interlock: Interlock) -> Iterator[State]:
    """Every state that ``interlock`` allows with K batches in flight; with fewer, the missing ones count as done.

    A batch starts only after its wave's batch before has had its turn, one forward runs at a time, and turns go in
    batch order.
    """
    num_blocks, last = interlock.num_blocks, interlock.entries[-1]
    older = interlock.num_waves - 1
    for positions in product(range(num_blocks + 2), repeat=older):
        if in_order(positions, num_blocks) and passed_gates(positions, last):
            for block, entry in enumerate(interlock.entries, start=1):
                if all(position >= needed for position, needed in zip(positions, entry, strict=True)):
                    yield State(block, positions)
            for newest in range(num_blocks + 2):
                whole = (newest, *positions)
                if in_order(whole, num_blocks) and passed_gates(whole, last):
                    yield State(0, whole)


def in_order(positions: Sequence[int], num_blocks: int) -> bool:
    """Whether nobody, newest first, has had its turn before an older batch."""
    done = [position == num_blocks + 1 for position in positions]
    return all(older or not newer for newer, older in pairwise(done))


def passed_gates(positions: Sequence[int], last: Sequence[int]) -> bool:
    """Whether batches whose forward is done, newest first, can all have passed the last block's gate."""
    return all(
        positions[older] >= needed
        for newer in range(len(positions))
        for older, needed in zip(range(newer + 1, len(positions)), last, strict=False)
    )


def worst_state(chain: Chain, interlock: Interlock) -> State:
    """The state with the most bytes of all that ``interlock`` allows."""
    return max(states(interlock), key=lambda state: state.bytes(chain))


def least_budget(chain: Chain, interlock: Interlock) -> int:
    """The bytes that are never exceeded under ``interlock``, whatever the timing."""
    return worst_state(chain, interlock).bytes(chain)
