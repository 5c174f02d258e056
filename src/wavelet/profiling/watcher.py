"""What is told, as it happens, of one batch on its way up and down the blocks of a model."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Event", "Watcher"]


class Event(NamedTuple):
    """Something that happened to a batch.

    Args:
        seconds: of ``time.perf_counter``.
        batch: its number.
        what: ``waits`` or ``starts`` (before and after a gate), ``rose``, ``left``, ``fell``, ``updates``, ``turned``.
        where: the block that it waits for or starts, or the position that it reached.
    """

    seconds: float
    batch: int
    what: str
    where: int


class Watcher:
    """Does nothing with what it is told; those who watch override what they need.

    `starts`, `unseen` and `rose` are called in the caller's thread, the others where the backward and the turn run.
    """

    def starts(self, block: int) -> None:
        """The forward is about to start ``block``, from 1."""

    def unseen(self, module: str) -> None:
        """The forward is about to call ``module`` more often than the profiled one did."""

    def rose(self) -> None:
        """The forward is done."""

    def left(self, position: int) -> None:
        """The backward has left the last ``position`` blocks; some positions may never be told of."""

    def fell(self) -> None:
        """The backward is done."""

    def updates(self) -> None:
        """The batch's turn begins."""

    def turned(self) -> None:
        """The turn is done, and what the batch held is released."""
