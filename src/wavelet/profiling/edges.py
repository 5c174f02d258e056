"""The edges of blocks in a running model: where a forward starts a block, and where its backward has left one.

Autograd runs the nodes of a graph from the newest to the oldest. So when the gradient of any input of a block arrives,
everything that the forward did after that block had started has been differentiated and released.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from wavelet.devices import tensors_in
from wavelet.profiling.forwards import Before, WatchedForwards
from wavelet.profiling.watcher import Watcher

__all__ = ["BlockEdges"]


class BlockEdges:
    """Tells a watcher of the edges that a batch passes in ``model``, where it has no more than one at a time.

    Only the outer forward counts, and only the outer backward: gradients that a forward itself takes, and forwards
    that a checkpoint runs again in backward, do not.

    Args:
        model: a replica.
        starts: the name of the module whose call starts each block; None for the first, which starts with the forward.
        calls: how often a forward calls each module; further calls are told of. None: of no call.
        blocks: those whose start is told of besides the first; None for all.
        positions: those that are told of; None for all. Each costs the backward's thread the interpreter's lock.
    """

    def __init__(
        self,
        model: nn.Module,
        starts: Sequence[str | None],
        calls: Mapping[str, int] | None = None,
        *,
        blocks: Set[int] | None = None,
        positions: Set[int] | None = None,
    ) -> None:
        self._watcher = Watcher()
        self._rising = False
        self._calls = calls
        self._calls_left: dict[str, int] = {}
        self._num_blocks = len(starts)
        numbers = {name: block for block, name in enumerate(starts, start=1) if block > 1}
        self._forwards = WatchedForwards()
        for name, module in model.named_modules():
            block = numbers.get(name, 1)
            told = block > 1 and (blocks is None or block in blocks)
            awaited = block > 1 and (positions is None or self._position(block) in positions)
            if told or awaited:
                self._forwards.watch(module, self._at_start(name, block, told=told, awaited=awaited))
            elif calls is not None:
                self._forwards.watch(module, self._at_call(name))

    @contextmanager
    def forward(self, watcher: Watcher) -> Iterator[None]:
        """Inside, the forward runs; its backward may come later, before the next forward."""
        self._watcher = watcher
        self._calls_left = dict(self._calls or {})
        self._rising = True
        try:
            watcher.starts(1)
            yield
            watcher.rose()
        finally:
            self._rising = False

    def remove(self) -> None:
        """Leave the model as it was."""
        self._forwards.remove()

    def _position(self, block: int) -> int:
        """That of a backward which has left ``block``."""
        return self._num_blocks - block + 1

    def _is_unseen(self, name: str) -> bool:
        self._calls_left[name] = left = self._calls_left.get(name, 0) - 1
        return left < 0

    def _at_call(self, name: str) -> Before:
        def count(_inputs: object, _named: object) -> None:
            if self._rising and self._is_unseen(name):
                self._watcher.unseen(name)

        return count

    def _at_start(self, name: str, block: int, *, told: bool, awaited: bool) -> Before:
        position = self._position(block)

        def left(_gradient: Tensor) -> None:
            if not self._rising:
                self._watcher.left(position)

        def start(inputs: Any, named: Any) -> None:
            if not self._rising:
                return
            if self._calls is not None and self._is_unseen(name):
                self._watcher.unseen(name)
                return
            if told:
                self._watcher.starts(block)
            if awaited:
                for tensor in tensors_in((inputs, named)):
                    if tensor.grad_fn is not None:
                        tensor.register_hook(left)

        return start
