"""Which modules a forward calls, in which order, and what memory is held when: what blocks are chosen by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from wavelet.profiling.forwards import After, Before, WatchedForwards
from wavelet.profiling.heap import HeapRecord, Mark
from wavelet.profiling.watcher import Watcher

__all__ = ["Call", "CallRecorder"]

_ROSE = "rose"


@dataclass
class Call:
    """One call of a module in a forward.

    Args:
        name: the module's, as ``named_modules`` has it; the outermost call, of the loss, has none.
        started: bytes held when it started.
        ended: bytes held when it ended.
        is_only: whether the module is called just once in the whole step, backward included.
        children: the calls inside, in order.
    """

    name: str
    started: int
    ended: int = 0
    is_only: bool = True
    children: list[Call] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        """How often each module is called inside."""
        return sum((child.counts() for child in self.children), Counter(child.name for child in self.children))


class CallRecorder(Watcher):
    """Watches one step, inside `recording`; `tree` then gives the module calls that its forward made.

    ``under_autocast`` is then whether any of them was made under autocast.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._heap = HeapRecord(device)
        self._kind = device.type
        self.under_autocast = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Around the whole step."""
        forwards = WatchedForwards()
        for name, module in self._model.named_modules():
            forwards.watch(module, self._before(name), self._after(name))
        try:
            with self._heap:
                yield
        finally:
            forwards.remove()

    def _before(self, name: str) -> Before:
        def before(_inputs: object, _named: object) -> None:
            self._heap.mark(f"<{name}")
            self.under_autocast = self.under_autocast or torch.is_autocast_enabled(self._kind)

        return before

    def _after(self, name: str) -> After:
        return lambda: self._heap.mark(f">{name}")

    def rose(self) -> None:
        self._heap.mark(_ROSE)

    def tree(self) -> Call:
        """The outermost call."""
        return _tree(self._heap.marks)


def _tree(marks: list[Mark]) -> Call:
    counts = Counter(mark.name[1:] for mark in marks if mark.name.startswith("<"))
    root = Call("", 0)
    path = [root]
    for mark in marks:
        if mark.name == _ROSE:
            root.ended = mark.held
            break
        if mark.name.startswith("<"):
            call = Call(mark.name[1:], mark.held, is_only=counts[mark.name[1:]] == 1)
            path[-1].children.append(call)
            path.append(call)
        else:
            path.pop().ended = mark.held
    return root
