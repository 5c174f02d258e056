"""State that a model keeps in plain attributes, where each wave would have its own: found in a forward, refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wavelet.devices import tensors_in
from wavelet.waves.compiling import is_compiled

__all__ = ["SIMPLE", "plain_attributes", "plain_values", "refuse_hidden_state"]

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
SIMPLE = (bool, int, float, str, type(None))


@contextmanager
def refuse_hidden_state(model: nn.Module) -> Iterator[None]:
    """Around a forward: refuse tensors in plain attributes that it reads and then replaces or writes.

    What it only writes (attention weights kept to look at, an auxiliary loss) or only reads (a table of angles) is no
    state. A compiled forward cannot be watched: there, every tensor counts as read.

    Raises:
        ValueError: naming the attributes.
    """
    before: dict[str, tuple[Tensor, int]] = {
        name: (tensor, _version(tensor)) for name, tensor in plain_values(model, Tensor)
    }
    if before and not is_compiled(model):
        with _Reads(tensor for tensor, _ in before.values()) as reads:
            yield
        read = reads.seen
    else:
        yield
        read = {id(tensor) for tensor, _ in before.values()}
    after: dict[str, Any] = dict(plain_values(model, Tensor)) if before else {}
    changed = sorted(
        name
        for name, (tensor, version) in before.items()
        if id(tensor) in read and (after.get(name) is not tensor or _version(tensor) != version)
    )
    if changed:
        raise ValueError(
            f"the forward changes {', '.join(map(repr, changed))}, a tensor held as a plain attribute, which each "
            "wave would have for itself: register it with register_buffer, so that it passes from batch to batch."
        )


def plain_values(model: nn.Module, kind: Any) -> Iterator[tuple[str, Any]]:
    """Named objects of a kind in plain attributes of modules, also in lists, tuples and dicts there."""
    for prefix, module in model.named_modules():
        for attribute, value in module.__dict__.items():
            if attribute not in _OF_EVERY_MODULE:
                name = f"{prefix}.{attribute}" if prefix else attribute
                yield from _values_in(name, value, kind)


def plain_attributes(modules: Sequence[nn.Module]) -> Iterator[tuple[int, str]]:
    """Where numbers, strings, flags and Nones are kept in plain attributes: a module's number, and the name."""
    for index, module in enumerate(modules):
        for name, value in vars(module).items():
            if name not in _OF_EVERY_MODULE and type(value) in SIMPLE:
                yield index, name


def _values_in(name: str, value: Any, kind: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, kind):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _values_in(f"{name}[{key}]", item, kind)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _values_in(f"{name}[{index}]", item, kind)


class _Reads(TorchFunctionMode):
    """Notes which of ``tensors`` are an argument of any torch function; that is all it does to the call."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._watched = {id(tensor) for tensor in tensors}
        self.seen: set[int] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ not in _SHAPE_AND_KIND:
            self.seen.update(id(tensor) for tensor in tensors_in((args, kwargs)) if id(tensor) in self._watched)
        return func(*args, **kwargs)


_SHAPE_AND_KIND = frozenset({"__get__", "size", "dim", "numel", "__len__", "is_floating_point", "is_contiguous"})
"""Asking these is not reading: a table may be built anew for a longer batch."""


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
