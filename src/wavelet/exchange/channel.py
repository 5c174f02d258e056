"""What every exchange over ranks needs: collectives in one order, waiting for them, and who is to blame."""

from __future__ import annotations

import atexit
import os
import sys
import uuid
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wavelet.exchange.exchange import Setting
from wavelet.exchange.flight import Flight
from wavelet.exchange.line import Line
from wavelet.exchange.pulse import ExchangeError, Pulse
from wavelet.exchange.ranks import Ranks

__all__ = ["Channel"]


class Channel:
    """The ranks, and the line of their collectives.

    Args:
        ranks: who takes part.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.num_opened = 0
        self._line = Line()
        self._pulse: Pulse | None = None
        self._under_way: set[tuple[int, int]] = set()

    def attach(self, setting: Setting) -> None:
        """Serve these waves."""
        self.setting = setting

    def watch(self, describe: Callable[[], dict[str, Any]], on_failure: Callable[[BaseException], None]) -> None:
        """Give signs of life from now on, and hear of other ranks' failures."""
        self._pulse = Pulse(self.ranks.group, self.ranks.of_first(uuid.uuid4().hex), describe, on_failure)

    def open(self, number: int, size: int, check: Callable[[Flight], None] | None = None) -> Flight:
        """The next exchange, for batch ``number``: a header and ``size`` more collectives.

        Args:
            number: the batch that waits for it.
            size: how many follow the header.
            check: raises where the header shows that the ranks differ.
        """

        def checked(flight: Flight) -> None:
            if flight.failure is not None:
                raise self.explained(flight.failure) from flight.failure
            if check is not None:
                check(flight)

        flight = Flight(self.num_opened, number, size, self._arrived, checked)
        self.num_opened += 1
        self._line.open(flight.exchange, 1 + size)
        return flight

    def end(self, flight: Flight) -> None:
        """Nothing follows the header of ``flight``, which has been started."""
        self._line.end(flight.exchange, 1)

    def put(self, flight: Flight, wave: int, number: int, tensor: Tensor) -> None:
        """Sum ``tensor`` over the ranks, in place, as collective ``number`` of ``flight``, when its turn comes."""
        flight.sent[number] = tensor

        def start() -> None:
            with self.setting.running(wave):
                try:
                    work = dist.all_reduce(tensor, group=self.ranks.group, async_op=True)
                    self._under_way.add((flight.exchange, number))
                    flight.started(number, work)
                except RuntimeError as error:  # the connection is known to be broken
                    flight.fail(number, error)

        self._line.put(flight.exchange, number, start)

    def passed(self, flight: Flight, number: int) -> None:
        """Collective ``number`` of ``flight`` was none of this line's, and is over."""
        self._line.put(flight.exchange, number, lambda: None)

    def wait(self, flight: Flight, ready: Callable[[], bool]) -> None:
        """Return once ``ready()``.

        Raises:
            ExchangeError: something has failed, or the ranks differ.
        """
        self.setting.wait(flight.number, lambda: ready() or flight.failure is not None)
        flight.check()
        flight.order()

    def follow(self, flight: Flight, future: torch.futures.Future[Any]) -> None:
        """Return once a collective outside of the line is over.

        Raises:
            ExchangeError: it has failed.
        """
        future.add_done_callback(lambda _: self.setting.changed())
        self.setting.wait(flight.number, future.done)
        try:
            future.wait()  # which is what lets a GPU's stream wait; `value` does not
        except RuntimeError as error:
            raise self.explained(error) from error

    def explained(self, error: BaseException) -> ExchangeError:
        """Who is the cause of ``error``."""
        return ExchangeError(str(error)) if self._pulse is None else self._pulse.explain(error)

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that this one stops."""
        atexit.register(_leave_at_once, self._under_way)
        known = isinstance(error, ExchangeError) and error.suspect is not None  # it has been told, or was heard
        if self._pulse is not None and not known:
            self._pulse.tell(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        self.forget()

    def forget(self) -> None:
        """The engine is gone; nobody is told."""
        if self._pulse is not None:
            self._pulse.stop(together=False)

    def close(self) -> None:
        """All ranks have ended together."""
        if self._pulse is not None:
            self._pulse.stop(together=True)
        self.ranks.leave()

    def _arrived(self, exchange: int, number: int) -> None:
        self._under_way.discard((exchange, number))
        self.setting.changed()


def _leave_at_once(under_way: set[tuple[int, int]]) -> None:
    """At the end of a process whose engine has failed: collectives that still wait would call into a Python that is
    gone, which aborts the process, after minutes."""
    if under_way:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
