"""Turns in batch order, and the one place where the caller and the waves wait for each other."""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["NoProgressError", "Stopped", "Turns"]


class NoProgressError(RuntimeError):
    """Nothing has moved for ``timeout`` seconds; the message holds the stacks of all threads."""


class Stopped(BaseException):
    """Ends a wave's thread when the engine stops; never seen by the user."""


class Turns:
    """Lets batch n exchange and update after batch n−1 (invariant I3), and carries failures between threads.

    The caller also holds the *baton*: the right to draw random numbers and to run module code. It lends the baton
    while it waits here, and at block boundaries once a wave has asked for it; a wave takes it around a recomputation
    (activation checkpointing runs forward code in backward, and swaps the global random state). Whoever holds the
    baton in a backward waits for nothing else, so nothing deadlocks.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = min(float(timeout), threading.TIMEOUT_MAX / 2)  # more is no limit, and an error in the lock
        self.failure: BaseException | None = None
        self._stopped_from = math.inf
        self.recomputes = False
        lock = threading.RLock()
        self._changed = threading.Condition(lock)  # where waves wait
        self._callers = threading.Condition(lock)  # where the caller waits: a position reached wakes no wave
        self._next = 0
        self._moved = time.monotonic()
        self._lent = False
        self._holder: int | None = None
        self._depth = 0
        self._asking = 0

    def changed(self, change: Callable[[], None] | None = None) -> None:
        """Make ``change`` visible to every waiting thread, as progress."""
        with self._changed:
            if change is not None:
                change()
            self._moved = time.monotonic()
            self._wake_all()

    def reached(self) -> None:
        """A batch has come down to where the caller waits for it."""
        with self._callers:
            self._moved = time.monotonic()
            self._callers.notify_all()

    def restart(self, number: int) -> None:
        """The next turn belongs to batch ``number``; all waves must be idle."""
        self._next = number

    def fail(self, error: BaseException, number: int = -1) -> None:
        """Batch ``number`` and those after it are lost to ``error``; the ones before it still finish."""
        with self._changed:
            if number < self._stopped_from:
                self.failure, self._stopped_from = error, number
            self._wake_all()

    def stop(self) -> None:
        """Discard what is in flight: every wave's thread ends after what it is doing."""
        with self._changed:
            self._stopped_from = min(self._stopped_from, -1 if self.failure is None else math.inf)
            self._lent = True
            self._wake_all()

    def lost(self, number: float) -> bool:
        """Whether batch ``number``, if it is not done, never will be."""
        return self._stopped_from != math.inf and number >= self._stopped_from

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """In a wave's thread: wait until batch ``number`` may exchange and update, then let the next one."""
        self.wait_in_wave(lambda: number, lambda: self._next == number)
        yield

        def advance() -> None:
            self._next += 1

        self.changed(advance)

    def wait_in_wave(self, number: Callable[[], float], ready: Callable[[], bool]) -> None:
        """In a wave's thread: wait until ``ready()``, or raise `Stopped` once its batch ``number()`` is lost.

        A wave without a batch waits as number infinity: it ends with any failure, but never leaves a batch behind.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.lost(number()) or ready())
            if self.lost(number()):
                raise Stopped

    def wait(self, ready: Callable[[], bool], describe: Callable[[], str]) -> None:
        """In the caller's thread: lend the baton and wait until ``ready()`` or until something has failed.

        Raises:
            NoProgressError: nothing has moved for ``timeout`` seconds; ``describe()`` says what was being waited for.
        """
        with self._changed:
            if ready() or self.failure is not None:
                return
            self._wait_lending(lambda: ready() or self.failure is not None, describe)

    def offer(self) -> None:
        """In the caller's thread, at a block boundary: let waves that ask for the baton recompute first.

        Does nothing in a recomputation, which runs the same blocks in a wave's thread.
        """
        if self._asking == 0 or self._holder is not None:
            return
        with self._changed:
            self._wait_lending(lambda: self._asking == 0 or self.failure is not None, lambda: "a wave recomputes")

    def _wait_lending(self, ready: Callable[[], bool], describe: Callable[[], str]) -> None:
        started = time.monotonic()
        self._lent = True
        if self._asking:
            self._changed.notify_all()
        try:
            while not ready():
                left = max(self._moved, started) + self.timeout - time.monotonic()
                if left <= 0:
                    raise NoProgressError(
                        f"no progress for {self.timeout:g} s: {describe()}\n\n{stacks_of_all_threads()}"
                    )
                self._callers.wait(left)
        finally:
            self._callers.wait_for(lambda: self._holder is None, timeout=self.timeout)
            self._lent = False

    @contextmanager
    def baton(self, number: float) -> Iterator[None]:
        """In the thread of the wave that works on batch ``number``: hold the baton; re-entrant."""
        me = threading.get_ident()
        if self._holder != me:
            with self._changed:
                self.recomputes = True
                self._asking += 1
                self._callers.notify_all()
                try:
                    self.wait_in_wave(lambda: number, lambda: self._lent and self._holder is None)
                    self._holder = me
                finally:
                    self._asking -= 1
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                with self._changed:
                    self._holder = None
                    self._moved = time.monotonic()
                    self._wake_all()

    def _wake_all(self) -> None:
        self._changed.notify_all()
        self._callers.notify_all()


def stacks_of_all_threads() -> str:
    """The stack of every Python thread, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(parts)
