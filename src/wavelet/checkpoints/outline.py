"""Nested states as flat tensors with names, and an outline of plain values that puts them together again."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

__all__ = ["Place", "check", "flatten", "packed", "places", "rebuild", "unpacked"]


class Place(NamedTuple):
    """Where a tensor of an outline is.

    Args:
        key: its name among the tensors.
        stride: as it was in memory; None where it was contiguous. Sums over all elements depend on it in the last bit.
    """

    key: str
    stride: list[int] | None


def flatten(value: Any, key: str, tensors: dict[str, Tensor]) -> list[Any]:
    """The outline of ``value``, whose tensors (not copied) go into ``tensors`` under names that begin with ``key``.

    Raises:
        ValueError: a tensor of a layout that cannot be saved.
    """
    if isinstance(value, Tensor):
        return _flat_tensor(value.detach(), key, tensors)
    if isinstance(value, numpy.generic):
        return ["value", value.item()]
    if isinstance(value, Mapping):
        nodes = [flatten(item, f"{key}/{name}", tensors) for name, item in value.items()]
        if all(node[0] == "value" for node in nodes):
            return ["value", {name: node[1] for name, node in zip(value, nodes, strict=True)}]
        return ["dict", [[name, node] for name, node in zip(value, nodes, strict=True)]]
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        kind = "tuple" if isinstance(value, tuple) else "list"
        nodes = [flatten(item, f"{key}/{index}", tensors) for index, item in enumerate(value)]
        if all(node[0] == "value" for node in nodes):
            plain = [node[1] for node in nodes]
            return ["value", tuple(plain) if kind == "tuple" else plain]
        return [kind, nodes]
    return ["value", value]


def _flat_tensor(tensor: Tensor, key: str, tensors: dict[str, Tensor]) -> list[Any]:
    while key in tensors or f"{key}/indices" in tensors:  # as of the entries 1 and "1"
        key += "'"
    if tensor.layout is torch.sparse_coo:
        tensors[f"{key}/indices"], tensors[f"{key}/values"] = tensor._indices(), tensor._values()
        return ["sparse", key, list(tensor.shape), tensor.is_coalesced()]
    if tensor.layout is not torch.strided:
        raise ValueError(f"{key} has the layout {tensor.layout}: only strided and sparse_coo tensors can be saved.")
    tensors[key] = tensor
    # Those of a copy: of a tensor that shares elements with itself they would not do.
    stride = None if tensor.is_contiguous() else list(torch.empty_like(tensor, device="meta").stride())
    return ["tensor", key, stride]


def places(outline: list[Any]) -> Iterator[Place]:
    """The tensors that `rebuild` needs."""
    kind, *rest = outline
    if kind == "tensor":
        yield Place(rest[0], rest[1])
    elif kind == "sparse":
        yield Place(f"{rest[0]}/indices", None)
        yield Place(f"{rest[0]}/values", None)
    elif kind != "value":
        for node in rest[0]:
            yield from places(node[1] if kind == "dict" else node)


def rebuild(outline: list[Any], tensors: Mapping[str, Tensor]) -> Any:
    """What was flattened; mappings come back as dicts."""
    kind, *rest = outline
    if kind == "tensor":
        return tensors[rest[0]]
    if kind == "sparse":
        key, shape, coalesced = rest
        indices, values = tensors[f"{key}/indices"], tensors[f"{key}/values"]
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True, is_coalesced=coalesced)
    if kind == "dict":
        return {name: rebuild(node, tensors) for name, node in rest[0]}
    if kind in ("list", "tuple"):
        items = [rebuild(node, tensors) for node in rest[0]]
        return tuple(items) if kind == "tuple" else items
    return rest[0]


def check(outline: Any, what: str) -> None:
    """Refuse an outline that `unpacked` could not give back.

    Raises:
        ValueError: ``what`` holds something else than tensors and plain values.
    """
    if _is_plain(outline):  # nearly all are, and trying takes longer than all else that a save does
        return
    stream = io.BytesIO()
    try:
        torch.save(outline, stream)
        stream.seek(0)
        torch.load(stream, weights_only=True)
    except Exception as error:
        stream.seek(0)
        unsafe = _unsafe(stream)
        found = f"objects of {' and '.join(unsafe)}" if unsafe else f"something that cannot be saved ({error})"
        raise ValueError(f"{what} holds {found}: give tensors and plain values only.") from error


def packed(outline: Any) -> Tensor:
    """An outline that was checked, as a tensor of bytes, so that nothing but tensors is stored."""
    stream = io.BytesIO()
    torch.save(outline, stream)
    return torch.frombuffer(stream.getbuffer(), dtype=torch.uint8)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if kind is list or kind is tuple:
        return all(map(_is_plain, value))
    return kind in (str, float, bool, NoneType) or (kind is int and value.bit_length() < 64)


def _unsafe(stream: io.BytesIO) -> list[str]:
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(stream))
    except Exception:  # not even written
        return []


def unpacked(data: Tensor) -> Any:
    """What `packed` took."""
    return torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)
