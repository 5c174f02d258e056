"""Starts processes that have torch imported already, which takes seconds, and that end as any process does.

Servers fork them (`tests.fork_server`), each one at a time. The processes of one server have its hash seed and its
addresses; those that live side by side have different servers, so that a set has another order on each rank, as in the
real world.
"""

import atexit
import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from multiprocessing.reduction import send_handle
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "src")])

_IDLE = []


class _Server:
    """Forks one process at a time."""

    def __init__(self):
        self.connection, theirs = multiprocessing.Pipe()
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}  # read when torch loads OpenMP
        environment["PYTHONPATH"] = PYTHONPATH
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
        theirs.close()

    def end(self):
        self.connection.close()
        self._process.wait()


@atexit.register
def _end_servers():
    for server in _IDLE:
        server.end()


class Process:
    """Calls an importable function; its words are those of `subprocess.Popen`, and its pipes are of text.

    Files that are not given are nowhere.
    """

    def __init__(self, function, *arguments, stdin=None, stdout=None, stderr=None, env=None, cwd=None):
        self.returncode = None
        self._server = _IDLE.pop(0) if _IDLE else _Server()
        environment = {**(os.environ if env is None else env), "PYTHONPATH": PYTHONPATH}
        self._server.connection.send((pickle.dumps((function, arguments)), environment, cwd or Path.cwd()))
        self.stdin, self.stdout, self.stderr = self._give(stdin, "w"), self._give(stdout, "r"), self._give(stderr, "r")
        self.pid = self._server.connection.recv()

    def _give(self, file, mode):
        """Hand a file, or the other end of a new pipe, to the process; gives ours."""
        if file is subprocess.PIPE:
            theirs, mine = os.pipe()[:: 1 if mode == "w" else -1]
            file = os.fdopen(mine, mode, encoding="utf-8")
        else:
            theirs = os.open(os.devnull, os.O_RDWR) if file is None else os.dup(file.fileno())
        send_handle(self._server.connection, theirs, None)
        os.close(theirs)
        return file

    def wait(self, timeout=None):
        if self.returncode is None:
            if not self._server.connection.poll(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = self._server.connection.recv()
            _IDLE.append(self._server)
        return self.returncode

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, timeout=None):
        """What is in its files once it has ended."""
        self.wait(timeout)
        return _contents(self.stdout), _contents(self.stderr)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _contents(file):
    if file is not None:
        file.seek(0)
        return file.read()
    return None


@contextlib.contextmanager
def started(*calls, env=None):
    """A process for each of ``calls``, tuples of a function and its arguments; those left at the end are killed.

    They print into files, errors among the rest, so none waits for somebody to read.
    """
    with contextlib.ExitStack() as stack:
        processes = []
        _IDLE.extend(_Server() for _ in range(len(calls) - len(_IDLE)))  # they all import at once
        for function, *arguments in calls:
            file = stack.enter_context(tempfile.TemporaryFile())
            processes.append(Process(function, *arguments, stdout=file, stderr=file, env=env))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].kill)  # first
        yield processes


def completed(function, *arguments, timeout=120, **options):
    """The `subprocess.CompletedProcess` of a process that calls a function, with what it has printed as text."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = Process(function, *arguments, stdout=out, stderr=errors, **options)
        try:
            printed = process.communicate(timeout)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(arguments, process.returncode, *printed)
