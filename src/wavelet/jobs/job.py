"""A job: everything that one training run needs, checked before it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from wavelet.jobs.seeds import check_seed, kept_random_state

__all__ = ["Evaluation", "Job", "Loss", "Metric"]

Loss: TypeAlias = Callable[[nn.Module, Any], "Tensor | Mapping[str, Any]"]
Metric: TypeAlias = Callable[[nn.Module, Any], Tensor]

_AUTOCAST_DTYPES = (torch.bfloat16, torch.float16)


class Evaluation(NamedTuple):
    """What the validation data say about a model."""

    loss: float
    accuracy: float | None


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
        validation: batches kept apart from training, the same in every pass; all ranks see all of them.
        metric: ``metric(model, batch)`` returns a scalar tensor, such as the share of right answers; shown as "accuracy".
        seed: what the random generators were set to before the job was built.
        name: how the job is called in tables and files; `wavelet.jobs.load` fills it in if it is empty.
        scheduler: stepped once an update.
        clip_grad_norm: largest L2 norm of the gradient that the optimizer uses.
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

        Batches weigh by the length of their first tensor, so a short last batch counts for what it holds. The model
        runs in eval mode without gradients; its modes and all random states are afterwards as they were before.

        Raises:
            ValueError: the job has no validation data, or they yield no batch.
        """
        if self.validation is None:
            raise ValueError("This job has no validation data: pass validation=, batches kept apart from training.")
        weights: list[int] = []
        losses: list[float] = []
        accuracies: list[float] = []
        with kept_random_state(), _eval_mode(self.model), torch.no_grad():
            for batch in self.validation:
                with self._autocast():
                    loss = self.loss(self.model, batch)
                    weights.append(_num_samples(batch))
                    losses.append(float(loss["loss"] if isinstance(loss, Mapping) else loss))
                    if self.metric is not None:
                        accuracies.append(float(self.metric(self.model, batch)))
        if not weights:
            raise ValueError("The validation data yielded no batch: pass something that yields some in every pass.")
        return Evaluation(_mean(losses, weights), _mean(accuracies, weights) if accuracies else None)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        device = next((parameter.device.type for parameter in self.model.parameters()), "cpu")
        return torch.autocast(device, dtype=self.autocast)


def _check_objects(job: Job) -> None:
    _require(isinstance(job.model, nn.Module), "model", job.model, "a torch.nn.Module")
    _require(isinstance(job.optimizer, Optimizer), "optimizer", job.optimizer, "a torch.optim.Optimizer, built")
    _require(callable(job.loss), "loss", job.loss, "a function loss(model, batch)")
    _require(isinstance(job.loader, Iterable), "loader", job.loader, "something that yields batches")
    _require(job.metric is None or callable(job.metric), "metric", job.metric, "a function metric(model, batch) or None")
    again = isinstance(job.validation, Iterable) and not isinstance(job.validation, Iterator)
    wanted = "batches that can be gone through again and again (a loader or a list, no iterator), or None"
    _require(job.validation is None or again, "validation", job.validation, wanted)
    steps = callable(getattr(job.scheduler, "step", None))
    _require(job.scheduler is None or steps, "scheduler", job.scheduler, "a learning-rate scheduler or None")
    if getattr(job.scheduler, "optimizer", job.optimizer) is not job.optimizer:
        raise ValueError("The scheduler belongs to another optimizer: build it with the optimizer that the job gets.")


def _check_settings(job: Job) -> None:
    check_seed(job.seed)
    _require(isinstance(job.name, str), "name", job.name, "a string")
    positive = _is_number(job.clip_grad_norm) and 0 < cast("float", job.clip_grad_norm) < float("inf")
    _require(job.clip_grad_norm is None or positive, "clip_grad_norm", job.clip_grad_norm, "a number above 0 or None")
    allowed = job.autocast is None or job.autocast in _AUTOCAST_DTYPES
    _require(allowed, "autocast", job.autocast, "torch.bfloat16, torch.float16 or None")


def _require(good: bool, name: str, given: object, wanted: str) -> None:
    if not good:
        raise ValueError(f"{name}={_short(given)} is not possible: give {wanted}.")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"<{type(value).__name__}>"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count_samples(given: int | None, loader: Iterable[Any]) -> int:
    count = getattr(loader, "batch_size", None) if given is None else given
    if count is None:
        raise ValueError("The loader does not say how many samples a batch has: pass samples_per_batch=.")
    good = isinstance(count, int) and not isinstance(count, bool) and count >= 1
    _require(good, "samples_per_batch", count, "a whole number from 1")
    return int(count)


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _num_samples(batch: Any) -> int:
    tensors = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim)
    return next((len(tensor) for tensor in tensors), 1)


def _mean(values: list[float], weights: list[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
