"""How good a model is: its mean loss and accuracy over batches kept apart from training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from wavelet.devices import move
from wavelet.jobs.seeds import kept_random_state

__all__ = ["Evaluation", "Loss", "Metric", "evaluate"]

Loss: TypeAlias = Callable[[nn.Module, Any], "Tensor | Mapping[str, Any]"]
Metric: TypeAlias = Callable[[nn.Module, Any], Tensor]


class Evaluation(NamedTuple):
    """What the validation data say about a model; no accuracy without a metric."""

    loss: float
    accuracy: float | None


def evaluate(
    model: nn.Module, loss: Loss, batches: Iterable[Any], *, metric: Metric | None, autocast: torch.dtype | None
) -> Evaluation:
    """Mean of `loss` and `metric` over one pass of `batches`, without gradients.

    A batch weighs by the length of its first tensor, so a short last one counts for what it holds. The model runs in
    eval mode; its modes and all random states are afterwards as they were before.

    Raises:
        ValueError: there is no batch.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    casting = nullcontext() if autocast is None else torch.autocast(device.type, dtype=autocast)
    weights, losses, accuracies = [], [], []
    with kept_random_state(), _eval_mode(model), torch.no_grad():
        for batch in (move(each, device) for each in batches):
            with casting:
                outcome = loss(model, batch)
                if metric is not None:
                    accuracies.append(float(metric(model, batch)))
            losses.append(float(outcome["loss"] if isinstance(outcome, Mapping) else outcome))
            weights.append(_num_samples(batch))
    if not weights:
        raise ValueError("The validation data yielded no batch: pass something that yields some in every pass.")
    return Evaluation(_mean(losses, weights), _mean(accuracies, weights) if accuracies else None)


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
