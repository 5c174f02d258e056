"""Passes over a loader whose position can be saved and loaded, whatever the loader is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from wavelet.devices.random_state import RandomState
from wavelet.jobs.batches import num_ranks
from wavelet.jobs.seeds import kept_random_state

__all__ = ["LoaderPosition"]

Batch = TypeVar("Batch")


class LoaderPosition(Iterator[Batch], Generic[Batch]):
    """The batches of ``epochs`` passes over ``loader``; `state_dict` says which have been handed out.

    A loader with ``state_dict`` and ``load_state_dict``, such as torchdata's ``StatefulDataLoader``, keeps its own
    position. Any other is gone through again: the random generators are set to what they were when the pass began, the
    batches that were handed out are read and thrown away, and the generators become what they were. That gives the same
    batches for a ``DataLoader`` with or without workers, for a list, and for whatever draws its order when a pass
    begins. A loader that draws its order on the way, between batches of the training, needs a state of its own.

    Before each pass ``set_epoch`` of the loader or its samplers is called, where there is one.

    Args:
        loader: gives batches, one pass after the other; a length is not needed.
        epochs: the number of passes; None for no end.

    Raises:
        ValueError: the loader can be gone through only once, or ``epochs`` is below 1.
    """

    def __init__(self, loader: Iterable[Batch], epochs: int | None = None) -> None:
        if isinstance(loader, Iterator):
            raise ValueError("the loader is an iterator, which ends after one pass: give a DataLoader or a list.")
        if epochs is not None and epochs < 1:
            raise ValueError(f"epochs={epochs} is not possible: give a whole number from 1, or None.")
        self.epochs = epochs
        self.epoch = 0
        """Passes that are complete."""
        self.num_batches = 0
        """Batches of this pass that have been handed out."""
        self._loader: Any = loader
        self._pass: Iterator[Batch] | None = None
        self._start: RandomState | None = None  # when the pass began
        self._loaded: dict[str, Any] | None = None

    def __next__(self) -> Batch:
        if self._loaded is not None:
            self._go_to(self._loaded)
            self._loaded = None
        while self.epochs is None or self.epoch < self.epochs:
            if self._pass is None:
                self._set_epoch()
                self._start = RandomState()
                self._pass = iter(self._loader)
            try:
                batch = next(self._pass)
            except StopIteration:
                if self.num_batches == 0:
                    raise ValueError("the job's loader has no batch") from None
                self._pass, self.num_batches = None, 0
                self.epoch += 1
            else:
                self.num_batches += 1
                return batch
        raise StopIteration

    def num_left(self) -> int | None:
        """Batches that have not been handed out; None where there is no end, or the loader does not know its length."""
        if self.epochs is None:
            return None
        try:
            length = len(self._loader)
        except TypeError:
            return None
        done = self.num_batches if self._loaded is None else _num_passed_over(self._loaded)
        return max(0, (self.epochs - self.epoch) * length - min(done, length))

    def state_dict(self) -> dict[str, Any]:
        """The position behind the batch that was handed out last."""
        if self._loaded is not None:
            return self._loaded
        has_begun = self._pass is not None
        return {
            "epoch": self.epoch,
            "num_batches": self.num_batches,
            "num_ranks": num_ranks(),
            "start": self._start.state_dict() if has_begun and self._start is not None else None,
            "loader": self._loader.state_dict() if has_begun and self._keeps_position() else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position that was saved, when the next batch is asked for.

        With another number of ranks than had saved it, as many batches are passed over in this pass as hold the samples
        that all ranks together had seen, rounded down. Exact positions of single ranks mean nothing then.
        """
        self._loaded = state
        self.epoch, self.num_batches = state["epoch"], state["num_batches"]
        self._pass = None

    def _go_to(self, state: dict[str, Any]) -> None:
        if state["start"] is None:  # between two passes
            return
        moved = state["num_ranks"] != num_ranks()
        self.num_batches = _num_passed_over(state)
        self._start = RandomState()
        self._start.load_state_dict(state["start"])
        self._set_epoch()
        with kept_random_state():
            if self._keeps_position() and not moved:
                self._loader.load_state_dict(state["loader"])
                self._pass = iter(self._loader)
                return
            self._start.restore()
            self._pass = iter(self._loader)
            for number in range(self.num_batches):
                if next(self._pass, self) is self and not moved:  # self: what no loader gives
                    raise ValueError(
                        f"the loader ended after {number} of the {self.num_batches} batches that had been handed out: "
                        "give the loader of the run that was saved."
                    )

    def _keeps_position(self) -> bool:
        return all(callable(getattr(self._loader, name, None)) for name in ("state_dict", "load_state_dict"))

    def _set_epoch(self) -> None:
        """Let samplers that shuffle by a seed and the epoch, as ``DistributedSampler`` does, know it."""
        for owner in (self._loader, *(getattr(self._loader, name, None) for name in ("sampler", "batch_sampler"))):
            set_epoch = getattr(owner, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self.epoch)


def _num_passed_over(state: dict[str, Any]) -> int:
    """Batches of a pass, on as many ranks as there are now, that hold what all ranks had seen."""
    return int(state["num_batches"] * state["num_ranks"] // num_ranks())
