"""What an exchange is: how ranks agree on the gradient of an update; and the one of a rank that trains alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

__all__ = ["Alone", "Count", "Exchange", "Gradients", "Own", "Setting"]

Gradients = list[Tensor | None]


class Setting:
    """What an exchange works with.

    Args:
        weights: each wave's parameters, in the order of the user's ``model.parameters()``.
        num_trajectories: of weights; wave k updates trajectory k modulo that.
        newest: which wave has the newest weights.
        buffers: of the model, as the last forward left them; written between forwards.
        micro_batches: that a rank gives to an update, unless it has run out of them.
        early: whether a wave's gradients are final when its backward makes them, so that they may leave then; if not,
            an update uses the gradients of all waves.
        running: inside, the current thread launches on behalf of a wave.
        unscale: divides gradients of a wave by its loss scale, in place.
        inverse_scale: what that multiplies with.
        wait: ``wait(number, ready)`` returns once ``ready()``, or raises if batch ``number`` is lost.
        changed: wakes all that wait.
        drawing: inside, in the turn of batch ``number``, random numbers may be drawn.
    """

    def __init__(
        self,
        weights: Sequence[Sequence[nn.Parameter]],
        *,
        num_trajectories: int,
        newest: Callable[[], int],
        buffers: list[Tensor | None],
        micro_batches: int,
        early: bool,
        running: Callable[[int], AbstractContextManager[Any]],
        unscale: Callable[[list[Tensor], int], None],
        inverse_scale: Callable[[int], float],
        wait: Callable[[int, Callable[[], bool]], None],
        changed: Callable[[], None],
        drawing: Callable[[int], AbstractContextManager[Any]],
    ) -> None:
        self.weights = [list(wave) for wave in weights]
        self.num_trajectories, self.newest, self.buffers = num_trajectories, newest, buffers
        self.micro_batches = micro_batches
        self.early, self.running = early, running
        self.unscale, self.inverse_scale = unscale, inverse_scale
        self.wait, self.changed, self.drawing = wait, changed, drawing


class Count(ABC):
    """How many micro-batches all ranks together give to an update; known once they have all said so."""

    @property
    @abstractmethod
    def known(self) -> bool:
        """Whether `total` can be read."""

    @property
    @abstractmethod
    def total(self) -> int:
        """Their sum.

        Raises:
            ExchangeError: a rank is missing, or the ranks differ in what they exchange.
        """

    must_be_known: bool = False
    """Whether `total` must be read before the forward: gradients that not all ranks expect must not leave."""


class Exchange(ABC):
    """How the ranks agree. All of them have the same exchanges in the same order.

    For each update the engine calls `begins` in the caller's thread, before the forward of its last micro-batch;
    `backward` around the backward of that; and in the wave's turn `finish` before the update and `updated` after it. At
    a flush it makes what updates are left, and calls `settle`.
    """

    num_ranks: int = 1

    alike: bool = True
    """Whether all ranks have the same weights and optimizer states after each update."""

    apart: bool = False
    """Whether their weights may differ now."""

    max_step_norm: float | None = None
    """Largest norm of what a step of plain SGD changes; None for no bound."""

    def attach(self, setting: Setting) -> None:
        """Serve these waves. Called once, before anything else."""
        self._setting = setting

    @abstractmethod
    def watch(self, describe: Callable[[], dict[str, Any]], on_failure: Callable[[BaseException], None]) -> None:
        """Give signs of life to the other ranks from now on.

        Args:
            describe: gives ``batches``, how many were handed in, and ``doing``, in words.
            on_failure: called, in some thread, when another rank has failed.
        """

    def of_first(self, value: Any) -> Any:
        """What rank 0 has."""
        return value

    def joins(self, wave: int) -> bool:
        """Whether the next update, which is of ``wave``, is made by all ranks together, also by those without data."""
        return self.num_ranks > 1

    def before_forward(self, wave: int) -> None:
        """The next forward is one of ``wave``. In the caller's thread, as `after_forward` and `settle` are."""
        return

    def after_forward(self, wave: int, batch: Any) -> None:
        """The forward of ``batch`` has run in ``wave``, and left its buffers."""
        return

    def updated(self, wave: int) -> None:
        """``wave`` has made the update that `finish` came before."""
        return

    def settle(self) -> int:
        """All ranks have ended together and made all of their updates: let them become alike.

        Returns:
            Which wave has the newest weights, the same on all ranks.
        """
        return self._setting.newest()

    @abstractmethod
    def begins(self, wave: int, number: int, count: int) -> Count:
        """The next update of ``wave`` has ``count`` micro-batches of this rank, the last of them batch ``number``."""

    @abstractmethod
    def skip(self, wave: int) -> None:
        """The update that has begun is none: no rank gives anything to it."""

    @abstractmethod
    def backward(self, wave: int) -> AbstractContextManager[Any]:
        """Around the last backward before an update of ``wave``."""

    @abstractmethod
    def finish(self, wave: int, total: Gradients, count: int) -> tuple[Gradients, float]:
        """In the turn of ``wave``: the sum of gradients, or a part of it, and what to divide that by for the mean.

        Args:
            wave: whose update comes next.
            total: this rank's sum, unless its gradients have left early; given up.
            count: of micro-batches in it.
        """

    @abstractmethod
    def resting_bytes(self) -> int:
        """The most bytes on the device that it holds between updates, for all waves together.

        Buckets are not among them: a watched step shows those of its wave. Counted are also what kept gradients take
        because they lie in buckets, and what later exchanges take and the first ones do not.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What the next exchange depends on, of this rank: the tensors themselves."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that this one stops."""

    @abstractmethod
    def forget(self) -> None:
        """The engine is gone; nobody is told."""

    @abstractmethod
    def close(self) -> None:
        """All ranks have ended together."""


class Own(Count):
    """What this rank has for itself.

    Args:
        count: of micro-batches.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    known = True

    @property
    def total(self) -> int:
        return self._count


class Alone(Exchange):
    """This rank trains for itself, whether there are others or not."""

    def watch(self, describe: Callable[[], dict[str, Any]], on_failure: Callable[[BaseException], None]) -> None:
        pass

    def begins(self, wave: int, number: int, count: int) -> Count:
        return Own(count)

    def skip(self, wave: int) -> None:
        pass

    def backward(self, wave: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def finish(self, wave: int, total: Gradients, count: int) -> tuple[Gradients, float]:
        self._setting.unscale([gradient for gradient in total if gradient is not None], wave)
        return total, count

    def resting_bytes(self) -> int:
        return 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        pass

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass
