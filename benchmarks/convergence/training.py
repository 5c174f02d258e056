"""One training run, from its seed to its record."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from convergence.runs import Record, Run
from wavelet import Wavelet
from wavelet.jobs import Job, load
from wavelet.report.machine import versions

__all__ = ["prepare", "share_of_rate", "train"]

EVALUATE_AT = (0.1, 0.3, 0.6, 0.8, 1.0)
RISING_SHARE = 0.1
CONSTANT_UNTIL = 0.6
DRIFT_EVERY = 23  # rounds: prime to every resync of the study, so both sides of a resync are seen
VALIDATION_BATCHES = 8  # of the texts; the digits have 6
WAVES = 2


def prepare() -> None:
    """Set up this process: one thread for each wave, and no denormals, which cost time and mean nothing."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.use_deterministic_algorithms(True)


def share_of_rate(round_number: int, num_rounds: int) -> float:
    """A round's rate over the full rate: it rises in a line in the first tenth of the rounds, and falls after 60 %."""
    rising, constant = RISING_SHARE * num_rounds, CONSTANT_UNTIL * num_rounds
    return min(1.0, (round_number + 1) / rising, (num_rounds - round_number) / (num_rounds - constant))


def train(run: Run) -> Record:
    """Train as `run` says, in this process."""
    start = time.perf_counter()
    job = load(run.job, seed=run.seed, batch_size=run.batch_size)
    assert isinstance(job.validation, list)
    job = replace(job, validation=job.validation[:: max(len(job.validation) // VALIDATION_BATCHES, 1)])
    initial = _checksum(job.model.parameters())
    if run.momentum is not None:
        _set_momentum(job.optimizer, run.momentum)
    trainer: _Plain | _Waves = _Plain(job) if run.rule == "plain" else _Waves(job, run.rule, run.resync)
    num_rounds = run.num_batches // WAVES
    points = {WAVES * round(share * num_rounds) for share in EVALUATE_AT}
    record = Record(run, [], [], [], [], [], [], [], [], 0.0, versions())
    losses: list[Callable[[], float]] = []
    seen = 0
    with trainer:
        for done, batch in enumerate(islice(_endless(job), run.num_batches), start=1):
            seen = _checksum(batch, seen)
            round_number = (done - 1) // WAVES
            for group in job.optimizer.param_groups:
                group["lr"] = run.rate * share_of_rate(round_number, num_rounds)
            losses.append(trainer.step(batch))
            if done % (WAVES * DRIFT_EVERY) == 0:
                drift, norm = trainer.drift()
                record.updates.append(done // WAVES)
                record.drifts.append(_finite(drift))
                record.weight_norms.append(_finite(norm))
            if done in points:
                trainer.drain()
                loss, accuracy = job.evaluate()
                record.samples.append(done * run.batch_size)
                record.losses.append(_finite(loss))
                record.accuracies.extend([] if accuracy is None else [accuracy])
    record.training_losses.extend(_finite(loss()) for loss in losses)
    record.checks.extend([initial, seen])
    return replace(record, seconds=time.perf_counter() - start)


class _Waves:
    """Wavelet's engine, in two waves. Draining and reading its state change no later result."""

    def __init__(self, job: Job, rule: str, resync: int | None) -> None:
        self._engine = Wavelet(
            job.model,
            job.optimizer,
            job.loss,
            waves=WAVES,
            update=rule,
            resync=resync,
            clip_grad_norm=job.clip_grad_norm,
            timeout=3600.0,  # a machine that is busy or asleep is not stuck
        )

    def __enter__(self) -> _Waves:
        self._engine.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._engine.__exit__(*error)

    def step(self, batch: Any) -> Callable[[], float]:
        step = self._engine.step(batch)
        return lambda: step.loss

    def drain(self) -> None:
        self._engine.drain()

    def drift(self) -> tuple[float, float]:
        weights = self._engine.state_dict()["weights"]
        return _distance(weights[0], weights[-1]), _norm(weights[0])


class _Plain:
    """The ordinary loop: one step with the mean gradient of every two batches."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._num_folded = 0

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def step(self, batch: Any) -> Callable[[], float]:
        loss = self._job.loss(self._job.model, batch)
        assert isinstance(loss, Tensor)
        loss.backward()
        self._num_folded += 1
        if self._num_folded == WAVES:
            parameters = list(self._job.model.parameters())
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(WAVES)
            if self._job.clip_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, self._job.clip_grad_norm)
            self._job.optimizer.step()
            self._job.optimizer.zero_grad()
            self._num_folded = 0
        return loss.detach().item

    def drain(self) -> None:
        pass

    def drift(self) -> tuple[float, float]:
        return 0.0, _norm([parameter.detach() for parameter in self._job.model.parameters()])


def _set_momentum(optimizer: torch.optim.Optimizer, momentum: float) -> None:
    for group in optimizer.param_groups:
        if "betas" in group:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


def _endless(job: Job) -> Iterator[Any]:
    while True:
        yield from job.loader


def _checksum(tensors: Any, start: int = 0) -> int:
    for tensor in tensors:
        start = zlib.crc32(tensor.detach().numpy().tobytes(), start)
    return start


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def _distance(one: list[Tensor], other: list[Tensor]) -> float:
    return _norm([mine - theirs for mine, theirs in zip(one, other, strict=True)])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
