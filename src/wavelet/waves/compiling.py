"""Compiling a replica: its blocks one by one, or whatever the user had compiled in place."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch
from torch import nn

from wavelet.profiling.blocks import blocks_of

__all__ = ["compile_as", "compile_blocks"]

_numbers: dict[Any, int] = {}
_codes: dict[int, CodeType] = {}


def compile_blocks(model: nn.Module) -> None:
    """Compile the forward of each block.

    ``block.compile()`` would skip torch's own layers, so each forward is wrapped in a function of ours. Blocks that are
    alike share a code object and so what was compiled; others do not, for the compiler gives up on one after eight
    versions.
    """
    for block in blocks_of(model):
        block.forward = _compiled(block.forward, _numbers.setdefault(_outline(block), len(_numbers)))


def _compiled(forward: Any, number: int) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    run.__code__ = _codes.setdefault(number, run.__code__.replace(co_name=f"block_{number}"))
    return torch.compile(run)


def _outline(block: nn.Module) -> Any:
    tensors = [(name, tuple(t.shape), t.dtype) for name, t in (*block.named_parameters(), *block.named_buffers())]
    return tuple(tensors), tuple(repr(part) if not list(part.children()) else type(part) for part in block.modules())


def compile_as(model: nn.Module, fresh: nn.Module) -> None:
    """Compile in place the parts of ``fresh`` whose originals in ``model`` were: copying has dropped that.

    Raises:
        ValueError: this version of torch does not show how a part was compiled.
    """
    for (name, old), new in zip(model.named_modules(), fresh.modules(), strict=True):
        call = old._compiled_call_impl
        if call is None:
            continue
        cells = [cell.cell_contents for cell in getattr(call, "__closure__", None) or ()]
        contexts = [part for part in cells if isinstance(part, torch._dynamo.eval_frame._TorchDynamoContext)]
        if not contexts:
            raise ValueError(f"{name or 'the model'!r} was compiled in place by .compile(): use compile=True instead.")
        new._compiled_call_impl = contexts[0](new._call_impl)
