"""Moving a batch: every tensor in it to one device, whatever holds the tensors."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["move"]


def move(batch: Any, device: torch.device) -> Any:
    """``batch`` with its tensors on ``device``; the same object where nothing has to move.

    Tensors are found in mappings, sequences, named tuples, dataclasses, and in objects with a ``to(device)`` of their
    own (``BatchEncoding``, ``PackedSequence``). Anything else is passed on as it is.
    """
    if isinstance(batch, Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=True)
    if isinstance(batch, (str, bytes, int, float, type(None))):
        return batch
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _with_changes(batch, {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}, device)
    if hasattr(batch, "to") and callable(batch.to):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return _mapping(batch, device)
    if isinstance(batch, (list, tuple)):
        return _sequence(batch, device)
    return batch


def _mapping(batch: Mapping[Any, Any], device: torch.device) -> Mapping[Any, Any]:
    changed = {key: moved for key, value in batch.items() if (moved := move(value, device)) is not value}
    if not changed:
        return batch
    new: Any = copy.copy(batch)
    for key, value in changed.items():
        new[key] = value
    return new  # type: ignore[no-any-return]


def _sequence(batch: Any, device: torch.device) -> Any:
    items = [move(value, device) for value in batch]
    if all(new is old for new, old in zip(items, batch, strict=True)):
        return batch
    if hasattr(batch, "_fields"):
        return type(batch)(*items)
    return type(batch)(items)


def _with_changes(batch: Any, fields: dict[str, Any], device: torch.device) -> Any:
    changed = {name: moved for name, value in fields.items() if (moved := move(value, device)) is not value}
    if not changed:
        return batch
    new = copy.copy(batch)
    for name, value in changed.items():
        object.__setattr__(new, name, value)  # also into a frozen dataclass
    return new
