"""A small job one of whose ranks fails on command, once.

``FAIL`` in the environment is ``kind rank batch marker``: rank ``rank`` fails in the forward of its batch number
``batch``, counted in this process, unless the file ``marker`` is there; it is written just before.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import wavelet
from wavelet.jobs.batches import RandomBatches, ordered_batches


class _FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError("the backward went wrong")


class Fault:
    """What ``FAIL`` asks for."""

    def __init__(self, text: str) -> None:
        self.kind, rank, batch, marker = text.split(" ", 3)
        self._batch, self._marker = int(batch), Path(marker)
        self._mine = os.environ.get("RANK") == rank
        self._number = 0

    def due(self) -> bool:
        """Whether it is time, counted by the calls."""
        self._number += 1
        if not self._mine or self._number <= self._batch or self._marker.exists():
            return False
        self._marker.write_text(repr(time.monotonic()), encoding="utf-8")
        return True

    def happen(self, loss: Tensor) -> Tensor:
        """Fail; what is outside of this process is done to it from there, while it waits."""
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.kind == "forward":
            raise KeyError("no such sample")
        if self.kind == "memory":
            raise torch.OutOfMemoryError("out of memory: tried to allocate 2 GiB")
        return _FailsInBackward.apply(loss) if self.kind == "backward" else loss  # type: ignore[no-untyped-call]


def job(*, seed: int = 0, batch_size: int = 16) -> wavelet.Job:
    """A perceptron with dropout and BatchNorm on made-up data, 5 ms a batch so that a failure falls somewhere."""
    fault = Fault(os.environ["FAIL"]) if os.environ.get("FAIL") else None
    made_up = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, 16, generator=made_up)
    labels = (inputs @ torch.randn(16, 4, generator=made_up)).argmax(1)
    layers = [nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 4))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        value = cross_entropy(model(batch[0]), batch[1])
        if model.training:
            time.sleep(0.005)
            if fault is not None and fault.due():
                return fault.happen(value)
        return value

    def gather(numbers: Tensor) -> tuple[Tensor, Tensor]:
        return inputs[numbers], labels[numbers]

    return wavelet.Job(
        model,
        torch.optim.Adam(model.parameters(), lr=0.01),
        loss,
        RandomBatches(len(inputs), batch_size, gather),
        validation=ordered_batches(512, 512, gather),
        seed=seed,
        name="mortal",
    )
