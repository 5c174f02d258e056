"""Ways to train on several ranks, each as the graph of its tasks.

*Naive*: everything one after the other. *Wait-free backpropagation* (Zhang et al., "Poseidon", 2017), as DDP does it:
gradients leave in buckets while the backward goes on, and the next batch is fetched meanwhile. *Waves*: as that, and
up to K batches compute beside each other. *Local SGD*: each rank alone, the mean of the weights every H iterations.
*DreamDDP* (Tang et al., 2026): each iteration some of the layers' weights, beside the backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from wavelet.planning.cluster import Cluster
from wavelet.planning.dag import COMPUTE, Dag, Task, make_buckets
from wavelet.planning.interlock import Interlock
from wavelet.planning.layers import Layers
from wavelet.planning.partial_sync import partial_sync

__all__ = ["Strategy", "dream", "local", "naive", "wait_free", "waves"]

Build = Callable[[Dag, int], None]


@dataclass(frozen=True)
class Strategy:
    """A way to train.

    Args:
        name: as tables call it.
        build: adds the tasks of so many iterations to a graph.
        waves: batches that compute beside each other; 1: work never meets other work.
        period: H, after which what an iteration exchanges begins anew.
        of_weights: weights are exchanged, not gradients: between two exchanges of a layer the ranks train apart.
    """

    name: str
    build: Build
    waves: int = 1
    period: int = 1
    of_weights: bool = False

    def tasks(self, layers: Layers, cluster: Cluster, num_iterations: int) -> list[Task]:
        """The graph of so many iterations."""
        dag = Dag(layers, cluster)
        self.build(dag, num_iterations)
        return dag.tasks


def naive() -> Strategy:
    """Input, copy, forward, backward, one all-reduce of all gradients, update: nothing beside anything."""

    def build(dag: Dag, num_iterations: int) -> None:
        last: list[int] = []
        for number in range(num_iterations):
            rose = dag.forward(number, dag.fetch(number, last))
            fell = dag.backward(number, rose, ())
            buckets = make_buckets(dag.layers, math.inf)
            arrived = dag.exchanges(number, [bucket._replace(left=dag.layers.num_layers) for bucket in buckets], fell)
            last = [dag.update(number, [fell[dag.layers.num_layers], *arrived])]

    return Strategy("naive", build)


def wait_free(bucket_bytes: float) -> Strategy:
    """DDP: buckets leave as the backward makes them; the update waits for all of them."""

    def build(dag: Dag, num_iterations: int) -> None:
        buckets = make_buckets(dag.layers, bucket_bytes)
        ready = _Ready(dag)
        for number in range(num_iterations):
            rose = ready.forward(number)
            fell = dag.backward(number, rose, [bucket.left for bucket in buckets])
            arrived = dag.exchanges(number, buckets, fell)
            ready.after = [dag.update(number, [fell[dag.layers.num_layers], *arrived])]

    return Strategy("DDP", build)


def waves(num_waves: int, bucket_bytes: float, interlock: Interlock | None = None) -> Strategy:
    """Wavelet: forwards in program order, K batches in flight, exchanges and updates in batch order.

    Args:
        num_waves: K.
        bucket_bytes: as in `make_buckets`.
        interlock: where a forward waits for the batches before it; None: nowhere. Its blocks are the layers.
    """

    def build(dag: Dag, num_iterations: int) -> None:
        last = dag.layers.num_layers
        buckets = make_buckets(dag.layers, bucket_bytes)
        gates = {1} if interlock is None else {1, *interlock.gates()}
        watched = {position for entry in interlock.entries for position in entry} if interlock else set()
        ends = {bucket.left for bucket in buckets} | {position for position in watched if 0 < position <= last}
        ready = _Ready(dag)
        reached: list[dict[int, int]] = []  # for each batch, the task with which it reaches a position
        for number in range(num_iterations):
            free = [reached[number - num_waves][last + 1]] if number >= num_waves else []
            rose = -1
            for block, end in pairwise([*sorted(gates), last + 1]):
                entry = interlock.entries[block - 1] if interlock is not None else ()
                before = [
                    reached[number - back][position] for back, position in enumerate(entry, start=1) if back <= number
                ]
                first = ready.fetched(number) + free if block == 1 else [rose]
                seconds = sum(dag.layers.forward[block - 1 : end - 1])
                rose = dag.add("forward", number, COMPUTE, seconds, [*first, *before])
            ready.rose.append(rose)
            lane = COMPUTE + 1 + number % num_waves
            fell = dag.backward(number, rose, ends, lane=lane)
            arrived = dag.exchanges(number, buckets, fell)
            turn_before = [reached[-1][last + 1]] if reached else []
            turn = dag.update(number, [fell[last], *arrived, *turn_before], lane=lane)
            reached.append({0: rose, **fell, last + 1: turn})

    return Strategy(f"Wavelet (K={num_waves})", build, waves=num_waves)


def local(period: int) -> Strategy:
    """Local SGD: an update each iteration, and after every H-th an all-reduce of the weights, beside nothing."""

    def build(dag: Dag, num_iterations: int) -> None:
        ready = _Ready(dag)
        for number in range(num_iterations):
            fell = dag.backward(number, ready.forward(number), ())
            ready.after = [dag.update(number, fell.values())]
            if (number + 1) % period == 0 and dag.layers.size:
                ready.after = [dag.exchange(number, dag.layers.size, ready.after)]

    return Strategy(f"local SGD (H={period})", build, period=period, of_weights=True)


def dream(period: int) -> Strategy:
    """DreamDDP: iteration h of a period sends its layers' weights, each once the backward has left it.

    Which layers those are is planned with the cluster's own times, see `wavelet.planning.partial_sync`. Each layer is
    an exchange of its own: C_i = max(B_i, C_before) + c_i. The update comes when backward and exchanges have ended.
    """

    def build(dag: Dag, num_iterations: int) -> None:
        layers = dag.layers
        seconds = [dag.cluster.all_reduce_seconds(size) if size else 0.0 for size in reversed(layers.bytes)]
        plan = partial_sync(layers.backward[::-1], seconds, period)
        turns = [make_buckets(layers, 0, only=chosen) for chosen in plan.assignment]
        ready = _Ready(dag)
        for number in range(num_iterations):
            buckets = turns[number % period]
            fell = dag.backward(number, ready.forward(number), [bucket.left for bucket in buckets])
            arrived = dag.exchanges(number, buckets, fell)
            ready.after = [dag.update(number, [fell[layers.num_layers], *arrived])]

    return Strategy(f"DreamDDP (H={period})", build, period=period, of_weights=True)


class _Ready:
    """Batches that are fetched beside the work on those before, two ahead at most."""

    def __init__(self, dag: Dag) -> None:
        self._dag = dag
        self.rose: list[int] = []  # the forwards so far
        self.after: list[int] = []  # what the next forward waits for

    def fetched(self, number: int) -> list[int]:
        """What a forward waits for until its batch is there."""
        return self._dag.fetch(number, self.rose[number - 2 : number - 1] if number > 1 else ())

    def forward(self, number: int) -> int:
        """The next forward."""
        rose = self._dag.forward(number, [*self.fetched(number), *self.after])
        self.rose.append(rose)
        return rose
