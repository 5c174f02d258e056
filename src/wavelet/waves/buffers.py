"""The buffers of a model: where they hang, and their values carried from one forward to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["BufferSlots"]

Values = Sequence[Tensor | None]


class BufferSlots:
    """The places where a model holds its buffers, tied ones once, in the order of ``model.modules()``.

    A forward may write a buffer in place, or put another tensor (of another shape, even) in its place.
    """

    def __init__(self, model: nn.Module) -> None:
        seen: set[int] = set()
        self._slots: list[tuple[dict[str, Tensor | None], str]] = []
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is None or id(buffer) not in seen:
                    seen.add(id(buffer))
                    self._slots.append((module._buffers, name))

    def __len__(self) -> int:
        return len(self._slots)

    def values(self) -> list[Tensor | None]:
        """The buffers as they are now, not copied."""
        return [holder[name] for holder, name in self._slots]

    def clone(self) -> list[Tensor | None]:
        """Copies of the buffers, without history."""
        return [None if value is None else value.detach().clone() for value in self.values()]

    def load(self, values: Values) -> None:
        """Write ``values`` into the buffers, in place where they fit."""

        def put(index: int, value: Tensor | None) -> None:
            holder, name = self._slots[index]
            holder[name] = value

        _transfer(self.values(), values, put)

    def save(self, values: list[Tensor | None]) -> None:
        """Write the buffers into ``values``, in place where they fit."""
        _transfer(values, self.values(), values.__setitem__)


@torch.no_grad()
def _transfer(targets: Values, sources: Values, put: Callable[[int, Tensor | None], None]) -> None:
    written: list[Tensor] = []
    read: list[Tensor] = []
    for index, (old, new) in enumerate(zip(targets, sources, strict=True)):
        if old is not None and new is not None and _fits(old, new):
            written.append(old)
            read.append(new)
        elif old is not new:
            put(index, None if new is None else new.detach().clone())
    if written:
        torch._foreach_copy_(written, read)


def _fits(old: Tensor, new: Tensor) -> bool:
    return (
        old.shape == new.shape
        and old.dtype == new.dtype
        and old.device == new.device
        and not old.requires_grad
        and not (0 in old.stride() and old.numel() > 1)  # an expanded tensor cannot be written in place
    )
