"""The interface of a device: what the engine asks of the CPU or a GPU, and nothing more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

__all__ = ["Device", "HostValue"]


class HostValue(ABC):
    """A scalar on its way to the host."""

    @abstractmethod
    def item(self) -> float:
        """The value; waits until it has arrived."""


class Device(ABC):
    """One device and the waves that share it.

    A *turn* is a wave's exchange and update; turns run one at a time, in batch order. What one wave launches in a
    turn is ordered after the turn before it, and a forward after the forward before it; all else is free to overlap.
    """

    def __init__(self, device: torch.device, num_waves: int) -> None:
        self.device = device
        self.num_waves = num_waves

    @abstractmethod
    def synchronize(self) -> None:
        """Return when everything that the waves have launched is done."""

    @abstractmethod
    def enter(self) -> None:
        """Prepare the caller's thread for forwards beside running waves."""

    @abstractmethod
    def leave(self) -> None:
        """Give the caller's thread back what `enter` took; everything launched has finished."""

    @abstractmethod
    def enter_wave(self, wave: int) -> None:
        """Prepare the thread of ``wave``; called once in that thread."""

    @abstractmethod
    def running(self, wave: int) -> AbstractContextManager[Any]:
        """Inside, the current thread launches on behalf of ``wave``."""

    @abstractmethod
    def forward(self, wave: int, *, after_turns: bool) -> AbstractContextManager[Any]:
        """Inside, the caller's thread runs a forward of ``wave``: after the forward before it, and after all turns if
        ``after_turns``."""

    @abstractmethod
    def share(self, tensors: list[Tensor]) -> None:
        """Let the caller's thread read ``tensors`` of the last forward."""

    @abstractmethod
    def begin_turn(self, wave: int) -> None:
        """Order what ``wave`` launches next after the turn before this one."""

    @abstractmethod
    def end_turn(self, wave: int) -> None:
        """The turn of ``wave`` has been launched."""

    @abstractmethod
    def retire(self, tensors: list[Tensor]) -> None:
        """Hold tensors that this turn reads and the next turn's wave owns, until that is ordered after this turn."""

    @abstractmethod
    def keep(self, wave: int, batch: object) -> None:
        """Hold ``batch`` until all that ``wave`` has launched so far is done."""

    @abstractmethod
    def order(self, wave: int) -> object:
        """What later launches can `follow` to be behind all that ``wave`` has launched so far; None if they are."""

    @abstractmethod
    def follow(self, order: object, wave: int) -> None:
        """Order what ``wave`` launches next behind ``order``."""

    @abstractmethod
    def to_host(self, scalar: Tensor, wave: int) -> HostValue:
        """Begin to copy ``scalar`` (one element) to the host without stalling the launches of ``wave``."""

    @abstractmethod
    def random_state(self) -> Tensor | None:
        """The state of the device's own default generator; None where the CPU's is the only one."""

    @abstractmethod
    def set_random_state(self, state: Tensor | None) -> None:
        """Restore what `random_state` gave."""

    @abstractmethod
    def advice(self) -> str | None:
        """One sentence on what would make waves faster or leaner here; None if there is nothing to say."""
