"""A wave's thread: backward, then exchange and update in its turn."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

from torch import Tensor

from wavelet.devices import Device
from wavelet.profiling.watcher import Watcher
from wavelet.updates import HyperParameters, UpdateRule
from wavelet.waves.recompute import guard_recomputation
from wavelet.waves.replica import Replica
from wavelet.waves.turns import Stopped, Turns

__all__ = ["Task", "Wave", "wave_name"]


def wave_name(index: int) -> str:
    """``tick-wave``, ``tock-wave``, then ``wave 2``, ``wave 3``, …"""
    return ("tick-wave", "tock-wave")[index] if index < 2 else f"wave {index}"


@dataclass
class Task:
    """A batch whose forward has run.

    Args:
        number: the batch's number, from 0 in the order of ``step``.
        loss: the scalar to differentiate, already scaled; dropped once backward has run.
        hyper_parameters: those that its update uses.
        updates: whether this micro-batch is the last before an update.
        batch: kept referenced until the device has done with it.
        watcher: told of its way down.
    """

    number: int
    loss: Tensor | None
    hyper_parameters: HyperParameters
    updates: bool
    batch: object
    watcher: Watcher = field(default_factory=Watcher)
    done: bool = False


class Wave:
    """One of the K waves: a replica, a thread, and at most one batch in flight."""

    def __init__(self, index: int, replica: Replica, rule: UpdateRule, turns: Turns, device: Device) -> None:
        self.index = index
        self.name = wave_name(index)
        self.replica = replica
        self.doing = "waiting for a batch"
        self.num_batches = 0
        self._has_updated = False
        self.thread: threading.Thread | None = None
        self._alone = rule.num_waves == 1
        self._rule = rule
        self._turns = turns
        self._device = device
        self._task: Task | None = None
        self._here = False

    @property
    def idle(self) -> bool:
        """Whether the next batch may be handed in."""
        return self._task is None

    def start(self) -> None:
        """Start the thread, once. A single wave has nothing to overlap with and works in the caller's thread."""
        if self._alone:
            return
        self.thread = threading.Thread(target=self._run, name=f"wavelet {self.name}", daemon=True)
        self.thread.start()

    def sets_up(self, *, updates: bool) -> bool:
        """Whether the next batch is the wave's first, or its first with an update: it sets up lazy state."""
        return self.num_batches == 0 or (updates and not self._has_updated)

    def hand_in(self, task: Task, *, here: bool = False) -> None:
        """Take over a batch after its forward; the wave must be idle. ``here``: work on it in the caller's thread."""
        if not self.idle:
            raise RuntimeError("two threads hand batches to one engine at once: step() belongs to one thread.")
        self._has_updated = self._has_updated or task.updates

        def take() -> None:
            self._task = task
            self._here = here or self._alone
            self.num_batches += 1

        self._turns.changed(take)
        if self._here:
            self._attempt(lambda: self._work(task))

    def close_round(self, hyper_parameters: HyperParameters) -> None:
        """All waves idle: update with what the wave has of an open round."""
        self.alone("closing the round", lambda: self._rule.update(self.index, hyper_parameters))

    def alone(self, doing: str, work: Callable[[], None]) -> None:
        """In the caller's thread, all waves idle: ``work`` as in a turn of this wave."""

        def take_turn() -> None:
            with self._device.running(self.index):
                self._device.begin_turn(self.index)
                work()
                self._device.end_turn(self.index)

        self.doing = doing
        self._attempt(take_turn)

    def _run(self) -> None:
        self._device.enter_wave(self.index)
        guard_recomputation(lambda: self._turns.baton(self._number()))
        self._attempt(self._work_for_ever)

    def _work_for_ever(self) -> None:
        while True:
            self._turns.wait_in_wave(self._number, lambda: self._task is not None and not self._here)
            assert self._task is not None
            self._work(self._task)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Stopped:
            pass
        except BaseException as error:
            self._explain(error)
            self._turns.fail(error, -1 if self._task is None else self._task.number)

    def _number(self) -> float:
        return math.inf if self._task is None else self._task.number

    def _work(self, task: Task) -> None:
        with self._device.running(self.index):
            self.doing = f"in the backward of batch {task.number}"
            assert task.loss is not None
            loss, task.loss = task.loss, None
            with self._rule.exchange.backward(self.index) if task.updates else nullcontext():
                loss.backward()
            del loss
            self._device.keep(self.index, task.batch)
            task.batch = None
            task.watcher.fell()
            self.doing = f"waiting for the turn of batch {task.number}"
            with self._turns.turn(task.number):
                self.doing = f"in the update of batch {task.number}"
                task.watcher.updates()
                self._device.begin_turn(self.index)
                self._rule.turn(self.index, task.hyper_parameters, updates=task.updates)
                self._device.end_turn(self.index)
            task.watcher.turned()
        self.doing = "waiting for a batch"
        self._turns.changed(lambda: self._finish(task))

    def _finish(self, task: Task) -> None:
        task.done = True
        self._task = None

    def _explain(self, error: BaseException) -> None:
        if hasattr(error, "add_note"):
            error.add_note(f"raised {self.doing} on the {self.name}")
            if "out of memory" in str(error).lower():
                error.add_note("Two waves hold two batches: try waves=1 or smaller batches.")
