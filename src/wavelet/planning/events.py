"""When every task of a graph happens on every rank, event by event: all ranks at once, each on a clock of its own.

Ranks meet in exchanges alone, and exchanges happen one after the other. So nothing that a rank does until it is ready
for an exchange depends on that exchange, and the simulation goes from exchange to exchange: every rank moves, in steps
of its own events, until it is ready; then the exchange starts when the last rank is ready and the links are free. Ranks
that are as fast as each other in every iteration behave alike, and are simulated once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavelet.planning.cluster import Cluster, Floats
from wavelet.planning.dag import COMPUTE, INPUT, Task
from wavelet.profiling.profile import Contention

__all__ = ["Happened", "happen"]

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Happened:
    """What came of it; one row an iteration, one column a kind of rank.

    Args:
        num_ranks: of each kind.
        ends: when a rank's update of an iteration ended, in seconds from the beginning.
        computed: for how much of that time the rank had been computing.
        exposed: for how much of it it had not, while an exchange was going on.
        exchanges: one row each: when it started, and when it ended.
    """

    num_ranks: Integers
    ends: Floats
    computed: Floats
    exposed: Floats
    exchanges: Floats


def happen(tasks: Sequence[Task], cluster: Cluster, contention: Contention) -> Happened:
    """Simulate a graph.

    The work of a rank's lanes that compute is slowed down beside each other, as in `wavelet.planning.simulate`, and
    while an exchange is going on by the share of the computing time that it takes.

    Args:
        tasks: in an order in which each comes after those that it waits for; every iteration has an update.
        cluster: how fast its ranks are in each iteration.
        contention: of forwards, the first lane that computes, and of all other lanes.
    """
    slowdowns = cluster.slowdowns(1 + max(task.iteration for task in tasks))
    kinds, num_ranks = np.unique(slowdowns, axis=1, return_counts=True)
    return _Events(tasks, cluster, contention, kinds, num_ranks).run()


class _Events:
    def __init__(
        self, tasks: Sequence[Task], cluster: Cluster, contention: Contention, slowdowns: Floats, num_ranks: Integers
    ) -> None:
        count = len(tasks)
        self._count, self._num_ranks, self._slowdowns, self._contention = count, num_ranks, slowdowns, contention
        kinds = slowdowns.shape[1]
        self._iteration = np.array([task.iteration for task in tasks])
        self._seconds = np.array([task.seconds for task in tasks])
        self._is_update = np.array([task.kind == "update" for task in tasks])
        most = max(1, *(len(task.after) for task in tasks))
        # Two rows more than tasks: one that never ends, for a lane that has no task left, and one that always has.
        never, always = count, count + 1
        self._after = np.full((count + 1, most), always)
        self._after[never, 0] = never
        for number, task in enumerate(tasks):
            self._after[number, : len(task.after)] = task.after
        self._ends = np.full((count + 2, kinds), np.inf)
        self._ends[always] = -np.inf
        self._lanes = sorted({task.lane for task in tasks if task.kind != "exchange"})
        self._queues = [
            np.array([*(number for number, task in enumerate(tasks) if task.lane == lane), never])
            for lane in self._lanes
        ]
        self._places = np.zeros((len(self._lanes), kinds), dtype=np.int64)  # in each queue, the task that is next
        self._runs = np.zeros((len(self._lanes), kinds), dtype=bool)
        self._left = np.zeros((len(self._lanes), kinds))  # seconds of its task, alone
        self._computes = np.array([lane >= COMPUTE for lane in self._lanes])
        self._clock, self._computed, self._exposed = np.zeros(kinds), np.zeros(kinds), np.zeros(kinds)
        self._snapshots = np.zeros((3, slowdowns.shape[0], kinds))
        self._exchanges = [number for number, task in enumerate(tasks) if task.kind == "exchange"]
        self._shares = [
            min(1.0, cluster.cpu_seconds(tasks[number].size) / tasks[number].seconds) if tasks[number].seconds else 0.0
            for number in self._exchanges
        ]
        self._takes_cpu = any(self._shares)
        self._known = 0  # exchanges
        # Moments at which an exchange starts or ends, how long the links were busy until then, and what they take from
        # then on. Everything begins at 0, and so the first entry is there.
        self._moments = np.zeros(2 * len(self._exchanges) + 1)
        self._busy = np.zeros_like(self._moments)
        self._taken = np.zeros_like(self._moments)

    def run(self) -> Happened:
        for exchange in self._exchanges:
            after = self._after[exchange]
            self._move_until(after)
            self._hold(exchange, float(self._ends[after].max()))
        self._move_until(np.array([queue[-2] for queue in self._queues]))
        ends, computed, exposed = self._snapshots
        moments = self._moments[1:].reshape(-1, 2)
        return Happened(self._num_ranks, ends, computed, exposed, moments)

    def _hold(self, exchange: int, ready: float) -> None:
        """An exchange happens, and every rank can know when."""
        known = self._known
        last = 2 * known
        start = max(ready, self._moments[last])
        end = start + self._seconds[exchange]
        self._ends[exchange] = end
        self._moments[last + 1 : last + 3] = start, end
        self._busy[last + 1 : last + 3] = self._busy[last], self._busy[last] + (end - start)
        self._taken[last + 1] = self._shares[known]
        self._known += 1

    def _move_until(self, after: Integers) -> None:
        """Move every rank by its own events until these tasks have ended on it."""
        while True:
            moves = np.isinf(self._ends[after].max(axis=0))
            if not moves.any():
                return
            self._move(moves)

    def _move(self, moves: NDArray[np.bool_]) -> None:
        """One event of each of these ranks."""
        event = np.full_like(self._clock, np.inf)
        for index in range(len(self._lanes)):
            self._start(index, moves, event)
        slow = self._slow(event)
        with np.errstate(invalid="ignore"):
            takes = np.where(self._left > 0, self._left * slow, 0.0)
        finish = np.where(self._runs, self._clock + takes, np.inf)
        event = np.where(moves, np.minimum(event, finish.min(axis=0)), self._clock)
        assert np.isfinite(event).all(), "a graph cannot deadlock"
        self._account(event)
        done = self._runs & (finish <= event) & moves
        self._left -= (event - self._clock) / slow
        self._clock = event
        for index in np.flatnonzero(done.any(axis=1)).tolist():
            self._finish(index, np.flatnonzero(done[index]))

    def _start(self, index: int, moves: NDArray[np.bool_], event: Floats) -> None:
        """Let a lane begin its next task where that may begin; where it is known when it may, that is an event."""
        ranks = np.flatnonzero(moves & ~self._runs[index])
        if not ranks.size:
            return
        tasks = self._queues[index][self._places[index, ranks]]
        ready = self._ready(tasks, ranks)
        now = ready <= self._clock[ranks]
        event[ranks] = np.minimum(event[ranks], np.where(now, np.inf, ready))
        begins, tasks = ranks[now], tasks[now]
        seconds = self._seconds[tasks]
        if self._lanes[index] != INPUT:
            seconds = seconds * self._slowdowns[self._iteration[tasks], begins]
        self._left[index, begins] = seconds
        self._runs[index, begins] = True

    def _ready(self, tasks: Integers, ranks: Integers) -> Floats:
        """When each of these ranks can begin its task; mostly all have the same, which takes no look-up of each."""
        if (tasks == tasks[0]).all():
            ready: Floats = self._ends[self._after[tasks[0]]].max(axis=0)
            return ready if ranks.size == ready.size else ready[ranks]
        ready = self._ends[self._after[tasks, 0], ranks]
        for column in range(1, self._after.shape[1]):
            np.maximum(ready, self._ends[self._after[tasks, column], ranks], out=ready)
        return ready

    def _slow(self, event: Floats) -> Any:
        """How many times as long the work of each lane takes now; where exchanges take part of it, that can change."""
        others = np.maximum(0, self._runs[self._computes].sum(axis=0) - 1)
        forward, other = (1 + others * (each - 1) for each in self._contention)
        slow = np.stack([forward if lane == COMPUTE else other for lane in self._lanes])
        if self._takes_cpu:
            known = 2 * self._known + 1
            place = np.searchsorted(self._moments[:known], self._clock, side="right") - 1
            with np.errstate(divide="ignore"):
                slow = slow / (1 - self._taken[place])
            later = np.append(self._moments[:known], np.inf)[place + 1]
            np.minimum(event, later, out=event)
        slow[~self._computes] = 1.0
        return slow

    def _account(self, event: Floats) -> None:
        """What the time until the events is spent on."""
        computes = self._runs[self._computes].any(axis=0)
        self._computed += np.where(computes, event - self._clock, 0.0)
        idle = np.flatnonzero(~computes & (event > self._clock))
        if idle.size:
            known = slice(2 * self._known + 1)
            before, after = (
                np.interp(moments[idle], self._moments[known], self._busy[known]) for moments in (self._clock, event)
            )
            self._exposed[idle] += after - before

    def _finish(self, index: int, ranks: Integers) -> None:
        tasks = self._queues[index][self._places[index, ranks]]
        self._ends[tasks, ranks] = self._clock[ranks]
        self._places[index, ranks] += 1
        self._runs[index, ranks] = False
        updates = self._is_update[tasks]
        of, done = self._iteration[tasks[updates]], ranks[updates]
        for row, values in enumerate((self._clock, self._computed, self._exposed)):
            self._snapshots[row, of, done] = values[done]
