"""One order of collectives on every rank, whichever thread has its part ready first."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Line"]

Start = Callable[[], None]


class Line:
    """Starts the collectives of exchange e before those of e+1, and those of one exchange by their number.

    Collectives of one group meet by the order in which they were started (gloo and NCCL alike), so two ranks that
    start them in different orders mix up their contents or hang. A part that is ready too early is kept, and started
    by whichever thread brings what it waits for; nobody waits here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: dict[tuple[int, int], Start] = {}
        self._sizes: dict[int, int] = {}
        self._exchange = self._number = 0

    def open(self, exchange: int, size: int) -> None:
        """Exchange ``exchange`` has ``size`` collectives."""
        with self._lock:
            self._sizes[exchange] = size

    def put(self, exchange: int, number: int, start: Start) -> None:
        """Call ``start`` when all that comes before has been started; it must return at once."""
        with self._lock:
            self._ready[exchange, number] = start
            self._start_what_is_ready()

    def end(self, exchange: int, number: int) -> None:
        """Exchange ``exchange`` ends after its first ``number`` collectives, all of which have been started."""
        with self._lock:
            assert (self._exchange, self._number) == (exchange, number)
            self._sizes[exchange] = number
            self._number -= 1
            self._advance()
            self._start_what_is_ready()

    def _start_what_is_ready(self) -> None:
        while (following := self._ready.pop((self._exchange, self._number), None)) is not None:
            following()
            self._advance()

    def _advance(self) -> None:
        self._number += 1
        if self._number == self._sizes[self._exchange]:
            del self._sizes[self._exchange]
            self._exchange, self._number = self._exchange + 1, 0
