"""The parameters that a loss would train: those that are not the model's must not be trained from a wave's thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from wavelet.devices import tensors_in

__all__ = ["check_leaves"]


def check_leaves(loss: Tensor, own: Iterable[Tensor], face: Iterable[Tensor], batch: Any, *, num_waves: int) -> None:
    """Look through the graph of ``loss`` for parameters whose gradient a backward would write.

    Other tensors that require gradients may have been made by the loss itself, as for a gradient penalty.

    Args:
        loss: before its backward.
        own: the parameters of the replica that gave it.
        face: the parameters of the user's own model.
        batch: on the device; its tensors may require gradients.
        num_waves: with a single wave the backward runs in the caller's thread, where any tensor may be trained.

    Raises:
        ValueError: the loss trains the user's own model object, or, with several waves, a parameter outside the model.
    """
    allowed = {id(tensor) for tensor in (*own, *tensors_in(batch))}
    originals = {id(tensor) for tensor in face}
    for leaf in _leaves(loss):
        if id(leaf) in allowed:
            continue
        if id(leaf) in originals:
            raise ValueError(
                "the loss was computed with the original model, not with the one that loss(model, batch) was given: "
                "use that argument; if you do, a copy of the model calls the original, so pass replicate=."
            )
        if num_waves > 1 and isinstance(leaf, nn.Parameter):
            raise ValueError(
                f"the loss depends on a parameter of shape {tuple(leaf.shape)} that requires a gradient and is not in "
                "the model, so a wave's thread would write its gradient at a moment that nobody chose: make it a part "
                "of the model, detach it, or use waves=1."
            )


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting.extend(next_node for next_node, _ in node.next_functions)
