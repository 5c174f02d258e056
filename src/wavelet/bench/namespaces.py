"""Network namespaces that are surely removed: by their owner in every ending, or by the next one after a `kill -9`.

A name carries its owner's process id and the time when that process started, so that nobody removes what is in use.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Namespaces", "NetworkError", "ip", "sweep", "tc"]

_FOLDER = Path("/run/netns")
_NAME = re.compile(r"wavelet-(?P<pid>\d+)-(?P<started>\d+)-\d+-\w+")
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_SECONDS_TO_DIE = 5.0

_numbers = itertools.count()


class NetworkError(RuntimeError):
    """A command of iproute2 failed; the message is what it said."""


def ip(*arguments: str) -> str:
    """The output of the command `ip`.

    Raises:
        NetworkError: it failed, or it is not there.
    """
    return _run("ip", *arguments)


def tc(*arguments: str) -> str:
    """The same for the command `tc`."""
    return _run("tc", *arguments)


def sweep() -> None:
    """Remove the namespaces, and end what runs in them, whose owner is no more."""
    for path in _FOLDER.glob("wavelet-*"):
        match = _NAME.fullmatch(path.name)
        if match and _started(int(match["pid"])) != int(match["started"]):
            with contextlib.suppress(NetworkError):  # somebody else may sweep at the same time
                _remove(path.name)


class Namespaces:
    """Namespaces that live while this context does.

    On leaving, all processes in them are killed. Ctrl-C, SIGTERM and SIGHUP leave too (SIGTERM and SIGHUP only where
    the program has no handler of its own, and where the context is entered in the main thread).
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._prefix = f"wavelet-{self._owner}-{_started(self._owner)}-{next(_numbers)}"
        self._names: list[str] = []

    def add(self, label: str) -> str:
        """Make a namespace; gives its name, which ends in `label`.

        Raises:
            NetworkError: it cannot be made.
        """
        name = f"{self._prefix}-{label}"
        self._names.append(name)  # first: an interrupt may come right after it is made
        ip("netns", "add", name)
        return name

    def __enter__(self) -> Namespaces:
        atexit.register(self._remove_all)  # for an exception between two lines of a `with` statement
        self._signals = _leaving_on_signals()
        self._signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with _unless_interrupted():
                self._remove_all()
                atexit.unregister(self._remove_all)
        finally:
            self._signals.__exit__(None, None, None)

    def _remove_all(self) -> None:
        if os.getpid() != self._owner:  # a forked child leaves too, and must not take its parent's away
            return
        while self._names:
            with contextlib.suppress(NetworkError):  # it was never made
                _remove(self._names[-1])
            self._names.pop()


def _run(*command: str) -> str:
    try:
        # A session of its own: Ctrl-C in a terminal must not end the command that cleans up.
        done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, check=False)
    except FileNotFoundError:
        raise NetworkError(f"the command {command[0]} is not there") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise NetworkError(f"{' '.join(command)}: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout


def _started(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _remove(name: str) -> None:
    """End all processes in a namespace, then remove it with all its links.

    Raises:
        NetworkError: there is no such namespace.
    """
    end = time.monotonic() + _SECONDS_TO_DIE
    while (pids := ip("netns", "pids", name).split()) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)
    ip("netns", "delete", name)


@contextlib.contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """Inside, signals that would end the process at once raise `SystemExit` instead, so that contexts are left."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handlers({number: leave for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL}):
        yield


@contextlib.contextmanager
def _unless_interrupted() -> Iterator[None]:
    """Inside, signals wait; they are raised at the end."""
    waiting: list[int] = []
    with _handlers({number: lambda number, frame: waiting.append(number) for number in (signal.SIGINT, *_ENDING)}):
        yield
    for number in waiting:
        signal.raise_signal(number)


@contextlib.contextmanager
def _handlers(wanted: dict[signal.Signals, Any]) -> Iterator[None]:
    """Inside, these signals have these handlers; Python allows that in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
