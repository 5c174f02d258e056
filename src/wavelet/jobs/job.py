"""A job: everything that one training run needs, checked before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import KW_ONLY, dataclass
from math import inf
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.optim import Optimizer

from wavelet.jobs.evaluation import Evaluation, Loss, Metric, evaluate
from wavelet.jobs.seeds import check_seed

__all__ = ["Job"]


class _Scheduler(Protocol):
    def step(self) -> None: ...


@dataclass(frozen=True, eq=False)
class Job:
    """What to train, with what, on what.

    Args:
        model: the model; it may already have been trained.
        optimizer: any torch optimizer over the model's parameters.
        loss: ``loss(model, batch)`` returns a scalar tensor, or a mapping whose entry ``"loss"`` is one.
        loader: yields batches, one pass after the other; a length is not needed. With several ranks it must
            hand each rank samples of its own, and the same number of batches to all.

    Keyword Args:
        samples_per_batch: samples in one batch of one rank; ``loader.batch_size`` if not given.
        validation: batches kept apart from training, the same in every pass and on every rank.
        metric: ``metric(model, batch)`` returns a scalar tensor, as the share of right answers; shown as "accuracy".
        seed: what the random generators were set to before the job was made.
        name: how tables and files call the job; `wavelet.jobs.load` fills in an empty one.
        scheduler: stepped once an update.
        clip_grad_norm: the largest L2 norm of a gradient that the optimizer may use.
        autocast: run forward and loss in ``torch.bfloat16`` or ``torch.float16``.

    Raises:
        ValueError: an argument makes no sense; the message says which, and what is allowed.
    """

    model: nn.Module
    optimizer: Optimizer
    loss: Loss
    loader: Iterable[Any]
    _: KW_ONLY
    samples_per_batch: int = cast("int", None)
    validation: Iterable[Any] | None = None
    metric: Metric | None = None
    seed: int = 0
    name: str = ""
    scheduler: _Scheduler | None = None
    clip_grad_norm: float | None = None
    autocast: torch.dtype | None = None

    def __post_init__(self) -> None:
        _check_objects(self)
        _check_settings(self)
        object.__setattr__(self, "samples_per_batch", _count_samples(self.samples_per_batch, self.loader))

    def evaluate(self) -> Evaluation:
        """Mean loss and accuracy of the model as it is now, over one pass of the validation data.

        Batches weigh by the length of their first tensor. The model runs in eval mode and without gradients; its modes
        and all random states are afterwards as they were before.

        Raises:
            ValueError: the job has no validation data, or they yield no batch.
        """
        if self.validation is None:
            raise ValueError("This job has no validation data: pass validation=, batches kept apart from training.")
        return evaluate(self.model, self.loss, self.validation, metric=self.metric, autocast=self.autocast)


def _check_objects(job: Job) -> None:
    _require(isinstance(job.model, nn.Module), "model", job.model, "a torch.nn.Module")
    _require(isinstance(job.optimizer, Optimizer), "optimizer", job.optimizer, "a torch.optim.Optimizer")
    _require(callable(job.loss), "loss", job.loss, "a function loss(model, batch)")
    _require(
        _repeats(job.loader), "loader", job.loader, "a loader or a list, which can be gone through again and again"
    )
    _require(
        job.metric is None or callable(job.metric), "metric", job.metric, "a function metric(model, batch) or None"
    )
    repeating = "a loader or a list of at least one batch, which can be gone through again and again, or None"
    validation: object = job.validation
    some = len(validation) > 0 if isinstance(validation, Sized) else _repeats(validation)
    _require(validation is None or (some and _repeats(validation)), "validation", validation, repeating)
    steps = callable(getattr(job.scheduler, "step", None))
    _require(job.scheduler is None or steps, "scheduler", job.scheduler, "a learning-rate scheduler or None")
    if getattr(job.scheduler, "optimizer", job.optimizer) is not job.optimizer:
        raise ValueError("The scheduler belongs to another optimizer: build it with the optimizer of this job.")


def _repeats(batches: object) -> bool:
    return isinstance(batches, Iterable) and not isinstance(batches, Iterator)


def _check_settings(job: Job) -> None:
    check_seed(job.seed)
    _require(isinstance(job.name, str), "name", job.name, "a string")
    clip: object = job.clip_grad_norm
    positive = isinstance(clip, float | int) and not isinstance(clip, bool) and 0 < clip < inf
    _require(clip is None or positive, "clip_grad_norm", clip, "a finite number above 0, or None")
    allowed = job.autocast in (None, torch.bfloat16, torch.float16)
    _require(allowed, "autocast", job.autocast, "torch.bfloat16, torch.float16 or None")


def _count_samples(given: int | None, loader: Iterable[Any]) -> int:
    count = getattr(loader, "batch_size", None) if given is None else given
    if count is None:
        raise ValueError("The loader does not say how many samples a batch has: pass samples_per_batch=.")
    whole = isinstance(count, int) and not isinstance(count, bool)
    _require(whole and count >= 1, "samples_per_batch", count, "a whole number from 1")
    return int(count)


def _require(good: bool, name: str, given: object, wanted: str) -> None:
    if not good:
        text = repr(given)
        shown = text if len(text) <= 60 and "\n" not in text else f"<{type(given).__name__}>"
        raise ValueError(f"{name}={shown} is not possible: give {wanted}.")
