"""Runs a function in several processes, one a rank, and gives what each returned."""

import contextlib
import os
import pickle
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from .. import processes


def run(function, size, *arguments, timeout=150, codes=(0,)):
    """``function(rank, size, *arguments)`` on each of ``size`` ranks; their results in order.

    ``function`` must be importable. Fails with what a rank printed if one does not end with one of ``codes``.
    """
    with started(function, size, *arguments) as (folder, ranks):
        outputs = [rank.communicate(timeout=timeout)[0].decode(errors="replace") for rank in ranks]
        for number, (rank, output) in enumerate(zip(ranks, outputs, strict=True)):
            assert rank.returncode in codes, f"rank {number} ended with {rank.returncode}:\n{output[-3000:]}"
        return [pickle.loads((folder / f"result{rank}").read_bytes()) for rank in range(size)]


def failures(size, function, *arguments):
    """Of each rank, what `fail_with` gives.

    A process whose engine has failed ends at once with 1 if other ranks never came to a collective that it started.
    """
    return run(fail_with, size, function, *arguments, codes=(0, 1))


def fail_with(rank, size, function, *arguments):
    """The error that ``function`` raises on this rank, and after how many seconds."""
    start = time.monotonic()
    try:
        function(rank, size, *arguments)
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return None


@contextlib.contextmanager
def started(function, size, *arguments):
    """The processes of `run`, and the folder of their results; those that still run at the end are killed."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as name:
        calls = [(_be_a_rank, Path(name), rank, size, function, arguments) for rank in range(size)]
        with processes.started(*calls, env=environment) as ranks:
            yield Path(name), ranks


def _be_a_rank(folder, rank, size, function, arguments):
    torch.set_num_threads(2)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    result = function(rank, size, *arguments)
    (folder / f"result{rank}").write_bytes(pickle.dumps(result))
    dist.destroy_process_group()
