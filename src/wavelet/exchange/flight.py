"""One exchange under way: what it sends, and what has arrived."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from wavelet.exchange.buckets import Parcel
from wavelet.exchange.exchange import Count

__all__ = ["Flight"]


class Flight(Count):
    """One exchange under way: its collectives are numbered as in the line, 0 being the header.

    Args:
        exchange: its number.
        number: of the batch that it is for.
        size: how many collectives follow the header.
        arrived: told of each collective that has.
        check: raises what has failed, or in what the ranks differ.
    """

    def __init__(
        self,
        exchange: int,
        number: int,
        size: int,
        arrived: Callable[[int, int], None],
        check: Callable[[Flight], None],
    ) -> None:
        self.exchange, self.number = exchange, number
        self.parcel: Parcel  # given by whoever packs it, as are these:
        self.period = 0  # whose weights are mixed
        self.share = 0.0  # of this rank in that mean
        self.lane = 0  # the wave on whose stream it is launched
        self.others: Tensor | None = None  # beside the buckets
        self._check = check
        self.gone: set[int] = set()
        self.complete = False
        self.sent: dict[int, Tensor] = {}
        self.failure: BaseException | None = None
        self._tell = arrived
        self._works: dict[int, Any] = {}
        self._arrived: set[int] = set()
        self.seconds: dict[int, float] = {}
        """From the start of each collective on the CPU, or from the end of the one before it if that is later."""
        self._last = 0.0
        self.size = 1 + size

    def check(self) -> None:
        """Raise what has failed, or in what the ranks differ.

        Raises:
            ExchangeError: saying which.
        """
        self._check(self)

    def started(self, number: int, work: Any) -> None:
        """Collective ``number`` is under way."""
        self._works[number] = work
        begun = time.perf_counter()

        def arrived(future: torch.futures.Future[Any]) -> None:
            try:
                future.value()
            except Exception as error:
                self.failure = error
            now = time.perf_counter()
            self.seconds[number], self._last = now - max(begun, self._last), now
            self._arrived.add(number)
            self._tell(self.exchange, number)

        assert work is not None
        if self.sent[number].is_cpu:
            work.get_future().add_done_callback(arrived)
        else:  # the host does not wait for a GPU: `order` lets the stream wait
            self._arrived.add(number)
            self._tell(self.exchange, number)

    def fail(self, number: int, error: BaseException) -> None:
        """Collective ``number`` could not even be started."""
        self.failure = error
        self._arrived.add(number)
        self._tell(self.exchange, number)

    def order(self) -> None:
        """What the current thread launches next comes after what has arrived."""
        for number in list(self._arrived):
            if not self.sent[number].is_cpu:
                self._works[number].wait()

    @property
    def known(self) -> bool:
        return 0 in self._arrived

    @property
    def total(self) -> int:
        self._check(self)
        return int(self.sent[0][0])

    @property
    def done(self) -> bool:
        """Whether all of it has arrived."""
        return len(self._arrived) == self.size
