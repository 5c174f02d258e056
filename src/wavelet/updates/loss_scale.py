"""The scale of fp16 losses, as each wave sees it: the arithmetic of ``torch.amp.GradScaler`` in batch order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from wavelet.updates.gradients import Gradients, multiply_

__all__ = ["LossScale"]

_LARGEST = float(numpy.finfo(numpy.float32).max)


class LossScale:
    """Batch n uses the scale after update n−K, which is the scale after its wave's own last update.

    Args:
        scaler: the user's scaler; shows the newest scale after `publish`.
        num_waves: the number of waves.
    """

    def __init__(self, scaler: torch.amp.GradScaler, num_waves: int) -> None:
        self._scaler = scaler
        self._num_waves = num_waves
        self._shown: dict[str, Any] = {}
        self._scales: list[float] = []
        self.adopt()

    @classmethod
    def of(cls, scaler: torch.amp.GradScaler | None, num_waves: int) -> LossScale | None:
        """The scale that ``scaler`` gives; None where it is missing or disabled."""
        return None if scaler is None or not scaler.is_enabled() else cls(scaler, num_waves)

    def scale(self, loss: Tensor, wave: int) -> Tensor:
        """The loss of a batch of ``wave`` times its scale, in at least 32 bits, where the scale fits."""
        wide = loss if loss.dtype in (torch.float32, torch.float64) else loss.float()
        return wide * self._scales[wave]

    def unscale_(self, gradients: Gradients, wave: int) -> None:
        """Divide gradients of ``wave`` by its scale, in place."""
        multiply_(gradients, self.inverse(wave))

    def inverse(self, wave: int) -> float:
        """One over the scale of ``wave``, in 32 bits."""
        return float(numpy.float32(1 / self._scales[wave]))

    def updated(self, waves: Sequence[int], *, finite: bool) -> None:
        """Grow or shrink the newest scale after an update that ``waves`` see next, as ``GradScaler.update`` does."""
        state = self._state
        if not finite:
            state["scale"] = float(numpy.float32(state["scale"] * state["backoff_factor"]))
            state["_growth_tracker"] = 0
        else:
            state["_growth_tracker"] += 1
            if state["_growth_tracker"] == state["growth_interval"]:
                grown = state["scale"] * state["growth_factor"]
                state["scale"] = float(numpy.float32(grown)) if grown <= _LARGEST else state["scale"]
                state["_growth_tracker"] = 0
        for wave in waves:
            self._scales[wave] = state["scale"]

    def adopt(self) -> None:
        """Take over the user's scaler if it was changed since it last showed ours."""
        now = self._scaler.state_dict()
        if now != self._shown:
            self._state = dict(now)
            self._shown = now
            self._scales = [now["scale"]] * self._num_waves

    def publish(self) -> None:
        """Show the newest scale in the user's scaler."""
        self._scaler.load_state_dict(dict(self._state))
        self._shown = self._scaler.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers: the newest state and each wave's scale."""
        return {"newest": dict(self._state), "waves": list(self._scales)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._state, self._scales = dict(state["newest"]), list(state["waves"])
