"""Which modules a forward calls, in which order, and what memory is held when: what blocks are chosen by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from wavelet.profiling.heap import Mark, record_heap

__all__ = ["Call", "record_calls"]

FORWARD_DONE = "forward done"


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


def record_calls(model: nn.Module, loss: Callable[[], Tensor], device: torch.device) -> Call:
    """Run ``loss()`` and its backward, and give the tree of module calls that the forward made.

    The gradients that the backward leaves are the caller's to clear.
    """

    def work(mark: Callable[[str], None]) -> None:
        with _marked_calls(model, mark):
            value = loss()
            mark(FORWARD_DONE)
            value.backward()

    return _tree(record_heap(work, device))


@contextmanager
def _marked_calls(model: nn.Module, mark: Callable[[str], None]) -> Iterator[None]:
    hooks: list[RemovableHandle] = []
    for name, module in model.named_modules():

        def starts(_module: nn.Module, _inputs: object, name: str = name) -> None:
            mark(f"<{name}")

        def ends(_module: nn.Module, _inputs: object, _output: object, name: str = name) -> None:
            mark(f">{name}")

        hooks += [module.register_forward_pre_hook(starts), module.register_forward_hook(ends, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _tree(marks: list[Mark]) -> Call:
    counts = Counter(mark.name[1:] for mark in marks if mark.name.startswith("<"))
    root = Call("", 0)
    path = [root]
    for mark in marks:
        if mark.name == FORWARD_DONE:
            root.ended = mark.held
            break
        if mark.name.startswith("<"):
            call = Call(mark.name[1:], mark.held, is_only=counts[mark.name[1:]] == 1)
            path[-1].children.append(call)
            path.append(call)
        else:
            path.pop().ended = mark.held
    return root
