"""The tensors inside a batch, whatever holds them: found, changed, and put back into containers of the same kind."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["map_tensors", "move", "tensors_in"]


def move(batch: Any, device: torch.device) -> Any:
    """``batch`` with its tensors on ``device``; the same object where nothing has to move.

    Tensors are found in mappings, sequences, named tuples, dataclasses, and in objects with a ``to(device)`` of their
    own (``BatchEncoding``, ``PackedSequence``). Anything else is passed on as it is.
    """

    def to_device(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value if value.device == device else value.to(device, non_blocking=True)
        return value.to(device) if callable(getattr(value, "to", None)) else value

    return map_tensors(batch, to_device)


def map_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with ``change`` applied to each tensor, and to each object that is no container known here.

    Containers are copied only where something in them changes; a frozen dataclass too.
    """
    if isinstance(value, Tensor) or callable(getattr(value, "to", None)):
        return change(value)
    if isinstance(value, Mapping):
        return _changed_mapping(value, change)
    if isinstance(value, (list, tuple)):
        return _changed_sequence(value, change)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _changed_dataclass(value, change)
    return change(value)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors that `map_tensors` would find."""
    found: list[Tensor] = []

    def keep(item: Any) -> Any:
        if isinstance(item, Tensor):
            found.append(item)
        return item

    map_tensors(value, keep)
    return found


def _changed_mapping(old: Mapping[Any, Any], change: Callable[[Any], Any]) -> Mapping[Any, Any]:
    changed = {key: new for key, item in old.items() if (new := map_tensors(item, change)) is not item}
    if not changed:
        return old
    try:
        copied: Any = copy.copy(old)
        for key, item in changed.items():
            copied[key] = item
    except TypeError:  # a read-only mapping
        return {**old, **changed}
    return copied  # type: ignore[no-any-return]


def _changed_sequence(old: Any, change: Callable[[Any], Any]) -> Any:
    items = [map_tensors(item, change) for item in old]
    if all(new is item for new, item in zip(items, old, strict=True)):
        return old
    return type(old)(*items) if hasattr(old, "_fields") else type(old)(items)


def _changed_dataclass(old: Any, change: Callable[[Any], Any]) -> Any:
    fields = {f.name: getattr(old, f.name) for f in dataclasses.fields(old) if hasattr(old, f.name)}
    changed = {name: new for name, item in fields.items() if (new := map_tensors(item, change)) is not item}
    if not changed:
        return old
    copied = copy.copy(old)
    for name, item in changed.items():
        object.__setattr__(copied, name, item)
    return copied
