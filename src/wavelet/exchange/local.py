"""Ranks that train apart for a while: each updates with its own gradients, and weights are mixed now and then."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from wavelet.devices import tensors_in
from wavelet.exchange.among_ranks import AmongRanks
from wavelet.exchange.buckets import Layout
from wavelet.exchange.channel import Channel
from wavelet.exchange.exchange import Count, Exchange, Gradients, Own, Setting
from wavelet.exchange.flight import Flight
from wavelet.exchange.mixed_buffers import MixedBuffers
from wavelet.exchange.weights import Weights

__all__ = ["Local"]

_SAVED = ("warmed", "phase", "period", "fresh", "samples", "trained", "numbers", "seen")


class Local(AmongRanks):
    """Mixes replica k with replica k of the other ranks, in periods of each trajectory's own updates.

    All ranks have the same *mixings* in the same order: trajectory 0, 1, …, and 0 again. A rank that comes to a flush
    joins those of ranks that still have data, with what it has learned since it mixed last, until none has data left.
    Then all take the mean of all weights, so that a flush leaves them alike, and a new period begins.

    The subclass opens a mixing in `_begins` or `_updated`, by `_open`.

    Args:
        channel: to the other ranks.
        warm_up: makes the first updates of every trajectory, by all ranks together; None for none.
        num_warm: how many those are.
        weigh: the share of this rank in a mean, of the samples that it has seen since it mixed last.
    """

    alike = False

    def __init__(
        self, channel: Channel, warm_up: Exchange | None, num_warm: int, weigh: Callable[[int], float]
    ) -> None:
        super().__init__(channel)
        self._weigh = weigh
        self._warm_up, self._num_warm = warm_up, num_warm
        self._weights = Weights(channel)

    def attach(self, setting: Setting) -> None:
        super().attach(setting)
        if self._warm_up is not None:
            self._warm_up.attach(setting)
        self._buffers = MixedBuffers(setting.buffers)
        waves, trajectories = len(setting.weights), setting.num_trajectories
        self._warmed = [0] * trajectories  # updates made by all ranks together
        self._phase = [0] * trajectories  # updates in the open period
        self._period = [0] * trajectories  # mixings of which all weights have had one, before this one
        self._fresh = [0] * trajectories  # mixings to come that this rank has something new for
        self._samples = [0] * trajectories  # since it mixed last
        self._next = 0  # whose trajectory's mixing is the next
        self._trained = [False] * len(setting.weights[0])  # ever, by this rank or before
        self._patterns: list[tuple[bool, ...]] = [()] * waves
        self._last_pattern: tuple[bool, ...] = ()
        self._numbers = [0] * waves  # of the batch behind each wave's coming update
        self._together = [False] * waves  # whether that is of the warm-up
        self._seen = [0] * waves  # samples for the coming update
        self._forward_since = False  # since a flush

    def joins(self, wave: int) -> bool:
        return min(self._warmed) < self._num_warm  # all end it together, also if a flush came between their updates

    def begins(self, wave: int, number: int, count: int) -> Count:
        trajectory = self._trajectory(wave)
        self._together[wave] = self.joins(wave)
        self._numbers[wave] = number
        if self._together[wave]:
            assert self._warm_up is not None
            self._warmed[trajectory] += 1
            return self._warm_up.begins(wave, number, count)
        self._patterns[wave] = self._pattern(wave)
        return self._begins(wave, trajectory) or Own(count)

    def skip(self, wave: int) -> None:
        assert self._warm_up is not None
        self._warmed[self._trajectory(wave)] -= 1
        self._warm_up.skip(wave)

    @contextmanager
    def backward(self, wave: int) -> Iterator[None]:
        if self._together[wave]:
            assert self._warm_up is not None
            with self._warm_up.backward(wave):
                yield
        else:
            with self._backward(wave):
                yield

    def finish(self, wave: int, total: Gradients, count: int) -> tuple[Gradients, float]:
        if self._together[wave]:
            assert self._warm_up is not None
            return self._warm_up.finish(wave, total, count)
        self._finish(wave, self._trajectory(wave))
        self._setting.unscale([gradient for gradient in total if gradient is not None], wave)
        return total, count

    def updated(self, wave: int) -> None:
        trajectory = self._trajectory(wave)
        # An update with the gradients of all waves comes when no other forward can have run.
        waves = [wave] if self._setting.early else range(len(self._seen))
        num_samples = sum(self._seen[each] for each in waves)
        for each in waves:
            self._seen[each] = 0
        if not self._together[wave]:
            self._samples[trajectory] += num_samples
            self.apart = True
            self._updated(wave, trajectory)

    def before_forward(self, wave: int) -> None:
        self._buffers.before_forward(wave)

    def after_forward(self, wave: int, batch: Any) -> None:
        self._seen[wave] += next((len(tensor) for tensor in tensors_in(batch) if tensor.dim()), 1)
        self._forward_since = True
        self._buffers.after_forward(wave)

    def settle(self) -> int:
        self._buffers.mix_now()
        while self._join():
            pass
        newest = self._setting.newest()
        if self._setting.num_trajectories > 1:  # ranks with more data may have ended on another one
            newest = self._channel.ranks.of_first(newest)
        for trajectory in range(self._setting.num_trajectories):
            self._close(trajectory, self._wave(trajectory, newest))
        self._close_buffers()
        self._phase, self._next = [0] * len(self._phase), 0
        self._period = [max(self._period)] * len(self._period)  # or periods of unlike length would change their order
        self.apart = self._forward_since = False
        return newest

    def resting_bytes(self) -> int:
        layout = self._layout(self._pattern(0))
        whole = sum(bucket.nbytes for bucket in layout.buckets)
        warm_up = 0 if self._warm_up is None else self._warm_up.resting_bytes()
        # Steps that are watched may come before any mixing, so its buckets count here.
        return (
            warm_up
            + self._mixing_bytes(whole)
            + self._buffers.mixing_bytes
            + self._channel.ranks.transport_bytes(whole)
        )

    def state_dict(self) -> dict[str, Any]:
        warm_up = None if self._warm_up is None else self._warm_up.state_dict()
        lists = {name: list(getattr(self, f"_{name}")) for name in _SAVED}
        return {
            **lists,
            "next": self._next,
            "forward_since": self._forward_since,
            "buffers": self._buffers.state_dict(),
            "warm_up": warm_up,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _SAVED:
            setattr(self, f"_{name}", list(state[name]))
        self._next, self._forward_since = state["next"], state["forward_since"]
        self._last_pattern = ()
        self._buffers.load_state_dict(state["buffers"])
        if self._warm_up is not None:
            self._warm_up.load_state_dict(state["warm_up"])

    # What a strategy decides.

    def _begins(self, wave: int, trajectory: int) -> Count | None:
        """In the caller's thread, before the forward; `_patterns` and `_numbers` are there."""
        return None

    @contextmanager
    def _backward(self, wave: int) -> Iterator[None]:
        """Around the last backward before an update."""
        yield

    def _finish(self, wave: int, trajectory: int) -> None:
        """In the turn, before the update."""
        return

    @abstractmethod
    def _mixing_bytes(self, whole: int) -> int:
        """The most bytes that mixings hold, under way and between them; ``whole``: of all weights once."""

    @abstractmethod
    def _updated(self, wave: int, trajectory: int) -> None:
        """In the turn, after the update."""

    @abstractmethod
    def _open_next(self, wave: int, trajectory: int, number: int, pattern: tuple[bool, ...], *, live: bool) -> Flight:
        """Begin the next mixing of ``trajectory``; advances its phase and period."""

    @abstractmethod
    def _write(self, wave: int, trajectory: int, means: Gradients, *, closes: bool) -> None:
        """Let the weights of ``wave`` follow from the means. ``closes``: a flush ends the period here."""

    def _learn(self, trajectory: int, flight: Flight, told: Tensor) -> None:
        """What the headers of a mixing carried, summed over the ranks."""
        return

    def _left_open(self, wave: int, trajectory: int) -> None:
        """A flush found nothing new on any rank in ``trajectory``."""
        return

    # What they share.

    def _open(
        self,
        wave: int,
        trajectory: int,
        number: int,
        layout: Layout,
        *,
        live: bool,
        buffers: bool,
        more: Sequence[float],
    ) -> Flight:
        assert trajectory == self._next
        self._next = (trajectory + 1) % self._setting.num_trajectories
        share = self._share(trajectory, live=live)
        others = buffers and self._buffers.any
        return self._weights.begin(wave, number, layout, live=live, share=share, more=more, others=others)

    def _buffers_ride(self, trajectory: int, period: int) -> bool:
        """Whether buffers are mixed in a period: the mean before must have come in when the next one is taken, and
        where several waves share a trajectory, their mixings may follow each other at once."""
        return trajectory == 0 and period % (len(self._seen) // self._setting.num_trajectories) == 0

    def _mix(self, wave: int, trajectory: int, flight: Flight) -> None:
        """Send what has not left, wait, and write the means."""
        self._complete(wave, flight)
        means = self._weights.means(flight)
        self._mixed(trajectory, flight)
        self._write(wave, trajectory, means, closes=False)
        if flight.others is not None:
            self._buffers.arrived(wave, flight.others)
        self._learn(trajectory, flight, self._weights.know(flight))

    def _complete(self, wave: int, flight: Flight) -> None:
        """Send what has not left yet."""
        if not flight.complete:
            rows = flight.size > 1 + len(flight.parcel.layout.buckets)
            self._weights.complete(flight, wave, self._buffers.packed(flight.share) if rows else None)

    def _check_pattern(self, pattern: tuple[bool, ...], flight: Flight) -> None:
        """Two collectives of different sizes that meet end the process in gloo: where a pattern is new, ask first."""
        if pattern != self._last_pattern:
            self._weights.know(flight)
            self._last_pattern = pattern

    def _join(self) -> bool:
        """Take part in the next mixing without an update of this rank; False if no rank has one."""
        trajectory = self._next
        wave = self._wave(trajectory, self._setting.newest())
        pattern = self._pattern(wave)
        flight = self._open_next(wave, trajectory, max(self._numbers), pattern, live=False)
        self._weights.know(flight)
        self._last_pattern = pattern
        if self._weights.num_live(flight) == 0:
            self._weights.skip(flight)
            return False
        self._mix(wave, trajectory, flight)
        self._buffers.mix_now()
        return True

    def _close(self, trajectory: int, wave: int) -> None:
        """Of all weights take the mean over the ranks that have something new, if there are any."""
        share, layout = self._share(trajectory, live=False), self._layout(self._pattern(wave))
        flight = self._weights.begin(wave, max(self._numbers), layout, live=False, share=share)
        self._weights.know(flight)
        if self._weights.shares(flight) == 0:
            self._weights.skip(flight)
            self._left_open(wave, trajectory)
            return
        self._complete(wave, flight)
        means = self._weights.means(flight)
        self._fresh[trajectory] = self._samples[trajectory] = 0
        self._write(wave, trajectory, means, closes=True)

    def _close_buffers(self) -> None:
        """Of all buffers take the mean over the ranks that had a forward: the last ones come after the last mixing."""
        if self._buffers.any:
            share, nothing = float(self._forward_since), Layout(self._setting.weights[0], [], 1)
            flight = self._weights.begin(0, max(self._numbers), nothing, live=False, share=share, others=True)
            self._weights.know(flight)
            if self._weights.shares(flight) == 0:
                self._weights.skip(flight)
                return
            self._complete(0, flight)
            self._weights.means(flight)
            assert flight.others is not None
            self._buffers.arrived(0, flight.others)
            self._buffers.mix_now()

    @abstractmethod
    def _layout(self, pattern: tuple[bool, ...]) -> Layout:
        """Of all weights that were ever trained."""

    def _mixed(self, trajectory: int, flight: Flight) -> None:
        """A mixing has arrived."""
        self._fresh[trajectory] = max(0, self._fresh[trajectory] - 1)
        if not self._fresh[trajectory]:
            self._samples[trajectory] = 0

    def _share(self, trajectory: int, *, live: bool) -> float:
        return self._weigh(self._samples[trajectory]) if live or self._fresh[trajectory] else 0.0

    def _pattern(self, wave: int) -> tuple[bool, ...]:
        """Which weights were ever trained: one that is frozen midway has drifted before."""
        weights = self._setting.weights[wave]
        for index, parameter in enumerate(weights):
            if parameter.requires_grad and (parameter.is_floating_point() or parameter.is_complex()):
                self._trained[index] = True
        return tuple(self._trained)

    def _trajectory(self, wave: int) -> int:
        return wave % self._setting.num_trajectories

    def _wave(self, trajectory: int, newest: int) -> int:
        """Which wave has the weights of a trajectory, when all are idle."""
        return trajectory if self._setting.num_trajectories > 1 else newest
