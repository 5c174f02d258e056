"""The search for the interlock that is fastest within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, product

from wavelet.planning.chain import Chain
from wavelet.planning.interlock import Interlock, in_order, passed_gates
from wavelet.planning.simulate import seconds_per_batch

__all__ = ["MOST_WAVES", "best_interlock"]

MOST_WAVES = 3

Entry = tuple[int, ...]

GROUPS = 10
"""With three waves a search over many blocks takes minutes: of a longer chain so many groups are searched."""

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""With three waves a block can wait more for one predecessor or more for the other: the shares that are tried."""


def best_interlock(chain: Chain, num_waves: int, budget: int) -> Interlock:
    """The fastest interlock under which no state holds more than ``budget`` bytes; no entry of it can be lowered.

    With two waves each block has one least position, and their table is the fastest, as less waiting never makes a
    schedule slower. With three there are several such tables: a few are made, for at most `GROUPS` groups of blocks,
    and simulated.

    Raises:
        ValueError: the budget is below what one batch alone needs.
    """
    if budget < chain.peak:
        raise ValueError(f"one batch alone needs {chain.peak:,} bytes, more than the {budget:,} allowed.")
    if num_waves == 1:
        return Interlock(((),) * chain.num_blocks)
    if num_waves == 2:
        return _Search(chain, num_waves, budget).table(0.0)
    sizes = _group_sizes(chain.num_blocks)
    search = _Search(_merged(chain, sizes), num_waves, budget)
    tables = {_spread(search.table(weight), sizes) for weight in WEIGHTS}
    return min(tables, key=lambda table: (seconds_per_batch(chain, table), table.entries))


def _group_sizes(num_blocks: int) -> list[int]:
    """How many blocks each group has, in forward order."""
    groups = min(num_blocks, GROUPS)
    return [num_blocks * (group + 1) // groups - num_blocks * group // groups for group in range(groups)]


def _merged(chain: Chain, sizes: Sequence[int]) -> Chain:
    """The chain of groups of blocks: each holds what the fullest of its blocks holds."""
    ends = list(accumulate(sizes))
    starts = [0, *ends[:-1]]
    last = chain.num_blocks
    rising = [max(chain.rising[start + 1 : end + 1]) for start, end in zip(starts, ends, strict=True)]
    falling = [
        max(chain.falling[last - end : last - start]) for start, end in reversed(list(zip(starts, ends, strict=True)))
    ]
    seconds = [0.0] * len(sizes)
    return Chain((0, *rising), (*falling, *chain.falling[last:]), tuple(seconds), tuple(seconds))


def _spread(table: Interlock, sizes: Sequence[int]) -> Interlock:
    """The table of groups as one of blocks: whoever waits for groups waits for all of their blocks."""
    positions = [0, *accumulate(reversed(sizes)), sum(sizes) + 1]
    entries = [tuple(positions[group] for group in entry) for entry in table.entries]
    return Interlock(tuple(entry for entry, size in zip(entries, sizes, strict=True) for _ in range(size)))


class _Search:
    def __init__(self, chain: Chain, num_waves: int, budget: int) -> None:
        self._chain, self._budget = chain, budget
        self._older = num_waves - 1
        self._done = chain.num_blocks + 1

    def table(self, weight: float) -> Interlock:
        """A table that fits and in which no entry can be lowered, with that preference among least entries."""
        entries: list[Entry] = []
        freely = (0,) * self._older  # as if batches had passed no gates: more states than there are
        for block in range(1, self._chain.num_blocks + 1):
            floor = entries[-1] if entries else freely
            options = product(*(range(position, self._done + 1) for position in floor))
            is_last = block == self._chain.num_blocks
            entries.append(
                min(
                    (
                        entry
                        for entry in options
                        if self._rises_within(block, entry, freely) and not (is_last and not self._falls_within(entry))
                    ),
                    key=lambda entry: (_weighted(entry, weight), entry),
                )
            )
        while self._lower(entries):
            pass
        return Interlock(tuple(entries))

    def _lower(self, entries: list[Entry]) -> bool:
        """Lower one entry where that still fits, from the last block to the first; False if none can be."""
        for block in range(self._chain.num_blocks, 0, -1):
            floor = entries[block - 2] if block > 1 else (0,) * self._older
            for back in range(self._older):
                if entries[block - 1][back] > floor[back]:
                    entry = tuple(p - (index == back) for index, p in enumerate(entries[block - 1]))
                    if self._may_replace(entries, block, entry):
                        entries[block - 1] = entry
                        return True
        return False

    def _may_replace(self, entries: list[Entry], block: int, entry: Entry) -> bool:
        if block < self._chain.num_blocks:
            return self._rises_within(block, entry, entries[-1])
        lowered = [*entries[:-1], entry]  # the last gate bounds what the older ones can be doing meanwhile
        return self._falls_within(entry) and all(
            self._rises_within(number, each, entry) for number, each in enumerate(lowered, start=1)
        )

    def _rises_within(self, block: int, entry: Entry, last: Entry) -> bool:
        """Whether a batch that runs ``block`` fits beside every older one that has reached ``entry`` or more."""
        room = self._budget - self._chain.rising[block]
        return all(
            sum(self._chain.falling[position] for position in positions) <= room
            for positions in product(*(range(position, self._done + 1) for position in entry))
            if in_order(positions, self._chain.num_blocks) and passed_gates(positions, last)
        )

    def _falls_within(self, last: Entry) -> bool:
        """Whether batches whose forwards are all done, each having passed the gate ``last``, fit together."""
        return all(
            sum(self._chain.falling[position] for position in positions) <= self._budget
            for positions in product(range(self._done + 1), *(range(position, self._done + 1) for position in last))
            if in_order(positions, self._chain.num_blocks) and passed_gates(positions, last)
        )


def _weighted(entry: Sequence[int], weight: float) -> float:
    """The nearest predecessor's position against the others'."""
    return (1 - weight) * entry[0] + weight * sum(entry[1:])
