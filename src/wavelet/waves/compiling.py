"""Compiling a replica: its forward, or whatever the user had compiled in place."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch
from torch import nn

__all__ = ["compile_as", "compile_forward", "is_compiled"]

_numbers: dict[Any, int] = {}
_codes: dict[int, CodeType] = {}


def compile_forward(model: nn.Module, *, release_lock: bool) -> None:
    """Compile the forward of ``model`` as a whole.

    It is wrapped in a function of ours: models that are alike, as replicas are, share a code object and so what was
    compiled; others do not, for the compiler gives up on one after eight versions.

    Args:
        model: a replica.
        release_lock: let compiled code run without the interpreter's lock, or the waves would take turns. On the CPU
            the default wrapper of compiled code is Python and holds it through each kernel; the one in C++ does not.
    """
    number = _numbers.setdefault(_outline(model), len(_numbers))
    forward = model.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    run.__code__ = _codes.setdefault(number, run.__code__.replace(co_name=f"model_{number}"))
    model.forward = torch.compile(run, options={"cpp_wrapper": True} if release_lock else None)


def is_compiled(model: nn.Module) -> bool:
    """Whether the model or a part of it was compiled, by us or by the user."""
    return any(
        isinstance(module, torch._dynamo.OptimizedModule)
        or module._compiled_call_impl is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
        for module in model.modules()
    )


def _outline(model: nn.Module) -> Any:
    tensors = [(name, tuple(t.shape), t.dtype) for name, t in (*model.named_parameters(), *model.named_buffers())]
    return tuple(tensors), tuple(repr(part) if not list(part.children()) else type(part) for part in model.modules())


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
