"""Gates: where a rising batch waits until those before it have come down far enough (invariant I2)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from wavelet.devices import Device
from wavelet.planning.interlock import Interlock
from wavelet.profiling.watcher import Event, Watcher
from wavelet.waves.turns import Turns

__all__ = ["Passage"]

_NOBODY = math.inf


class Passage(Watcher):
    """One batch's way up and down: it waits in the gates of its rise, and opens those of later batches by its fall.

    Positions are written without a lock: a later batch that waits says first, under the lock, which position it needs,
    and whoever reaches that takes the lock to wake it.

    Args:
        number: the batch's.
        wave: its wave.
        interlock: says where to wait.
        ahead: the passages of the K−1 batches before it, the newest first; fewer at the beginning.
        turns: where to wait.
        device: whose launches must be ordered as well.
        log: where to write what happens, if anybody wants to know.
    """

    def __init__(
        self,
        number: int,
        wave: int,
        interlock: Interlock,
        ahead: Sequence[Passage],
        turns: Turns,
        device: Device,
        log: list[Event] | None = None,
    ) -> None:
        self.position = -1
        self.strange = False
        self._number, self._wave = number, wave
        self._interlock, self._ahead = interlock, ahead
        self._turns, self._device, self._log = turns, device, log
        self._done = interlock.num_blocks + 1
        self._wanted: float = _NOBODY
        self._orders: list[tuple[int, object]] = []
        self._passed = [-1] * len(ahead)

    def starts(self, block: int) -> None:
        for back, (passage, position) in enumerate(zip(self._ahead, self._interlock.entries[block - 1], strict=False)):
            if position > self._passed[back]:
                if passage.position < position:
                    self._note("waits", block)
                    passage.wait_for(position)
                self._device.follow(passage.order_of(position), self._wave)
                self._passed[back] = position
        self._note("starts", block)

    def unseen(self, module: str) -> None:
        self.strange = True
        for passage in self._ahead:
            if passage.position < self._done:
                passage.wait_for(self._done)
            self._device.follow(passage.order_of(self._done), self._wave)

    def rose(self) -> None:
        self._ahead = ()
        self._note("rose", 0)
        self._reach(0)

    def left(self, position: int) -> None:
        if position > self.position:
            self._note("left", position)  # before anybody is let through, so that the log has it in this order
            self._reach(position)

    def fell(self) -> None:
        self._note("fell", self._done - 1)
        self._reach(self._done - 1)

    def updates(self) -> None:
        self._note("updates", 0)

    def turned(self) -> None:
        self._note("turned", self._done)
        self._reach(self._done)

    def wait_for(self, position: int) -> None:
        """In the caller's thread: return when this batch has reached ``position``.

        Raises:
            BaseException: what has failed meanwhile.
        """
        self._wanted = position
        self._turns.wait(lambda: self.position >= position, lambda: f"batch {self._number} does not come down")
        self._wanted = _NOBODY
        if self._turns.failure is not None and self.position < position:
            raise self._turns.failure

    def order_of(self, position: int) -> object:
        """What the device's launches must follow to be behind ``position``."""
        return next((order for reached, order in self._orders if reached >= position), None)

    def _reach(self, position: int) -> None:
        order = self._device.order(self._wave)
        if order is not None:
            self._orders.append((position, order))
        self.position = position
        if position >= self._wanted:
            self._turns.reached()

    def _note(self, what: str, where: int) -> None:
        if self._log is not None:
            self._log.append(Event(time.perf_counter(), self._number, what, where))
