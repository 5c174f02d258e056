"""Buffers under mixed weights: floating-point ones become their mean over ranks, others stay."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["MixedBuffers"]


class _Arrived(NamedTuple):
    wave: int
    before: Tensor
    mean: Tensor


class MixedBuffers:
    """The float buffers of this rank, as one row of float64 numbers: the mean of equal float32 numbers is exact there.

    Forwards of other waves run while a mean is under way. So it is taken of what the forward of the mixing's own batch
    has left, and comes in before the next forward of the same wave; what other forwards have added since is kept.

    Args:
        buffers: as the last forward left them; written in place.
    """

    def __init__(self, buffers: list[Tensor | None]) -> None:
        self._buffers = buffers
        floats = [index for index, each in enumerate(buffers) if each is not None and each.is_floating_point()]
        self._shapes = {index: each.shape for index in floats if (each := buffers[index]) is not None and each.numel()}
        self._snapshots_of: set[int] = set()
        self._snapshot: Tensor | None = None
        self._arrived: _Arrived | None = None

    @property
    def any(self) -> bool:
        """Whether there are float buffers."""
        return bool(self._shapes)

    @property
    def mixing_bytes(self) -> int:
        """The most bytes that a mixing takes: the row, its part of the sum, and as much again to let the mean in."""
        return 6 * 8 * sum(shape.numel() for shape in self._shapes.values())

    def want(self, wave: int) -> None:
        """What the coming forward of ``wave`` leaves is to be mixed."""
        if self._shapes:
            self._snapshots_of.add(wave)

    def before_forward(self, wave: int) -> None:
        """In the caller's thread; the wave is idle."""
        if self._arrived is not None and self._arrived.wave == wave:
            self._apply()

    def after_forward(self, wave: int) -> None:
        """In the caller's thread."""
        if wave in self._snapshots_of:
            self._snapshots_of.discard(wave)
            self._snapshot = self._row()

    def packed(self, share: float) -> Tensor:
        """What to sum over the ranks."""
        if self._snapshot is None:  # all waves are idle
            self._snapshot = self._row()
        return self._snapshot * share if share else torch.zeros_like(self._snapshot)

    def arrived(self, wave: int, mean: Tensor) -> None:
        """The mean over the ranks, in the turn of ``wave``."""
        assert self._snapshot is not None
        self._arrived, self._snapshot = _Arrived(wave, self._snapshot, mean), None

    def mix_now(self) -> None:
        """All waves are idle: let in what has arrived."""
        if self._arrived is not None:
            self._apply()
        self._snapshot = None
        self._snapshots_of.clear()  # an update at a flush has no forward

    def state_dict(self) -> dict[str, Any]:
        """What has arrived and waits for a forward."""
        return {} if self._arrived is None else self._arrived._asdict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._arrived = _Arrived(**state) if state else None
        self._snapshot = None

    @torch.no_grad()
    def _row(self) -> Tensor:
        parts = []
        for index, shape in self._shapes.items():
            buffer = self._buffers[index]
            if buffer is None or buffer.shape != shape:
                now = "none" if buffer is None else tuple(buffer.shape)
                raise ValueError(
                    f"buffer {index} of the model had the shape {tuple(shape)} and now has {now}, so ranks cannot take "
                    "its mean: keep its shape, or use exchange=AllReduce()."
                )
            parts.append(buffer.detach().double().flatten())
        return torch.cat(parts)

    @torch.no_grad()
    def _apply(self) -> None:
        assert self._arrived is not None
        (_, before, mean), self._arrived = self._arrived, None
        now = self._row()
        # Where nothing has come since, the very mean, which is the same on all ranks; infinities stay.
        mixed = torch.where(now == before, mean, mean + (now - before))
        sizes = [shape.numel() for shape in self._shapes.values()]
        for index, part in zip(self._shapes, mixed.split(sizes), strict=True):
            buffer = self._buffers[index]
            assert buffer is not None
            buffer.copy_(part.view(buffer.shape))
