"""The two ways to train a job, the ordinary loop and waves, behind one face; and the drive that times either."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import torch

from wavelet.devices import move

if TYPE_CHECKING:
    from wavelet.jobs import Job

__all__ = ["Loop", "PlainLoop", "WavesLoop", "batches", "drive"]

ReadLoss = Callable[[], float]
"""Gives the loss of one batch; may wait for it."""


class Loop(Protocol):
    """Trains batches one by one. As a context manager it stops all threads on leaving."""

    def step(self, batch: Any) -> ReadLoss:
        """Train one batch, or hand it on."""

    def drain(self) -> None:
        """Return when everything handed in is done."""

    def flush(self) -> None:
        """Drain, and apply what an incomplete accumulation has."""

    def __enter__(self) -> Loop: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlainLoop:
    """The ordinary loop: forward, backward, update.

    Args:
        model: a wrapper of the job's model to call instead of it.
        accumulate: batches for one update, which uses the mean of their gradients.
        compile: compile the model as a whole.
    """

    def __init__(
        self, job: Job, *, model: torch.nn.Module | None = None, accumulate: int = 1, compile: bool = False
    ) -> None:
        self._job = job
        self._model: Any = model or job.model
        if compile:
            self._model = torch.compile(self._model)
        self._accumulate = accumulate
        self._pending = 0
        self._device = next((parameter.device for parameter in job.model.parameters()), torch.device("cpu"))

    def step(self, batch: Any) -> ReadLoss:
        with self._autocast():
            value = self._job.loss(self._model, move(batch, self._device))
        loss: torch.Tensor = value["loss"] if isinstance(value, Mapping) else value
        loss.backward()
        self._pending += 1
        if self._pending == self._accumulate:
            self._update()
        return loss.detach().item

    def drain(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize()

    def flush(self) -> None:
        if self._pending:
            self._update()
        self.drain()

    def __enter__(self) -> PlainLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._job.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._job.autocast)

    def _update(self) -> None:
        parameters = list(self._job.model.parameters())
        if self._pending > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self._pending)
        if self._job.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self._job.clip_grad_norm)
        self._job.optimizer.step()
        self._job.optimizer.zero_grad(set_to_none=True)
        if self._job.scheduler is not None:
            self._job.scheduler.step()
        self._pending = 0


class WavesLoop:
    """Wavelet's engine on a job.

    Args:
        options: of `wavelet.Wavelet`: waves, update, accumulate, resync, compile, budget.

    Raises:
        ValueError: the engine refuses the options or the job.
    """

    def __init__(self, job: Job, **options: Any) -> None:
        import wavelet

        self.engine = wavelet.Wavelet(
            job.model,
            job.optimizer,
            job.loss,
            clip_grad_norm=job.clip_grad_norm,
            autocast=job.autocast,
            scheduler=job.scheduler,
            **options,
        )

    def step(self, batch: Any) -> ReadLoss:
        handle = self.engine.step(batch)
        return lambda: float(handle.loss)

    def drain(self) -> None:
        self.engine.drain()

    def flush(self) -> None:
        self.engine.flush()

    def __enter__(self) -> WavesLoop:
        self.engine.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.__exit__(kind, error, trace)


def batches(loader: Iterable[Any], epochs: int | None = None) -> Iterator[Any]:
    """The batches of `epochs` passes over `loader`; endless if None."""
    for _ in itertools.count() if epochs is None else range(epochs):
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise ValueError("the job's loader has no batch")


def drive(
    loop: Loop,
    source: Iterator[Any],
    steps: int | None,
    *,
    behind: int = 0,
    on_loss: Callable[[int, float], None] = lambda done, loss: None,
) -> tuple[int, float]:
    """Train `steps` batches (None: all that `source` has), then drain.

    Args:
        behind: read a loss only when this many later batches have been handed in, so that no wave is waited for.
        on_loss: called in order with the number of batches whose loss has been read, and the loss.

    Returns:
        The number of batches, and the seconds of wall clock including the drain.
    """
    unread: deque[ReadLoss] = deque()
    done = read = 0
    start = time.perf_counter()
    for batch in itertools.islice(source, steps):
        unread.append(loop.step(batch))
        done += 1
        if len(unread) > behind:
            read += 1
            on_loss(read, unread.popleft()())
    loop.drain()
    seconds = time.perf_counter() - start
    for read_loss in unread:
        read += 1
        on_loss(read, read_loss())
    return done, seconds
