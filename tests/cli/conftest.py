"""The command line as a user runs it: a process of its own, and a job of a few milliseconds."""

import runpy
import sys

import pytest

from ..processes import completed

TINY = """
import torch
from torch.nn.functional import mse_loss
import wavelet


def job(seed=0, batch_size=8):
    {first}
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    points = torch.randn(32, 4)
    data = [(x, x.sum(1, keepdim=True)) for x in points.split(batch_size)]
    return wavelet.Job(
        model, optimizer, lambda model, batch: {loss}, data,
        samples_per_batch=batch_size, validation=data,
    )
"""


def write_job(path, first="pass", loss="mse_loss(model(batch[0]), batch[1])"):
    path.write_text(TINY.format(first=first, loss=loss))
    return str(path)


@pytest.fixture
def tiny(tmp_path):
    """The path of a job file."""
    return write_job(tmp_path / "tiny.py")


def command_line(*arguments):
    """What ``python -m wavelet`` does."""
    sys.argv[1:] = arguments
    runpy.run_module("wavelet", run_name="__main__", alter_sys=True)


@pytest.fixture
def wavelet(tmp_path):
    """Runs a command in an empty folder; gives the finished process."""

    def run(*arguments):
        return completed(command_line, *map(str, arguments), cwd=tmp_path)

    return run


@pytest.fixture
def refused(wavelet):
    """Runs a command that must exit 2 with one line on standard error; gives that line."""

    def run(*arguments):
        done = wavelet(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr

    return run
