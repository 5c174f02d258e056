"""Compiling a replica: its blocks one by one, or whatever the user had compiled in place."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import nn

from wavelet.profiling.blocks import blocks_of

__all__ = ["compile_as", "compile_blocks"]

_numbers = count()


def compile_blocks(model: nn.Module) -> None:
    """Compile the forward of each block.

    ``block.compile()`` would skip torch's own layers, so each forward is wrapped in a function of ours, with a code
    object of its own: the compiler gives up on one after eight versions.
    """
    for block in blocks_of(model):
        block.forward = _compiled(block.forward)


def _compiled(forward: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    run.__code__ = run.__code__.replace(co_name=f"block_{next(_numbers)}")
    return torch.compile(run)


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
