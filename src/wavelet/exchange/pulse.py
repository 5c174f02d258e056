"""Signs of life: what each rank was last seen doing, so that those that are left can say who is missing."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

__all__ = ["ExchangeError", "Pulse"]

Result = TypeVar("Result")

SECONDS = 1.0
"""Between two signs."""
_PATIENCE = 2.5
"""Seconds in which the store must answer."""


class ExchangeError(RuntimeError):
    """The ranks could not agree; the message names the rank that is the likely cause, and what it last did.

    Args:
        message: for the user.
        suspect: that rank; None where nobody can be named.
    """

    def __init__(self, message: str, suspect: int | None = None) -> None:
        super().__init__(message)
        self.suspect = suspect


class Pulse:
    """Writes this rank's sign into the store every second, and looks whether another rank has failed.

    A transport notices a dead peer late, and blames whoever is next to it (gloo#520). The store is torch.distributed's
    own; under torchrun the agent keeps it, so it outlives every rank.

    Args:
        group: whose ranks.
        name: the same on all ranks, and never used before in this store, which may outlive a run that is restarted.
        describe: what this rank is doing: ``batches`` handed in so far, and ``doing`` in words.
        on_failure: called in the pulse's thread when another rank has failed.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        name: str,
        describe: Callable[[], dict[str, Any]],
        on_failure: Callable[[ExchangeError], None],
    ) -> None:
        self._rank, self._size = group.rank(), group.size()
        self._name = name
        # A store waits for one answer at a time, and connecting to one that is gone blocks for minutes: so two, now.
        self._store, self._asked = self._connect(), self._connect()
        self._describe, self._on_failure = describe, on_failure
        self._stopped = threading.Event()
        self._told = False
        self._thread = threading.Thread(target=self._beat, name="wavelet pulse", daemon=True)
        self._thread.start()

    def tell(self, text: str, suspect: int | None = None) -> None:
        """Say once that this rank stops, and why; the first rank to say so is the one that others name."""
        if self._told or self._stopped.is_set():
            return
        self._told = True
        record = {"by": self._rank, "suspect": self._rank if suspect is None else suspect, "text": text}
        with contextlib.suppress(Exception):  # the store may be what has failed
            _within(lambda: self._asked.compare_set("failed", "", json.dumps(record)))

    def explain(self, error: BaseException) -> ExchangeError:
        """Who is to blame for a collective that has failed; takes two seconds to see who still gives signs."""
        try:
            before = _within(self._signs)
            time.sleep(2.2 * SECONDS)
            failed, now = _within(lambda: (self._failed(self._asked), self._signs()))
        except Exception:
            text = "the store that the ranks meet in does not answer: the host of rank 0 is gone or cut off"
            return ExchangeError(f"{text} ({_line(error)}).", 0)
        if failed is not None:
            return failed
        silent = [rank for rank in now if rank != self._rank and now[rank] == before[rank]]
        if silent:
            suspect = silent[0]
            text = f"rank {suspect} gives no sign of life; {_last(now[suspect])}"
        else:
            suspect = min((rank for rank in now if rank != self._rank), key=lambda rank: now[rank].get("batches", 0))
            text = f"all ranks are alive, and rank {suspect} is furthest behind or cut off; {_last(now[suspect])}"
        self.tell(text, suspect)
        return ExchangeError(f"{text} ({_line(error)}).", suspect)

    def stop(self, *, together: bool) -> None:
        """End the thread. ``together``: first wait a little for the other ranks to come here too."""
        if together and not self._stopped.is_set():
            with contextlib.suppress(Exception):
                _within(self._meet)
        self._stopped.set()
        self._thread.join(SECONDS)

    def _meet(self) -> None:
        """Return when all ranks have come here, or soon."""
        deadline = time.monotonic() + _PATIENCE
        self._asked.add("closed", 1)
        while int(self._asked.add("closed", 0)) < self._size and time.monotonic() < deadline:
            time.sleep(0.002)

    def _beat(self) -> None:
        number = 0
        with contextlib.suppress(Exception):  # without a store nothing can be told, and collectives fail by themselves
            while not self._stopped.is_set():
                number += 1
                sign = {"number": number, **self._describe()}
                self._store.set(f"sign {self._rank}", json.dumps(sign))
                failed = self._failed(self._store)
                if failed is not None:
                    if not self._told:
                        self._on_failure(failed)
                    return
                self._stopped.wait(SECONDS)

    def _failed(self, store: Store) -> ExchangeError | None:
        if not store.check(["failed"]):
            return None
        record: dict[str, Any] = json.loads(store.get("failed"))
        if record["by"] == record["suspect"]:
            return ExchangeError(f"rank {record['by']} has stopped: {record['text']}", record["by"])
        return ExchangeError(f"{record['text']} (found by rank {record['by']}).", record["suspect"])

    def _signs(self) -> dict[int, dict[str, Any]]:
        return {rank: self._sign(rank) for rank in range(self._size)}

    def _sign(self, rank: int) -> dict[str, Any]:
        key = f"sign {rank}"
        return json.loads(self._asked.get(key)) if self._asked.check([key]) else {}

    def _connect(self) -> Store:
        store = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=_PATIENCE))
        return PrefixStore(f"wavelet/{self._name}", store)


def _within(ask: Callable[[], Result]) -> Result:
    """What ``ask`` gives, in a thread of its own: a store behind a cut link never answers.

    Raises:
        TimeoutError: it takes too long.
    """
    answers: list[Result] = []

    def keep() -> None:
        with contextlib.suppress(Exception):
            answers.append(ask())

    asking = threading.Thread(target=keep, name="store asked by wavelet", daemon=True)
    asking.start()
    asking.join(_PATIENCE)
    if not answers:
        raise TimeoutError("the store does not answer")
    return answers[0]


def _last(sign: dict[str, Any]) -> str:
    return f"it was last seen {sign['doing']}" if sign else "it has never been seen"


def _line(error: BaseException) -> str:
    """What the transport said, without its source file."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return text.split("] ", 1)[-1].split(". This is", 1)[0]
