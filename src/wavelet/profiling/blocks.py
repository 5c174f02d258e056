"""The blocks of a model: the parts that run one after the other, found by opening its containers."""

from __future__ import annotations

from torch import nn

__all__ = ["blocks_of"]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The children of ``model``, with ``Sequential``, ``ModuleList`` and ``ModuleDict`` opened; itself if it has none.

    Each module comes once, in the order of definition.
    """
    children = list(model.children())
    if not children:
        return [model]
    blocks: dict[int, nn.Module] = {}
    for child in children:
        for block in blocks_of(child) if isinstance(child, _CONTAINERS) else [child]:
            blocks.setdefault(id(block), block)
    return list(blocks.values())
