"""All random states that a training step draws from: Python's, NumPy's, torch's and the device's."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import Tensor

from wavelet.devices.device import Device

__all__ = ["RandomState"]


class RandomState:
    """The random states at the moment of construction.

    Args:
        device: whose own generator belongs to them; None for the CPU's alone.
    """

    def __init__(self, device: Device | None = None) -> None:
        self._device = device
        self._python = random.getstate()
        self._numpy: Any = numpy.random.get_state(legacy=True)
        self._torch = torch.get_rng_state()
        self._on_device = None if device is None else device.random_state()

    def restore(self) -> None:
        """Make them current again."""
        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._device is not None:
            self._device.set_random_state(self._on_device)

    def is_current(self) -> bool:
        """Whether nobody has drawn since."""
        now = RandomState(self._device)
        on_device = self._on_device is None or torch.equal(self._on_device, now._on_device_state())
        return on_device and torch.equal(self._torch, now._torch) and now.others == self.others

    def _on_device_state(self) -> Tensor:
        assert self._on_device is not None
        return self._on_device

    @property
    def others(self) -> tuple[Any, ...]:
        """Python's and NumPy's states, comparable."""
        kind, keys, *rest = self._numpy
        return (self._python, kind, keys.tobytes(), *rest)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers only, so that it loads with ``weights_only=True``."""
        kind, keys, *rest = self._numpy
        return {
            "python": self._python,
            "numpy": (str(kind), torch.from_numpy(keys.astype("int64")), *rest),
            "torch": self._torch,
            "device": self._on_device,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the states by saved ones; `restore` makes them current."""
        version, keys, gauss = state["python"]
        self._python = (version, tuple(keys), gauss)
        kind, numbers, *rest = state["numpy"]
        self._numpy = (kind, numbers.numpy().astype("uint32"), *rest)
        self._torch = state["torch"]
        self._on_device = state["device"]
