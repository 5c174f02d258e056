"""The ordered all-reduce: gradients leave in buckets as backward makes them, in one order on every rank (I3)."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wavelet.exchange.all_reduce import AllReduce
from wavelet.exchange.among_ranks import AmongRanks
from wavelet.exchange.buckets import Layout, Parcel
from wavelet.exchange.channel import Channel
from wavelet.exchange.compression import Compression, Lower, LowRank
from wavelet.exchange.exchange import Count, Gradients, Setting
from wavelet.exchange.flight import Flight
from wavelet.exchange.pulse import ExchangeError
from wavelet.exchange.ranks import Ranks
from wavelet.fingerprint import fingerprint

__all__ = ["OrderedAllReduce"]

_MODULUS = 2**20  # sums of squares of numbers below it are exact in 64 bits, for up to 4,096 ranks


class OrderedAllReduce(AmongRanks):
    """Sums gradients over ranks, each once a batch.

    An exchange is a short *header*, which says how many micro-batches a rank gives, and then its buckets. A rank
    without data gives zeros; where the header's sum is zero all ranks have run out, and there are no buckets.

    Args:
        choice: the user's.
        channel: to the other ranks.
    """

    def __init__(self, choice: AllReduce, channel: Channel) -> None:
        super().__init__(channel)
        self._bucket_bytes = int(choice.bucket_mb * 2**20)
        self._check_every = choice.check_every
        self._compression = _compression(choice, channel.ranks)
        self._num_before = 0  # exchanges of the runs that this one continues
        self._order: list[int] | None = None  # in which backward makes gradients: rank 0's, seen in the first exchange
        self._seen: list[int] = []
        self._several: set[int] = set()  # parameters whose gradient comes in several parts in one backward
        self._layouts: dict[tuple[bool, ...], Layout] = {}
        self._current: Layout | None = None
        self._pattern: tuple[bool, ...] | None = None

    def attach(self, setting: Setting) -> None:
        super().attach(setting)
        usual = self.num_ranks * setting.micro_batches
        # Dividing by a power of two is exact, so it may come first, on the way into the bucket, where it costs nothing.
        self._factor = 1 / usual if self._compression.scales and usual & (usual - 1) == 0 else 1.0
        self._flights: list[Flight | None] = [None] * len(setting.weights)
        self._leaving: list[Flight | None] = [None] * len(setting.weights)
        if setting.early and not self._compression.in_turn:
            for wave, weights in enumerate(setting.weights):
                for index, parameter in enumerate(weights):
                    if parameter.is_floating_point() or parameter.is_complex():
                        trains = parameter.requires_grad
                        parameter.requires_grad_(True)  # or no hook can be registered
                        parameter.register_post_accumulate_grad_hook(self._hook(wave, index))
                        parameter.requires_grad_(trains)

    def begins(self, wave: int, number: int, count: int) -> Count:
        weights = self._setting.weights[wave]
        pattern = tuple(parameter.requires_grad for parameter in weights)
        layout = self._layout(pattern)
        size = 1 if self._compression.in_turn else len(layout.buckets)
        factor = self._factor * self._setting.inverse_scale(wave)
        parcel = Parcel(layout, weights, factor, functools.partial(self._compression.first, wave))
        flight = self._channel.open(number, size, self._check)
        flight.parcel = parcel
        flight.must_be_known = self._pattern not in (None, pattern)
        self._pattern = pattern
        self._flights[wave] = flight
        whole = flight.exchange + self._num_before
        print_ = 0
        if self._check_every is not None and whole % self._check_every == 0:
            with self._setting.running(wave):  # behind the wave's last update
                print_ = _print(weights)
        header = _header(count, zlib.crc32(bytes(pattern)) % _MODULUS, print_)
        self._channel.put(flight, wave, 0, header)
        return flight

    def skip(self, wave: int) -> None:
        flight = self._flights[wave]
        assert flight is not None
        self._flights[wave] = None
        self._channel.end(flight)

    @contextmanager
    def backward(self, wave: int) -> Iterator[None]:
        flight = self._flights[wave]
        assert flight is not None
        self._leaving[wave] = flight
        try:
            yield
        finally:
            self._leaving[wave] = None
        if self._setting.early:
            weights = self._setting.weights[wave]
            self._complete(flight, wave, [parameter.grad for parameter in weights])
            for parameter in weights:
                parameter.grad = None

    def finish(self, wave: int, total: Gradients, count: int) -> tuple[Gradients, float]:
        flight, self._flights[wave] = self._flights[wave], None
        assert flight is not None
        if not flight.complete:
            self._complete(flight, wave, total)
        self._channel.wait(flight, lambda: flight.known)
        if self._compression.in_turn:
            self._in_turn(flight, wave)
        else:
            self._channel.wait(flight, lambda: flight.done)
            for number, flat in enumerate(flight.parcel.flats):
                assert flat is not None
                flight.parcel.flats[number] = self._compression.unpack(flat, flight.sent[number + 1])
        if self._order is None:
            self._learn_order(len(total))
        return flight.parcel.gradients(), flight.total * self._factor

    def resting_bytes(self) -> int:
        weights = self._setting.weights
        layout = self._current or self._layout(tuple(parameter.requires_grad for parameter in weights[0]))
        flags = sum(len(bucket.slots) * bucket.dtype.itemsize for bucket in layout.buckets)
        largest = max((bucket.nbytes for bucket in layout.buckets), default=0)
        kept = self._compression.resting_bytes(layout, weights[0], len(weights))
        return len(weights) * flags + kept + self._channel.ranks.transport_bytes(largest)

    def state_dict(self) -> dict[str, Any]:
        return {
            "order": self._order,
            "num_exchanges": self._num_before + self._channel.num_opened,
            "compression": self._compression.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order = state["order"]
        self._layouts.clear()
        self._current = None
        self._num_before = state["num_exchanges"] - self._channel.num_opened
        self._compression.load_state_dict(state["compression"])

    def _layout(self, pattern: tuple[bool, ...]) -> Layout:
        if pattern not in self._layouts:
            order = self._order or list(reversed(range(len(pattern))))
            own = [index for index in order if pattern[index]]
            self._layouts[pattern] = Layout(self._setting.weights[0], own, self._bucket_bytes)
        layout = self._layouts[pattern]
        if self._current is not layout:
            if self._current is not None:
                self._compression.restart()
            self._current = layout
        return layout

    def _hook(self, wave: int, index: int) -> Callable[[Tensor], None]:
        def left(parameter: Tensor) -> None:
            flight = self._leaving[wave]
            if flight is None or parameter.grad is None:
                return
            if self._order is None:  # the first exchange: learn when gradients are ready
                if index in self._seen:
                    self._several.add(index)
                    self._seen.remove(index)
                self._seen.append(index)
            elif index not in self._several:
                self._leave(flight, wave, index, parameter)

        return left

    def _leave(self, flight: Flight, wave: int, index: int, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        if index in flight.gone:
            raise ValueError(
                f"parameter {index} of the model got a second part of its gradient after the first had been sent: "
                "use activation checkpointing with use_reentrant=False."
            )
        flight.gone.add(index)
        full = self._put_gradient(flight, index, gradient)
        if full is not None:
            self._send(flight, wave, full)

    def _complete(self, flight: Flight, wave: int, gradients: Sequence[Tensor | None]) -> None:
        """Put in what has not left yet, and send all that is still here."""
        full = [
            self._put_gradient(flight, index, gradient)
            for index, gradient in enumerate(gradients)
            if gradient is not None and index in flight.parcel.layout.places
        ]
        late = [*(number for number in full if number is not None), *flight.parcel.fill()]
        for number in late:
            self._send(flight, wave, number)
        flight.complete = True

    def _put_gradient(self, flight: Flight, index: int, gradient: Tensor) -> int | None:
        if gradient.layout != torch.strided:
            raise ValueError(
                f"parameter {index} of the model has a sparse gradient, which is not exchanged: use sparse=False."
            )
        return flight.parcel.put(index, gradient)

    def _send(self, flight: Flight, wave: int, number: int) -> None:
        flat = flight.parcel.flats[number]
        assert flat is not None
        if not self._compression.in_turn:
            self._channel.put(flight, wave, number + 1, self._compression.pack(wave, number, flat))

    def _in_turn(self, flight: Flight, wave: int) -> None:
        compression = self._compression
        assert isinstance(compression, LowRank)
        parcel = flight.parcel
        flags = [
            flat[bucket.num_elements :]
            for flat, bucket in zip(parcel.flats, parcel.layout.buckets, strict=True)
            if flat is not None
        ]
        together = torch.cat([flag.float() for flag in flags])
        work = dist.all_reduce(together, group=self._channel.ranks.group, async_op=True)
        self._channel.follow(flight, work.get_future())
        for flag, summed in zip(flags, together.split([len(flag) for flag in flags]), strict=True):
            flag.copy_(summed)
        for number, flat in enumerate(parcel.flats):
            assert flat is not None
            with self._setting.drawing(flight.number) if compression.draws(number) else nullcontext():
                future = compression.start(number, parcel)
            self._channel.follow(flight, future)
            flat[: parcel.layout.buckets[number].num_elements] *= self.num_ranks
        self._channel.passed(flight, 1)

    def _check(self, flight: Flight) -> None:
        """Raise in what the ranks differ.

        Two collectives of different sizes that meet end the process in gloo, so `begins` asks for this before anything
        else leaves where a pattern is new.
        """
        _, pattern, pattern_squared, print_, print_squared = flight.sent[0].tolist()
        if pattern * pattern != self.num_ranks * pattern_squared:
            raise ExchangeError(
                f"the ranks differ in which parameters require a gradient, in the update of batch {flight.number}: "
                "freeze the same ones on all ranks, before the same batch."
            )
        if print_ * print_ != self.num_ranks * print_squared:
            raise ExchangeError(
                f"the weights of the ranks differ before batch {flight.number}, found by check_every: something writes "
                "to them on some ranks only, or draws random numbers in an update."
            )

    def _learn_order(self, num_parameters: int) -> None:
        """After the first exchange, when nothing else is under way: buckets in the order that rank 0 has seen."""
        never = [index for index in reversed(range(num_parameters)) if index not in self._seen]
        late = [index for index in self._seen if index in self._several]
        seen = [index for index in self._seen if index not in self._several]
        self._order = self._channel.ranks.of_first([*seen, *late, *never])
        self._layouts.clear()


def _compression(choice: AllReduce, ranks: Ranks) -> Compression:
    if choice.compress == "powersgd":
        return LowRank(ranks.group)
    if choice.compress is not None:
        return Lower({"bf16": torch.bfloat16, "fp16": torch.float16}[choice.compress], ranks.size)
    return Compression()


def _header(count: int, pattern: int, print_: int) -> Tensor:
    numbers = [count, pattern, pattern * pattern, print_, print_ * print_]
    return torch.tensor(numbers, dtype=torch.float64)


def _print(weights: Sequence[nn.Parameter]) -> int:
    """A number that changes when a weight changes."""
    sums = torch.stack([fingerprint(weight) for weight in weights]).tolist()
    return zlib.crc32(repr(sums).encode()) % _MODULUS
