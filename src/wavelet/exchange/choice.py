"""What every choice of an exchange has: the ranks, a timeout, and what it refuses."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer

from wavelet.exchange.channel import Channel
from wavelet.exchange.exchange import Exchange
from wavelet.exchange.ranks import group_of

__all__ = ["Choice", "Training", "check_each", "check_number", "check_whole"]


@dataclass(frozen=True)
class Training:
    """What a choice may have to refuse.

    Args:
        optimizer: the user's.
        update: the name of the update rule.
        waves: how many, or ``"auto"``.
        clip_grad_norm: as the engine was given it.
        num_ranks: that train together.
    """

    optimizer: Optimizer
    update: str
    waves: int | str
    clip_grad_norm: float | None
    num_ranks: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice(ABC):
    """How ranks are to agree.

    Args:
        group: the ranks, as a ProcessGroup or a DeviceMesh of one dimension; None for all. The engine makes a process
            group of its own among them.
        timeout: seconds after which a rank that does not take part is given up. Below the engine's ``timeout``.

    Raises:
        ValueError: an argument makes no sense, or torch.distributed is not initialised.
    """

    group: Any = None
    timeout: float = 60

    def __post_init__(self) -> None:
        check_number("timeout", self.timeout, "a number of seconds above 0")
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                f"{type(self).__name__} needs torch.distributed: call torch.distributed.init_process_group() first, in "
                "a process that torchrun has started."
            )
        group_of(self.group)

    def facts(self) -> dict[str, Any]:
        """In what all ranks must be alike, as plain values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        told = {name: _named(value) for name, value in fields.items() if name not in ("group", "timeout")}
        return {"exchange": type(self).__name__, **told}

    def __str__(self) -> str:
        """As a user would write it, with what differs from the defaults."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        told = {name: value for name, value in self.facts().items() if name in defaults and value != defaults[name]}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in told.items())})"

    def check(self, training: Training) -> None:
        """Refuse what this has no meaning with.

        Raises:
            ValueError: naming both.
        """
        return

    @abstractmethod
    def make(self, channel: Channel) -> Exchange:
        """The exchange of one engine."""


def check_number(name: str, value: object, allowed: str, *, least: float = 0, most: float = float("inf")) -> None:
    """Refuse what is no number above ``least`` and below ``most``.

    Raises:
        ValueError: saying what is allowed.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least < value < most:  # type: ignore[operator]
        raise ValueError(f"{name}={value!r} makes no sense: use {allowed}.")


def check_whole(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is no whole number from ``least`` on.

    Raises:
        ValueError: saying what is allowed.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r} makes no sense: use a whole number of at least {least}.")


def check_each(name: str, values: object, check: Callable[[str, object], None]) -> None:
    """Refuse what is no sequence with one entry a rank.

    Raises:
        ValueError: saying which entry makes no sense.
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ValueError(f"{name}={values!r} makes no sense: use one number a rank.")
    for rank, value in enumerate(values):
        check(f"{name}[{rank}]", value)


def _named(value: Any) -> Any:
    """A function by its name, as it is another object on each rank."""
    return getattr(value, "__qualname__", type(value).__qualname__) if callable(value) else value
