"""Buckets: where the gradients of one exchange lie, a few flat tensors instead of one for each parameter."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Bucket", "Layout", "Parcel"]


NUM_BUCKETS = 8
"""With one bucket nothing leaves before the backward is done."""
LEAST_BYTES = 2**18
"""Of a bucket, unless a smaller one is asked for: below, starting a collective costs more than sending."""


@dataclass(frozen=True)
class Slot:
    """A parameter's place: its number in ``model.parameters()``, and elements ``start`` to ``end`` of the bucket."""

    index: int
    start: int
    end: int


@dataclass(frozen=True)
class Bucket:
    """One flat tensor: the gradients of some parameters, then a flag for each, 1 where a rank has that gradient.

    The flags are summed like the rest, so every rank learns which gradients nobody has.
    """

    dtype: torch.dtype
    slots: tuple[Slot, ...]

    @property
    def num_elements(self) -> int:
        """Of the gradients, without the flags."""
        return self.slots[-1].end

    @property
    def numel(self) -> int:
        """Of the whole tensor."""
        return self.num_elements + len(self.slots)

    @property
    def nbytes(self) -> int:
        """Of the whole tensor."""
        return self.numel * self.dtype.itemsize


class Layout:
    """Which gradient lies where in which bucket.

    Args:
        parameters: of the model.
        order: the numbers of those that have gradients, in the order in which backward makes them.
        most: a bucket is closed once it holds so many bytes; sooner where there would be fewer than `NUM_BUCKETS`.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], order: Sequence[int], most: int) -> None:
        self.order = tuple(order)
        whole = sum(parameters[index].nbytes for index in order)
        bucket_bytes = min(most, max(whole // NUM_BUCKETS, LEAST_BYTES))
        self.buckets: list[Bucket] = []
        open_slots: dict[tuple[torch.dtype, bool], list[Slot]] = {}
        for index in order:
            parameter = parameters[index]
            dtype, numel = _real(parameter)
            # Complex gradients lie apart: a pair of real numbers must begin at an even place.
            slots = open_slots.setdefault((dtype, parameter.is_complex()), [])
            start = slots[-1].end if slots else 0
            slots.append(Slot(index, start, start + numel))
            if slots[-1].end * dtype.itemsize >= bucket_bytes:
                self.buckets.append(Bucket(dtype, tuple(open_slots.pop((dtype, parameter.is_complex())))))
        self.buckets += [Bucket(dtype, tuple(slots)) for (dtype, _), slots in open_slots.items()]
        self.places = _places(self.buckets)

    def only(self, numbers: Sequence[int]) -> Layout:
        """Some of its buckets, counted anew."""
        part = copy.copy(self)
        part.buckets = [self.buckets[number] for number in numbers]
        part.places = _places(part.buckets)
        part.order = tuple(index for index in self.order if index in part.places)
        return part


class Parcel:
    """The gradients of one exchange in their buckets. A bucket takes memory from its first gradient on.

    Args:
        layout: where they lie.
        parameters: the wave's own.
        factor: by which gradients are multiplied on their way in, which costs nothing there.
        first: gives a bucket's tensor that holds something already, to which gradients are added; None for none.
    """

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[nn.Parameter],
        factor: float,
        first: Callable[[int, Bucket], Tensor | None],
    ) -> None:
        self.layout, self._factor, self._first = layout, factor, first
        self._adds: set[int] = set()
        self._parameters = parameters
        self.flats: list[Tensor | None] = [None] * len(layout.buckets)
        self._missing = [set(range(len(bucket.slots))) for bucket in layout.buckets]
        self._absent: set[int] = set()

    def put(self, index: int, gradient: Tensor) -> int | None:
        """Copy in the gradient of a parameter; gives the number of its bucket if that is full now."""
        number, place = self.layout.places[index]
        flat, bucket = self._flat(number), self.layout.buckets[number]
        view = self._view(flat, bucket.slots[place], real=True)
        real = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        if number in self._adds:
            view.add_(real, alpha=self._factor)
        elif self._factor != 1 and real.dtype == view.dtype:
            torch.mul(real, self._factor, out=view)
        else:
            view.copy_(real)
            if self._factor != 1:
                view *= self._factor
        self._missing[number].discard(place)
        return None if self._missing[number] else number

    def fill(self) -> list[int]:
        """Let what is missing be zero, and give the numbers of the buckets that are full only now."""
        late = [number for number, missing in enumerate(self._missing) if missing]
        for number in late:
            flat, bucket = self._flat(number), self.layout.buckets[number]
            for place in self._missing[number]:
                slot = bucket.slots[place]
                if number not in self._adds:
                    flat[slot.start : slot.end] = 0
                flat[bucket.num_elements + place] = 0
                self._absent.add(slot.index)
            self._missing[number] = set()
        return late

    def gradients(self) -> list[Tensor | None]:
        """What the buckets hold after the exchange, one gradient a parameter; None where no rank had one."""
        found: list[Tensor | None] = [None] * len(self._parameters)
        for flat, bucket in zip(self.flats, self.layout.buckets, strict=True):
            assert flat is not None
            for place, slot in enumerate(bucket.slots):
                # Only where this rank has none is the flag looked at, for which a GPU must be waited for.
                if slot.index not in self._absent or flat[bucket.num_elements + place].item() != 0:
                    found[slot.index] = self._view(flat, slot, real=False)
        return found

    def matrix(self, flat: Tensor, slot: Slot) -> Tensor:
        """The place of a gradient in the parameter's shape, row by row, of real numbers."""
        parameter = self._parameters[slot.index]
        part = flat[slot.start : slot.end]
        if parameter.dim() == 0:
            return part
        return part.view(*parameter.shape, 2) if parameter.is_complex() else part.view(parameter.shape)

    def _flat(self, number: int) -> Tensor:
        flat = self.flats[number]
        if flat is None:
            bucket = self.layout.buckets[number]
            flat = self._first(number, bucket)
            if flat is None:
                device = self._parameters[bucket.slots[0].index].device
                flat = torch.empty(bucket.numel, dtype=bucket.dtype, device=device)
            else:
                self._adds.add(number)
            self.flats[number] = flat
            flat[bucket.num_elements :] = 1
        return flat

    def _view(self, flat: Tensor, slot: Slot, *, real: bool) -> Tensor:
        """The place of a gradient, strided as its parameter where that is possible."""
        parameter = self._parameters[slot.index]
        part = flat[slot.start : slot.end]
        if parameter.is_complex():
            pairs = part.view(*parameter.shape, 2)
            return pairs if real else torch.view_as_complex(pairs)
        if parameter.is_contiguous() or not _is_dense(parameter):
            return part.view(parameter.shape)
        return part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())


def _places(buckets: Sequence[Bucket]) -> dict[int, tuple[int, int]]:
    """For each parameter the number of its bucket, and its place in there."""
    return {slot.index: (number, place) for number, each in enumerate(buckets) for place, slot in enumerate(each.slots)}


def _real(parameter: nn.Parameter) -> tuple[torch.dtype, int]:
    if parameter.is_complex():
        return parameter.dtype.to_real(), 2 * parameter.numel()
    return parameter.dtype, parameter.numel()


def _is_dense(parameter: nn.Parameter) -> bool:
    """Whether the elements fill their memory without overlap, in whatever order."""
    return torch.empty_like(parameter, device="meta").stride() == parameter.stride()
