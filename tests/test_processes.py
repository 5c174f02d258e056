"""What the tests start is a process like any other: as it begins, as it ends, and unlike the one beside it."""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest

from .processes import started


def ends(how):
    print("begun", flush=True)
    atexit.register(print, "the very end")
    threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
    if how == "raise":
        raise KeyError("mine")
    if how == "exit":
        sys.exit(3)
    if how == "at once":
        os._exit(4)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "interrupted":
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("return", 0, "a thread\nthe very end\n"),
        ("raise", 1, "KeyError: 'mine'\na thread\nthe very end\n"),
        ("exit", 3, "a thread\nthe very end\n"),
        ("interrupted", -signal.SIGINT, "KeyboardInterrupt\na thread\nthe very end\n"),
        ("at once", 4, "begun\n"),
        ("killed", -signal.SIGKILL, "begun\n"),
    ],
)
def test_every_end(how, code, words):
    with started((ends, how)) as (process,):
        printed = process.communicate(60)[0].decode()
        assert (process.returncode, process.poll()) == (code, code)
    assert printed.startswith("begun\n")
    assert printed.endswith(words)


def tell():
    print(hash("wavelet"), id(numpy), numpy.random.rand(), os.environ["GIVEN"], Path.cwd(), threading.active_count())


def test_two_side_by_side_have_little_in_common(tmp_path, monkeypatch):
    """Neither the order of sets nor what is drawn without a seed; the environment and the folder are the given."""
    monkeypatch.chdir(tmp_path)
    drawn = set()
    for _ in range(2):  # the second time by servers that have forked before
        with started((tell,), (tell,), env={**os.environ, "GIVEN": "so"}) as both:
            mine, theirs = (process.communicate(60)[0].decode().split() for process in both)
        assert all(one != other for one, other in zip(mine[:3], theirs[:3], strict=True))
        assert mine[3:] == theirs[3:] == ["so", str(tmp_path), "1"]
        drawn |= {mine[2], theirs[2]}
    assert len(drawn) == 4


def test_one_that_does_not_end():
    with started((time.sleep, 1000)) as (process,):
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        assert process.poll() is None
    assert process.returncode == -signal.SIGKILL
