"""What the blocks of a model cost in one step, in bytes and in seconds: a watcher for each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from wavelet.devices import Device
from wavelet.profiling.heap import HeapRecord
from wavelet.profiling.watcher import Watcher

__all__ = ["BlockBytes", "BlockSeconds", "BytesRecorder", "SecondsRecorder"]


NODE_BYTES = 1300
"""Of a node of autograd, or of a gradient, with what hangs on it; measured with memray on models of 29 to 2,700."""


@dataclass(frozen=True)
class BlockBytes:
    """Bytes of one batch, in forward order.

    Args:
        saved: what a block's forward adds to what is held.
        gradients: of the parameters whose gradients a block's backward makes.
        rising: the most that is held while block j runs forward.
        falling: the most that is held from position i until the next, i from 0 to L−1.
        turn: the most that is held from the end of the backward to that of the turn.
    """

    saved: tuple[int, ...]
    gradients: tuple[int, ...]
    rising: tuple[int, ...]
    falling: tuple[int, ...]
    turn: int

    def most(self, other: BlockBytes) -> BlockBytes:
        """The larger of each entry; the blocks are the same."""
        saved, gradients, rising, falling = (
            tuple(map(max, mine, its)) for mine, its in zip(self._rows(), other._rows(), strict=True)
        )
        return BlockBytes(saved, gradients, rising, falling, max(self.turn, other.turn))

    def _rows(self) -> Iterator[tuple[int, ...]]:
        return iter((self.saved, self.gradients, self.rising, self.falling))


class BytesRecorder(Watcher):
    """Watches one step, inside `recording`, all of it in this thread; `result` then has the bytes.

    Args:
        model: whose blocks are watched.
        num_blocks: L.
        device: whose memory counts.
        batch_bytes: what the batch itself takes, where it was there before the step.
        gradients_stay: they do not end with the turn, and count as resting memory.
    """

    def __init__(
        self, model: nn.Module, num_blocks: int, device: Device, batch_bytes: int, *, gradients_stay: bool
    ) -> None:
        self._model, self._num_blocks, self._batch_bytes = model, num_blocks, batch_bytes
        self._heap = HeapRecord(device.device)
        self._places = [0]  # what each stretch between marks is: j while block j rises, −1−i from position i
        self._position = 0
        self._gradients = [0] * num_blocks
        self._there = {id(parameter) for parameter in model.parameters() if parameter.grad is not None}
        self._gradients_stay = gradients_stay
        self._nodes = [0] * (num_blocks + 1)  # of autograd, made before the end of block j; the first: before all

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Around the whole step."""
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._count) for parameter in self._trainable(self._model)
        ]
        try:
            with self._heap:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def starts(self, block: int) -> None:
        self._nodes[block - 1] = _nodes_so_far()
        self._move(block)

    def rose(self) -> None:
        self._nodes[-1] = _nodes_so_far()
        self._move(-1)

    def left(self, position: int) -> None:
        if position > self._position:
            self._position = position
            self._move(-1 - position)

    def fell(self) -> None:
        self.left(self._num_blocks)

    def turned(self) -> None:
        self._move(-2 - self._num_blocks)

    def result(self) -> BlockBytes:
        """The bytes; what the batch itself takes is held until its backward is done."""
        rising = [0] * self._num_blocks
        falling: dict[int, int] = {}
        held = [0] * (self._num_blocks + 1)
        for place, mark in zip(self._places, self._heap.marks, strict=True):
            if place >= 0:
                rising[max(place, 1) - 1] = max(rising[max(place, 1) - 1], mark.peak)
                held[place] = mark.held if place else 0
            elif place >= -1 - self._num_blocks:
                falling[-1 - place] = mark.peak
        for position in range(1, self._num_blocks + 1):
            falling.setdefault(position, falling[position - 1])  # never seen: still where it was before
        graph = self._graph()
        always = self._batch_bytes + graph[-1]  # the graph goes as a whole, when the backward is done
        return BlockBytes(
            saved=tuple(after - before for before, after in pairwise(held)),
            gradients=tuple(self._gradients),
            rising=tuple(max(peak, 0) + self._batch_bytes + built for peak, built in zip(rising, graph, strict=True)),
            falling=tuple(max(falling[position], 0) + always for position in range(self._num_blocks)),
            turn=max(falling[self._num_blocks], 0) + NODE_BYTES * len(self._trainable(self._model)),
        )

    def _graph(self) -> list[int]:
        """Bytes of the graph itself, by the end of each block: torch's allocator does not see them."""
        first, *later = self._nodes
        made = [max(number - first, 0) for number in later]
        whole = (made[-1] + len(self._trainable(self._model))) * NODE_BYTES  # each parameter has a node too
        return [whole * number // max(made[-1], 1) for number in made]

    def _move(self, place: int) -> None:
        self._heap.mark(str(place))
        self._places.append(place)

    def _count(self, parameter: nn.Parameter) -> None:
        self._gradients[max(0, self._num_blocks - 1 - self._position)] += parameter.nbytes
        if self._gradients_stay and id(parameter) not in self._there and parameter.grad is not None:
            self._heap.discount(_bytes_of(parameter.grad))

    @staticmethod
    def _trainable(model: nn.Module) -> list[nn.Parameter]:
        return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _bytes_of(gradient: Tensor) -> int:
    if gradient.is_sparse:
        return int(gradient._values().nbytes + gradient._indices().nbytes)
    return gradient.nbytes


def _nodes_so_far() -> int:
    """Of autograd, in this thread: they are numbered."""
    with torch.enable_grad():
        node = torch.zeros((), requires_grad=True).neg().grad_fn
    assert node is not None
    return int(node._sequence_nr())


@dataclass(frozen=True)
class BlockSeconds:
    """Seconds of one batch's work, alone, in forward order; of the turn, with the update.

    Args:
        forward: of each block.
        backward: of each block.
        update: of the turn.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    update: float

    @classmethod
    def of(cls, steps: Sequence[BlockSeconds]) -> BlockSeconds:
        """The least seconds of each block, and the mean of the turns, which differ where not every batch updates."""
        return cls(
            tuple(map(min, *(step.forward for step in steps))) if len(steps) > 1 else steps[0].forward,
            tuple(map(min, *(step.backward for step in steps))) if len(steps) > 1 else steps[0].backward,
            sum(step.update for step in steps) / len(steps),
        )


class SecondsRecorder(Watcher):
    """Watches one step that runs alone, all of it in this thread; `result` then has the seconds."""

    def __init__(self, num_blocks: int, device: Device) -> None:
        self._num_blocks, self._device = num_blocks, device
        self._position = 0
        self._moments: dict[int, float] = {0: self._now()}

    def starts(self, block: int) -> None:
        if block > 1:  # what comes before belongs to the first block
            self._moments[block - 1] = self._now()

    def rose(self) -> None:
        self._moments[self._num_blocks] = self._now()

    def left(self, position: int) -> None:
        if position > self._position:
            self._position = position
            self._moments[self._num_blocks + position] = self._now()

    def fell(self) -> None:
        self.left(self._num_blocks)

    def turned(self) -> None:
        self._moments[2 * self._num_blocks + 1] = self._now()

    def result(self) -> BlockSeconds:
        """The seconds; a position that was never seen takes none."""
        seconds = [0.0] * (2 * self._num_blocks + 1)
        for (here, start), (_, end) in pairwise(sorted(self._moments.items())):
            seconds[here] = end - start
        backward = reversed(seconds[self._num_blocks : -1])
        return BlockSeconds(tuple(seconds[: self._num_blocks]), tuple(backward), seconds[-1])

    def _now(self) -> float:
        self._device.synchronize()
        return time.perf_counter()
