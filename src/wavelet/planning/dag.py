"""The directed graph of training: tasks of every iteration, and what each of them waits for.

The tasks are those of Shi, Wang, Chu and Li, "A DAG Model of Synchronous Stochastic Gradient Descent in Distributed
Deep Learning" (2018): reading a batch, copying it to the device, forward and backward of the layers, exchanges, the
update. Each belongs to a *lane*, which does one task after the other in the order of the list; layers between which
nothing else has to happen are one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from wavelet.planning.cluster import Cluster
from wavelet.planning.layers import Layers

__all__ = ["COMPUTE", "INPUT", "NETWORK", "Bucket", "Dag", "Task", "TaskKind", "make_buckets"]

TaskKind = Literal["input", "copy", "forward", "backward", "exchange", "update"]

NETWORK, INPUT, COMPUTE = -1, 0, 1
"""Lanes: of the links, which all ranks use together; of the loader; the first that computes. Waves have more."""


class Task(NamedTuple):
    """What a rank does, or all ranks together.

    Args:
        kind: what it is; an exchange starts when every rank is ready for it and the exchange before it has ended.
        iteration: its number, from 0.
        lane: who does it.
        seconds: alone, on a rank of speed 1.
        after: tasks that must have ended, by their place in the list; all come before this one.
        size: bytes that an exchange sums.
    """

    kind: TaskKind
    iteration: int
    lane: int
    seconds: float
    after: tuple[int, ...]
    size: float = 0.0


class Bucket(NamedTuple):
    """Gradients that are exchanged together.

    Args:
        size: bytes.
        left: how many layers, from the last on, the backward must have left before they are all there.
    """

    size: float
    left: int


def make_buckets(layers: Layers, bucket_bytes: float, *, only: Iterable[int] | None = None) -> list[Bucket]:
    """Buckets in backward order: each is closed by the layer with which it has ``bucket_bytes`` or more.

    Args:
        layers: whose gradients; layers without any need no exchange.
        bucket_bytes: 0 for a bucket a layer, infinity for one bucket.
        only: layers that take part, counted from 0 in backward order; None for all.
    """
    chosen = range(layers.num_layers) if only is None else sorted(only)
    found: list[Bucket] = []
    size, left = 0.0, 0
    for layer in chosen:
        own = layers.bytes[layers.num_layers - 1 - layer]
        if own == 0:
            continue
        size, left = size + own, layer + 1
        if size >= bucket_bytes:
            found.append(Bucket(size, left))
            size = 0.0
    return [*found, Bucket(size, left)] if size else found


class Dag:
    """A list of tasks that grows, with what strategies have in common.

    Args:
        layers: one iteration of one rank.
        cluster: what an exchange costs.
    """

    def __init__(self, layers: Layers, cluster: Cluster) -> None:
        self.layers, self.cluster = layers, cluster
        self.tasks: list[Task] = []

    def add(self, kind: TaskKind, iteration: int, lane: int, seconds: float, after: Iterable[int]) -> int:
        """Add a task; gives its place in the list."""
        self.tasks.append(Task(kind, iteration, lane, seconds, tuple(after)))
        return len(self.tasks) - 1

    def fetch(self, iteration: int, after: Iterable[int]) -> list[int]:
        """Read a batch and copy it; gives what the forward waits for."""
        last = list(after)
        if self.layers.input or self.layers.copy:
            last = [self.add("input", iteration, INPUT, self.layers.input, last)]
            last = [self.add("copy", iteration, INPUT, self.layers.copy, last)]
        return last

    def forward(self, iteration: int, after: Iterable[int], *, lane: int = COMPUTE) -> int:
        """The whole forward."""
        return self.add("forward", iteration, lane, sum(self.layers.forward), after)

    def backward(self, iteration: int, after: int, ends: Iterable[int], *, lane: int = COMPUTE) -> dict[int, int]:
        """The backward; gives for some i the task with whose end it has left the last i layers.

        Args:
            iteration: its number.
            after: the forward.
            ends: the numbers i, besides L.
            lane: who does it.
        """
        left = [0.0, *self.layers.left()]
        found: dict[int, int] = {}
        before, last = 0, after
        for end in sorted({*ends, self.layers.num_layers}):
            last = self.add("backward", iteration, lane, left[end] - left[before], [last])
            found[end], before = last, end
        return found

    def exchange(self, iteration: int, size: float, after: Iterable[int]) -> int:
        """An all-reduce of ``size`` bytes."""
        seconds = self.cluster.all_reduce_seconds(size)
        self.tasks.append(Task("exchange", iteration, NETWORK, seconds, tuple(after), size))
        return len(self.tasks) - 1

    def exchanges(self, iteration: int, buckets: Sequence[Bucket], fell: dict[int, int]) -> list[int]:
        """One of each bucket, as the backward makes it; gives the last, before which the others end."""
        return [self.exchange(iteration, bucket.size, [fell[bucket.left]]) for bucket in buckets][-1:]

    def update(self, iteration: int, after: Iterable[int], *, lane: int = COMPUTE) -> int:
        """The optimizer's step, which ends the iteration."""
        return self.add("update", iteration, lane, self.layers.update, after)
