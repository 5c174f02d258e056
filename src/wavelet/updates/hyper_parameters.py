"""The entries of parameter groups: which ones the user changed, and when an update applies them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["HyperParameters", "changed_entries", "read_hyper_parameters", "same_value"]

HyperParameters = tuple[dict[str, Any], ...]
"""For each parameter group its entries, ``params`` left out: a snapshot that nobody writes to."""


def read_hyper_parameters(optimizer: Optimizer, before: HyperParameters | None = None) -> HyperParameters:
    """The entries of ``optimizer``'s groups now; the very object ``before`` if nothing has changed."""
    groups = optimizer.param_groups
    if before is not None and len(before) == len(groups) and all(map(_unchanged, groups, before)):
        return before
    return tuple({name: _frozen(value) for name, value in group.items() if name != "params"} for group in groups)


def changed_entries(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The entries of ``new`` that ``old`` lacks or has with another value."""
    return {name: value for name, value in new.items() if name not in old or not same_value(old[name], value)}


def same_value(old: Any, new: Any) -> bool:
    """Equality that also works for tensors (by value) and for objects whose ``==`` is not a bool."""
    if old is new:
        return True
    if isinstance(old, Tensor) or isinstance(new, Tensor):
        return isinstance(old, Tensor) and isinstance(new, Tensor) and torch.equal(old, new)
    try:
        return type(old) is type(new) and bool(old == new)
    except (TypeError, ValueError, RuntimeError):
        return False


def _unchanged(group: dict[str, Any], before: dict[str, Any]) -> bool:
    return len(group) == len(before) + 1 and all(
        name in before and same_value(before[name], value) for name, value in group.items() if name != "params"
    )


def _frozen(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
