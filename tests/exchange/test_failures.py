"""What happens in clusters: each failure ends all ranks in bounded time, and the others name the one that failed."""

import os
import pickle
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

import wavelet
from wavelet.exchange import AllReduce

from .. import models
from .ranks import started

pytestmark = pytest.mark.distributed

TIMEOUT = 8.0
"""Seconds of the exchange."""
BOUND = TIMEOUT + 25.0
"""Seconds after which a test calls it a hang: far above what a busy machine needs to notice and leave."""


def train(rank, size, what, folder, waves):
    """Train for ever; rank 1 does ``what`` at batch 6. Gives how the others ended."""
    model = models.mlp(dropout=0.0, norm=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    number = 0

    class Explodes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("the backward went wrong")

    def loss(net, batch):
        value = models.loss(net, batch)
        if number == 6 and rank == 1:
            if what == "forward":
                raise KeyError("no such sample")
            if what == "backward":
                return Explodes.apply(value)
            if what == "out of memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
            Path(folder, f"{rank}.reached").touch()
            if what in ("killed", "stopped"):
                time.sleep(100)  # until it comes
            while what == "slow" and not Path(folder, "0.ended").exists():  # for longer than the others' patience
                time.sleep(0.1)
        return value

    start = time.monotonic()
    try:
        exchange = AllReduce(timeout=TIMEOUT)
        with wavelet.Wavelet(model, optimizer, loss, waves=waves, exchange=exchange) as engine:
            batches = models.batches(4, seed=rank)
            while True:
                if number == 6 and rank == 1 and what == "loop":
                    raise ZeroDivisionError("in the user's loop")
                if number == 6:
                    start = time.monotonic()
                engine.step(batches[number % 4])
                number += 1
    except BaseException as error:
        result = type(error).__name__, str(error), time.monotonic() - start
    Path(folder, f"{rank}.ended").write_bytes(pickle.dumps(result))
    os._exit(1)  # as a launcher's worker does: threads of a broken group may wait for long


def outcome(what, tmp_path, *, size=2, waves=2):
    """How each rank ended, by its number; and its exit code."""
    with started(train, size, what, str(tmp_path), waves) as (_, processes):
        if what in ("killed", "stopped", "interrupted"):
            reached = tmp_path / "1.reached"
            deadline = time.monotonic() + 90
            while not reached.exists():
                assert time.monotonic() < deadline, "rank 1 never came to its batch"
                time.sleep(0.01)
            time.sleep(2.5)  # the last sign is then not older than the batch
            sent = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "interrupted": signal.SIGINT}[what]
            processes[1].send_signal(sent)
        left = [rank for rank in range(size) if not (rank == 1 and what in ("killed", "stopped"))]
        for rank in left:
            try:
                processes[rank].wait(90 + BOUND)
            except subprocess.TimeoutExpired:
                pytest.fail(f"rank {rank} hangs after rank 1 was {what}")
        codes = {rank: processes[rank].returncode for rank in left}
        return {rank: pickle.loads((tmp_path / f"{rank}.ended").read_bytes()) for rank in left}, codes


@pytest.mark.parametrize("waves", [1, 2])
@pytest.mark.parametrize("what", ["killed", "stopped", "slow"])
def test_a_rank_that_is_gone_is_named(what, waves, tmp_path):
    ended, codes = outcome(what, tmp_path, waves=waves)
    kind, text, seconds = ended[0]
    assert kind == "ExchangeError", text
    assert "rank 1" in text
    assert "no sign of life" in text if what != "slow" else "furthest behind" in text
    assert "after handing in 6 batches" in text
    assert seconds < BOUND
    assert set(codes.values()) == {1}


@pytest.mark.parametrize("what", ["killed", "stopped"])
def test_all_of_four_ranks_leave_and_name_the_same_one(what, tmp_path):
    ended, codes = outcome(what, tmp_path, size=4)
    assert sorted(ended) == [0, 2, 3]
    for kind, text, seconds in ended.values():
        assert kind == "ExchangeError", text
        assert "rank 1" in text
        assert seconds < BOUND
    assert set(codes.values()) == {1}


@pytest.mark.parametrize(
    "what, kind, text",
    [
        ("forward", "KeyError", "no such sample"),
        ("backward", "RuntimeError", "the backward went wrong"),
        ("out of memory", "OutOfMemoryError", "out of memory"),
        ("loop", "ZeroDivisionError", "in the user's loop"),
    ],
)
def test_an_exception_on_one_rank_is_raised_there_and_told_to_the_others(what, kind, text, tmp_path):
    ended, _ = outcome(what, tmp_path)
    assert ended[1][0] == kind
    assert text in ended[1][1]
    assert ended[0][0] == "ExchangeError"
    assert f"rank 1 has stopped: {kind}: " in ended[0][1]
    assert text in ended[0][1]
    assert max(seconds for _, _, seconds in ended.values()) < BOUND


def test_ctrl_c_on_one_rank_ends_all(tmp_path):
    ended, _ = outcome("interrupted", tmp_path)
    assert ended[1][0] == "KeyboardInterrupt"
    assert ended[0][0] == "ExchangeError"
    assert "rank 1 has stopped: KeyboardInterrupt" in ended[0][1]
