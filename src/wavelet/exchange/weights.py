"""Means of weights over ranks: an exchange is a header, which says who gives how much, and then buckets of weights."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from wavelet.exchange.buckets import Layout, Parcel
from wavelet.exchange.channel import Channel
from wavelet.exchange.exchange import Gradients
from wavelet.exchange.flight import Flight
from wavelet.exchange.pulse import ExchangeError

__all__ = ["Weights", "copy_means"]

_MODULUS = 2**20  # sums of squares of numbers below it are exact in 64 bits, for up to 4,096 ranks
_NUM_OWN = 4  # numbers of the header that come before what else it carries


class Weights:
    """Sends weights of this rank, each times its share, and gives their means.

    Args:
        channel: to the other ranks.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._num_ranks = channel.ranks.size

    def begin(
        self,
        wave: int,
        number: int,
        layout: Layout,
        *,
        live: bool,
        share: float,
        more: Sequence[float] = (),
        others: bool = False,
    ) -> Flight:
        """The next exchange; its header leaves now.

        Args:
            wave: whose weights.
            number: the batch that waits for it.
            layout: which weights, in which buckets.
            live: whether this rank comes with an update, and not at its end.
            share: of this rank in the mean; 0 for one that has nothing new.
            more: numbers that the header carries, of which all ranks learn the sum: as many on every rank.
            others: whether more than weights is to be mixed; on all ranks or on none.
        """
        flight = self._channel.open(number, len(layout.buckets) + others, self._check)
        weights = self._channel.setting.weights[wave]
        flight.parcel = Parcel(layout, weights, share, lambda number, bucket: None)
        flight.share = share
        # At the end all is launched in the turn of the first wave, whose stream follows all others.
        flight.lane = wave if live else 0
        print_ = zlib.crc32(repr(sorted(layout.places)).encode()) % _MODULUS
        header = torch.tensor([live, share, print_, print_ * print_, *more], dtype=torch.float64)
        self._channel.put(flight, flight.lane, 0, header)
        return flight

    def put(self, flight: Flight, wave: int, index: int) -> None:
        """Send the weights of parameter ``index`` of ``wave`` as they are now, once its bucket is full."""
        if flight.share == 0 or index in flight.gone or index not in flight.parcel.layout.places:
            return
        flight.gone.add(index)
        full = flight.parcel.put(index, self._channel.setting.weights[wave][index].detach())
        if full is not None:
            self._send(flight, full)

    def complete(self, flight: Flight, wave: int, others: Tensor | None) -> None:
        """Send all that has not left yet; ``others`` are float64 numbers, already times the share."""
        for index in flight.parcel.layout.order:
            self.put(flight, wave, index)
        for number in flight.parcel.fill():
            self._send(flight, number)
        flight.others = others
        if others is not None:
            self._channel.put(flight, flight.lane, len(flight.parcel.layout.buckets) + 1, others)
        flight.complete = True

    def know(self, flight: Flight) -> Tensor:
        """Wait for the header; gives the sums of what it carried beside its own.

        Raises:
            ExchangeError: a rank is missing, or the ranks differ in what they exchange.
        """
        self._channel.wait(flight, lambda: flight.known)
        return flight.sent[0][_NUM_OWN:]

    def num_live(self, flight: Flight) -> int:
        """How many ranks came with an update; once the header is known."""
        return int(flight.sent[0][0])

    def shares(self, flight: Flight) -> float:
        """The sum of all ranks' shares; once the header is known."""
        return float(flight.sent[0][1])

    def skip(self, flight: Flight) -> None:
        """Nothing follows the header, which is known, on any rank."""
        if flight.size > 1:
            self._channel.end(flight)

    @torch.no_grad()
    def means(self, flight: Flight) -> Gradients:
        """Wait for all of it, and give each parameter's mean; None for those that are not in it.

        Raises:
            ExchangeError: a rank is missing, or the ranks differ in what they exchange.
        """
        assert flight.complete
        self._channel.wait(flight, lambda: flight.done)
        total = self.shares(flight)
        parcel = flight.parcel
        for flat, bucket in zip(parcel.flats, parcel.layout.buckets, strict=True):
            assert flat is not None
            flat[: bucket.num_elements] /= total
        if flight.others is not None:
            flight.others /= total
        return parcel.gradients()

    def _send(self, flight: Flight, number: int) -> None:
        flat = flight.parcel.flats[number]
        assert flat is not None
        self._channel.put(flight, flight.lane, number + 1, flat)

    def _check(self, flight: Flight) -> None:
        print_, squared = flight.sent[0][2:_NUM_OWN].tolist()
        if print_ * print_ != self._num_ranks * squared:
            raise ExchangeError(
                f"the ranks differ in which parameters they have trained, after batch {flight.number}: freeze the same "
                "ones on all ranks."
            )


@torch.no_grad()
def copy_means(weights: Sequence[Tensor], means: Gradients) -> None:
    """Let each weight be its mean, where there is one."""
    pairs = [(weight, mean) for weight, mean in zip(weights, means, strict=True) if mean is not None]
    if pairs:
        torch._foreach_copy_([weight for weight, _ in pairs], [mean for _, mean in pairs])
