"""Starts the processes of one system side by side, listens to them, and leaves none behind."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol

from wavelet.bench.hosts import Host

__all__ = ["Event", "RunFailed", "Task", "run_side_by_side"]

_SILENCE_LIMIT = 900.0
_SECONDS_TO_LEAVE = 10.0
_ERROR_TAIL = 2000

Event = dict[str, Any]


class RunFailed(Exception):
    """A worker failed. `reason` is one line, `details` the worker's traceback or the end of what it printed."""

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.details = details


class Task(Protocol):
    """What one worker is to do: a line that it reads."""

    def to_json(self) -> str: ...


def run_side_by_side(
    specs: Sequence[Task],
    environment: Mapping[str, str],
    on_event: Callable[[Event], None],
    *,
    module: str = "wavelet.bench.worker",
    hosts: Sequence[Host] | None = None,
) -> list[Event]:
    """Run one worker for each spec; their timed parts start together.

    Args:
        module: the worker.
        hosts: where each of them runs; None: all here.
        on_event: called with the ``first_step`` and ``progress`` events of the first worker.

    Returns:
        The workers' results, in the order of `specs`.

    Raises:
        RunFailed: a worker failed, ended without a result, or said nothing for 15 minutes.
    """
    with contextlib.ExitStack() as stack:
        places: Sequence[Host | None] = hosts or [None] * len(specs)
        workers = [
            stack.enter_context(_Worker(spec, environment, module, host))
            for spec, host in zip(specs, places, strict=True)
        ]
        inbox: queue.Queue[tuple[int, Event]] = queue.Queue()
        for number, worker in enumerate(workers):
            threading.Thread(target=worker.listen, args=(number, inbox), daemon=True).start()
        results: dict[int, Event] = {}
        num_ready = 0
        while len(results) < len(workers):
            try:
                number, event = inbox.get(timeout=_SILENCE_LIMIT)
            except queue.Empty:
                raise RunFailed(f"no sign of life for {_SILENCE_LIMIT:.0f} s", workers[0].printed()) from None
            if event["event"] == "ready":
                num_ready += 1
                if num_ready == len(workers):
                    for worker in workers:
                        worker.go()
            elif event["event"] == "result":
                results[number] = event
            elif event["event"] == "failed":
                raise RunFailed(event["reason"], event["traceback"])
            elif event["event"] == "end" and number not in results:
                raise RunFailed(workers[number].how_it_ended(), workers[number].printed())
            elif number == 0:
                on_event(event)
        return [results[number] for number in range(len(workers))]


class _Worker:
    """One worker process; leaving its context ends it."""

    def __init__(self, spec: Task, environment: Mapping[str, str], module: str, host: Host | None) -> None:
        self._spec = spec
        command = [sys.executable, "-m", module]
        self._command = host.command(command) if host else command
        self._environment = {**environment, "PYTHONSAFEPATH": "1", **(host.environment() if host else {})}
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> _Worker:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=self._environment,
            encoding="utf-8",
        )
        self._write(self._spec.to_json())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # it has given its result: let it end its own helpers
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_LEAVE)
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._errors.close()

    def go(self) -> None:
        """Start the timed part."""
        self._write("go")

    def listen(self, number: int, inbox: queue.Queue[tuple[int, Event]]) -> None:
        """Put each event into `inbox` with `number`, and an ``end`` when the process has closed its output."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                inbox.put((number, json.loads(line)))
        inbox.put((number, {"event": "end"}))

    def how_it_ended(self) -> str:
        """One line on a process that has closed its output."""
        code = self._process.wait()
        return f"a process was ended by signal {-code}" if code < 0 else f"a process ended with exit code {code}"

    def printed(self) -> str:
        """The end of what the process wrote to standard error."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _ERROR_TAIL))
        return self._errors.read().decode(errors="replace")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a worker that has ended says so on its output
            print(line, file=self._process.stdin, flush=True)
