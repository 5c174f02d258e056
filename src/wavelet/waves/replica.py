"""A wave's own copy of the model, which shares nothing that it writes with the original."""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from wavelet.waves.buffers import BufferSlots
from wavelet.waves.compiling import compile_as, compile_forward
from wavelet.waves.hidden_state import SIMPLE, plain_values

__all__ = ["Replica", "check_model", "make_replicas"]

_GENERATORS = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)
_ADVICE = "pass replicate=, a function that builds a fresh model of the same structure"


class Replica:
    """A copy of the model with parameters, modules and buffers in the order of the original's.

    Args:
        model: the copy.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters: list[nn.Parameter] = list(model.parameters())
        self.modules: list[nn.Module] = list(model.modules())
        self.buffers = BufferSlots(model)
        self._attributes: list[Any] | None = None
        training = [module.training for module in self.modules]
        self.modes = (training, [parameter.requires_grad for parameter in self.parameters])  # a new pair if they change

    def set_attributes(self, slots: list[tuple[int, str]], before: list[Any], now: list[Any]) -> None:
        """Take over the plain attributes that the user has changed; what a forward changed itself stays.

        Args:
            slots: a module's number and the attribute's name.
            before: the face's values when this replica was made.
            now: the face's values now.
        """
        seen = before if self._attributes is None else self._attributes
        if any(map(operator.is_not, now, seen)):
            for (index, name), old, new in zip(slots, seen, now, strict=True):
                if new is not old and type(new) in SIMPLE:  # a tensor put there later would be shared
                    setattr(self.modules[index], name, new)
        self._attributes = now

    def set_modes(self, *, training: list[bool], trainable: list[bool]) -> None:
        """Set each module's ``training`` and each parameter's ``requires_grad``."""
        if training != self.modes[0]:
            self.modes = (training, self.modes[1])
            for module, mode in zip(self.modules, training, strict=True):
                module.training = mode
        if trainable != self.modes[1]:
            self.modes = (self.modes[0], trainable)
            for parameter, requires_grad in zip(self.parameters, trainable, strict=True):
                parameter.requires_grad_(requires_grad)


def check_model(model: nn.Module, *, num_waves: int) -> torch.device:
    """The one device of a model that can run in waves.

    Raises:
        ValueError: for lazy or meta parameters, several devices, no trainable parameter, or, with several waves,
            collectives or random generators inside the model.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
            raise ValueError(f"{name!r} is lazy and has no shape yet: run one batch through the model first.")
        if tensor.is_meta:
            raise ValueError(f"{name!r} is on the meta device and has no values: materialise the model first.")
    _check_apart(model)
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("the model has no parameter that requires a gradient: there is nothing to train.")
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"the model lies on several devices ({names}): waves share one device, move it to one.")
    if num_waves > 1:
        for name, module in model.named_modules():
            if isinstance(module, nn.parallel.DistributedDataParallel):
                raise ValueError(
                    f"{name or 'the model'!r} is a DistributedDataParallel, whose collectives would run from several "
                    "waves in an order that differs between ranks: give the module inside it."
                )
            if isinstance(module, nn.SyncBatchNorm):
                raise ValueError(
                    f"{name!r} is a SyncBatchNorm, whose collectives would run from several waves in an order that "
                    "differs between ranks: use BatchNorm, or waves=1."
                )
        for name, _ in plain_values(model, _GENERATORS):
            raise ValueError(
                f"{name!r} is a random generator of the model's own, which each wave would have for itself: draw from "
                "the default generator, or use waves=1."
            )
    return devices.pop()


def _check_apart(model: nn.Module) -> None:
    """Refuse parameters that overlap in memory: copies would come apart."""
    spans = sorted(
        (parameter.data_ptr(), parameter.data_ptr() + _extent(parameter), name)
        for name, parameter in model.named_parameters()
        if parameter.numel() and parameter.layout == torch.strided
    )
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            raise ValueError(
                f"{name!r} and {other!r} are different parameters in the same memory, which come apart in a copy: tie "
                "them by assigning one Parameter to both."
            )


def _extent(tensor: Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def make_replicas(
    model: nn.Module, count: int, replicate: Callable[[], nn.Module] | None = None, *, compile: bool = False
) -> list[Replica]:
    """Independent copies of ``model``: ties, frozen weights, modes, hooks and attributes of parameters kept.

    Args:
        model: the original.
        count: how many.
        replicate: builds a fresh model of the same structure, for models that ``copy.deepcopy`` cannot copy.
        compile: compile the copy's forward.

    Raises:
        ValueError: the model cannot be copied, or the copy is not independent or not alike.
    """
    replicas: list[Replica] = []
    for _ in range(count):
        fresh = _copied(model) if replicate is None else _rebuilt(model, replicate)
        _check_alike(model, fresh)
        for other in [model, *(replica.model for replica in replicas)]:
            _check_independent(other, fresh)
        for old, new in zip(model.parameters(), fresh.parameters(), strict=True):
            _copy_extras(old, new)
        for old_module, new_module in zip(model.modules(), fresh.modules(), strict=True):
            new_module.training = old_module.training
            if isinstance(new_module, nn.RNNBase):
                new_module.flatten_parameters()  # cuDNN wants one chunk of memory, and copying has split it
        compile_as(model, fresh)
        if compile:
            compile_forward(fresh, release_lock=count > 1 and next(model.parameters()).is_cpu)
        replicas.append(Replica(fresh))
    return replicas


def _copied(model: nn.Module) -> nn.Module:
    # deepcopy copies .grad too, which would hold one gradient a wave for nothing.
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ValueError(f"the model cannot be copied for the waves ({error}): {_ADVICE}.") from error
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _rebuilt(model: nn.Module, replicate: Callable[[], nn.Module]) -> nn.Module:
    fresh = replicate()
    if not isinstance(fresh, nn.Module):
        raise ValueError(f"replicate() gave a {type(fresh).__name__}: it must build a torch.nn.Module.")
    _check_alike(model, fresh)
    with torch.no_grad():
        for old, new in zip(model.parameters(), fresh.parameters(), strict=True):
            new.data = old.detach().clone()
            new.requires_grad_(old.requires_grad)
    BufferSlots(fresh).load(BufferSlots(model).clone())
    return fresh


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _check_alike(model: nn.Module, fresh: nn.Module) -> None:
    def outline(module: nn.Module) -> Any:
        first: dict[int, int] = {}
        tensors = [
            (name, tuple(t.shape), t.dtype, first.setdefault(id(t), len(first)))  # the number shows which are tied
            for name, t in _tensors(module)
        ]
        return tensors, [f"{type(part).__module__}.{type(part).__qualname__}" for part in module.modules()]

    if outline(model) != outline(fresh):
        raise ValueError(f"a copy of the model differs from it in parameters, buffers, ties or modules: {_ADVICE}.")


def _copy_extras(old: nn.Parameter, new: nn.Parameter) -> None:
    """What deepcopy drops: attributes set on a parameter, tensor hooks, post-accumulate hooks."""
    for name, value in vars(old).items():
        if name not in vars(new):
            setattr(new, name, value)
    new.requires_grad_(True)  # or no hook can be registered
    for hook in (old._backward_hooks or {}).values():
        new.register_hook(hook)
    for post_hook in (getattr(old, "_post_accumulate_grad_hooks", None) or {}).values():
        new.register_post_accumulate_grad_hook(post_hook)
    new.requires_grad_(old.requires_grad)


def _check_independent(model: nn.Module, fresh: nn.Module) -> None:
    """Change the copy: the original must not move."""
    originals = {tensor.untyped_storage().data_ptr(): name for name, tensor in _tensors(model) if tensor.numel()}
    for name, tensor in _tensors(fresh):
        if tensor.numel() and tensor.untyped_storage().data_ptr() in originals:
            raise ValueError(f"a copy of the model shares {name!r} with the original: {_ADVICE}.")
    modules = {id(module) for module in model.modules()}
    for name, module in fresh.named_modules():
        if id(module) in modules:
            raise ValueError(f"a copy of the model shares the module {name!r} with the original: {_ADVICE}.")
        for hook in _hooks_of(module):
            if any(id(part) in modules for part in _closed_over(hook)):
                raise ValueError(
                    f"a hook of {name or 'the model'!r} is a function that holds the original model (a lambda or "
                    f"an inner function that uses self), so a copy would write to the original: {_ADVICE}."
                )
        forward = module.__dict__.get("forward")
        if id(getattr(forward, "__self__", None)) in modules:
            raise ValueError(f"in a copy of the model, {name!r} calls the original's forward: {_ADVICE}.")


def _hooks_of(module: nn.Module) -> Iterator[Any]:
    for hooks in (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks):
        yield from hooks.values()


def _closed_over(function: Any) -> Iterator[Any]:
    """What a function holds on to besides its globals: the cells of its closure and its defaults."""
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # still empty
            yield cell.cell_contents
    yield from getattr(function, "__defaults__", None) or ()
    yield from (getattr(function, "__kwdefaults__", None) or {}).values()
