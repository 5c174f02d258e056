"""The handle of a batch that was handed in: its loss, its other outputs, and when its update is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavelet.devices import HostValue
from wavelet.waves.turns import Turns
from wavelet.waves.wave import Task

__all__ = ["LostBatchError", "Step"]


class LostBatchError(RuntimeError):
    """The batch was in flight when the engine failed or was left by an exception; its update never happened."""


class Step:
    """What ``engine.step(batch)`` returns, right after the forward.

    Attributes:
        number: the batch's number, from 0.
        outputs: the other entries of the mapping that the loss function returned, detached; empty for a plain loss.
    """

    def __init__(self, task: Task, loss: HostValue, outputs: Mapping[str, Any], turns: Turns) -> None:
        self.number = task.number
        self.outputs = outputs
        self._task = task
        self._loss = loss
        self._turns = turns

    @property
    def loss(self) -> float:
        """The loss, not scaled; ``nan`` where the model gave that. Waits for the forward alone.

        Raises:
            LostBatchError: the batch was lost in a failure, which is the error's cause.
        """
        self._raise_if_lost()
        return self._loss.item()

    @property
    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._task.done

    def wait(self) -> None:
        """Return when the batch's backward is done and, outside an open round, its update.

        Raises:
            LostBatchError: the batch was lost in a failure, which is the error's cause.
            NoProgressError: nothing has moved for the engine's ``timeout`` seconds.
        """
        self._turns.wait(lambda: self._task.done or self._turns.lost(self.number), lambda: f"batch {self.number}")
        self._raise_if_lost()

    def __repr__(self) -> str:
        state = "done" if self.done else "lost" if self._turns.lost(self.number) else "in flight"
        return f"<Step {self.number}, {state}>"

    def _raise_if_lost(self) -> None:
        if not self._task.done and self._turns.lost(self.number):
            raise LostBatchError(f"batch {self.number} was lost: its update never happened.") from self._turns.failure
