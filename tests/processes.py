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
    """One that runs a function; its words are those of `subprocess.Popen`."""

    def __init__(self, server, output, call, environment):
        self.returncode = None
        self._server, self._output = server, output
        server.connection.send((output, {**environment, "PYTHONPATH": PYTHONPATH}, Path.cwd(), call))
        self.pid = server.connection.recv()

    def wait(self, timeout=None):
        if self.returncode is None:
            if not self._server.connection.poll(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = self._server.connection.recv()
        return self.returncode

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, timeout=None):
        """All that it has printed, once it has ended."""
        self.wait(timeout)
        return self._output.read_bytes(), None

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def started(calls, environment=None):
    """A process for each of ``calls``, pairs of an importable function and its arguments; at the end they are killed.

    They print into files, so none waits for somebody to read, and their working folder is that of this process.
    """
    with tempfile.TemporaryDirectory() as folder:
        servers = [_IDLE.pop(0) if _IDLE else _Server() for _ in calls]
        processes = []
        try:
            for number, (server, call) in enumerate(zip(servers, calls, strict=True)):
                output = Path(folder, f"output{number}")
                processes.append(Process(server, output, pickle.dumps(call), environment or dict(os.environ)))
            yield processes
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
            _IDLE.extend(servers)
