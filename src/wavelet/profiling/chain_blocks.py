"""The chain of blocks of any model: where its forward can be cut into parts of about a twelfth of the bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from wavelet.profiling.calls import Call

__all__ = ["BLOCKS", "Block", "find_blocks", "order_blocks"]

BLOCKS = 24
"""A block should hold no more than this share of the bytes: then the steps of the interlock are fine enough."""


@dataclass(frozen=True)
class Block:
    """A part of the forward, from the call of a module to the start of the next block.

    Args:
        module: the name of the module whose call starts it; None for the first block, which starts with the forward.
        saved: bytes that it leaves behind for the backward.
    """

    module: str | None
    saved: int


def find_blocks(forward: Call) -> list[Block]:
    """The blocks of a recorded forward.

    A block starts where a module is called, if that module is called once in the step: so loops, shared modules and
    what a checkpoint runs again lie inside one block. Work before the first call belongs to the first block, work
    between calls and the loss to the block before.
    """
    limit = max(forward.ended, 1) / BLOCKS
    starts = [("", 0), *((call.name, call.started) for call in _starts(forward, limit))]
    ends = [started for _, started in starts[1:]] + [forward.ended]
    blocks: list[Block] = []
    for (name, started), ended in zip(starts, ends, strict=True):
        saved = ended - started
        if blocks and (blocks[-1].saved <= 0 or blocks[-1].saved + saved <= limit):
            blocks[-1] = Block(blocks[-1].module, blocks[-1].saved + saved)
        else:
            blocks.append(Block(name or None, saved))
    return blocks


def _starts(call: Call, limit: float) -> Iterator[Call]:
    """The calls inside ``call`` at which a block may start; calls that hold much are opened."""
    for child in call.children:
        if child.is_only and child.name:  # the model as a whole starts no block
            yield child
        if child.ended - child.started > limit:
            yield from _starts(child, limit)


def order_blocks(forward: Call, names: Iterable[str]) -> list[str]:
    """The modules that a user named as starts of blocks, in the order of their calls.

    Raises:
        ValueError: one of them is not called exactly once in a step.
    """
    calls = {call.name: number for number, call in enumerate(_all_calls(forward)) if call.is_only}
    for name in names:
        if name not in calls:
            raise ValueError(
                f"blocks names {name!r}, which this batch did not call exactly once: name modules that run once a step."
            )
    return sorted(set(names), key=calls.__getitem__)


def _all_calls(call: Call) -> Iterator[Call]:
    for child in call.children:
        yield child
        yield from _all_calls(child)
