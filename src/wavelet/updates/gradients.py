"""Arithmetic on lists of gradients in which some may be missing: folding, means, unscaling, finiteness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor, nn

__all__ = ["Gradients", "add_", "all_finite", "divide_", "mean_of_window", "multiply_", "take_gradients"]

Gradients = list[Tensor | None]
"""One gradient a parameter, in the order of ``model.parameters()``; None where there is none."""


def add_(total: Gradients, newer: Sequence[Tensor | None], owned: Sequence[bool] | None = None) -> None:
    """``total += newer``, in place where possible; a missing gradient counts as zero if the other is there.

    Args:
        total: written; takes ``newer``'s own tensors where it has none, so ``newer`` must be given up unless ``owned``.
        newer: read.
        owned: which entries of ``total`` may be written; the others are replaced. Where it is given, entries of
            ``newer`` are copied, not taken.
    """
    written: list[Tensor] = []
    added: list[Tensor] = []
    for index, (old, new) in enumerate(zip(total, newer, strict=True)):
        if new is None:
            continue
        if old is None:
            total[index] = new if owned is None else new.clone()
        elif old.layout == new.layout == torch.strided and (owned is None or owned[index]):
            written.append(old)
            added.append(new)
        else:
            total[index] = new + old if old.is_sparse else old + new  # sparse + dense is not supported, the other is
    if written:
        torch._foreach_add_(written, added)


def divide_(gradients: Gradients, divisor: float) -> None:
    """Divide each gradient in place."""
    dense, others = _by_layout(gradients)
    if dense:
        _divide_dense_(dense, divisor)
    for gradient in others:
        gradient.div_(divisor)


def _divide_dense_(gradients: list[Tensor], divisor: float) -> None:
    if gradients[0].is_cpu and float(numpy.float32(divisor)) == divisor:
        # There a Python number is made a tensor once a gradient, which takes three times as long as dividing.
        torch._foreach_div_(gradients, [torch.tensor(divisor, dtype=torch.float32)] * len(gradients))
    else:
        torch._foreach_div_(gradients, divisor)


def multiply_(gradients: Gradients, factor: float) -> None:
    """Multiply each gradient in place."""
    dense, others = _by_layout(gradients)
    if dense:
        torch._foreach_mul_(dense, factor)
    for gradient in others:
        gradient.mul_(factor)


def _by_layout(gradients: Gradients) -> tuple[list[Tensor], list[Tensor]]:
    present = [gradient for gradient in gradients if gradient is not None]
    dense = [gradient for gradient in present if gradient.layout == torch.strided]
    return dense, [gradient for gradient in present if gradient.layout != torch.strided]


def mean_of_window(window: Sequence[Gradients], size: int) -> Gradients:
    """The sum of ``window``, from the oldest to the newest, divided by ``size``.

    Consumes the oldest entry if the window is full; the others stay as they are.
    """
    if len(window) == size > 1 and all(map(_is_whole, window)):
        summed: list[Tensor] = list(window[0])  # type: ignore[arg-type]
        for newer in window[1:]:
            torch._foreach_add_(summed, newer)  # type: ignore[arg-type]
        _divide_dense_(summed, size)
        return list(summed)
    total = list(window[0])
    owned = [len(window) == size and gradient is not None for gradient in total]
    for newer in window[1:]:
        add_(total, newer, owned)
        owned = [mine or new is not None for mine, new in zip(owned, newer, strict=True)]
    total = [part if mine or part is None else part.clone() for mine, part in zip(owned, total, strict=True)]
    if size > 1:
        divide_(total, size)
    return total


def _is_whole(gradients: Gradients) -> bool:
    """Whether none is missing and none is sparse."""
    return bool(gradients) and all(g is not None and g.layout is torch.strided for g in gradients)


def all_finite(gradients: Gradients) -> bool:
    """Whether every gradient is finite; waits for the device."""
    values = [g.coalesce().values() if g.is_sparse else g for g in gradients if g is not None]
    values = [value for value in values if value.numel()]
    if not values:
        return True
    norms = torch._foreach_norm(values, float("inf"))
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())


def take_gradients(parameters: Sequence[nn.Parameter]) -> Gradients:
    """The parameters' gradients, which they give up."""
    gradients: Gradients = []
    for parameter in parameters:
        gradients.append(parameter.grad)
        parameter.grad = None
    return gradients
