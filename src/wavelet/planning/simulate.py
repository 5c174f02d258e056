"""What a schedule costs in time: forwards, backwards and turns under an interlock, event by event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from wavelet.planning.chain import Chain
from wavelet.planning.interlock import Interlock
from wavelet.profiling.profile import NO_CONTENTION, Contention

__all__ = ["Kind", "Span", "seconds_per_batch", "simulate"]

WARM_UP, MEASURED = 12, 24
"""Batches; a multiple of 1, 2 and 3 waves. Schedules are periodic after a few rounds."""

Kind = Literal["forward", "backward", "turn"]


class Span(NamedTuple):
    """Work on one batch: of a block, forward or backward, or its turn (block 0)."""

    batch: int
    kind: Kind
    block: int
    start: float
    end: float


@dataclass
class _Work:
    batch: int
    kind: Kind
    block: int
    start: float
    left: float


def simulate(
    chain: Chain, interlock: Interlock, contention: Contention = NO_CONTENTION, *, num_batches: int, round_size: int = 0
) -> list[Span]:
    """The work on batches 0, 1, …, in the order in which it ends.

    Forwards run one after the other, each wave's backward after its forward, turns in batch order.

    Args:
        chain: bytes do not matter; its seconds are those of work alone.
        interlock: of the same number of blocks.
        contention: how much work is slowed down beside other work.
        num_batches: how many are handed in.
        round_size: batches after which all waves must be idle before the next forward; 0 for never.
    """
    return _Simulation(chain, interlock, contention, num_batches, round_size).run()


def seconds_per_batch(
    chain: Chain, interlock: Interlock, contention: Contention = NO_CONTENTION, *, round_size: int = 0
) -> float:
    """Seconds from turn to turn in the steady state; arguments as of `simulate`."""
    warm_up, measured = (_whole_rounds(count, round_size) for count in (WARM_UP, MEASURED))
    spans = simulate(chain, interlock, contention, num_batches=warm_up + measured, round_size=round_size)
    turns = [span.end for span in spans if span.kind == "turn"]
    return (turns[-1] - turns[warm_up - 1]) / measured


def _whole_rounds(count: int, round_size: int) -> int:
    return count if round_size == 0 else -(-count // round_size) * round_size


class _Simulation:
    def __init__(
        self, chain: Chain, interlock: Interlock, contention: Contention, num_batches: int, round_size: int
    ) -> None:
        self._chain, self._interlock, self._contention = chain, interlock, contention
        self._num_batches, self._round_size = num_batches, round_size
        self._positions = [-1] * num_batches  # -1: the forward is not done
        self._done = chain.num_blocks + 1
        self._next = (0, 1)  # the batch and block whose forward is next
        self._oldest = 0  # whose turn is not done
        self._running: list[_Work] = []
        self._now = 0.0

    def run(self) -> list[Span]:
        spans: list[Span] = []
        while self._oldest < self._num_batches:
            self._start_all()
            ended = self._advance()
            spans += ended
            for span in ended:
                self._finish(span)
        return spans

    def _start_all(self) -> None:
        busy = {work.batch for work in self._running}
        batch, block = self._next
        rising = batch == self._num_batches or any(work.kind == "forward" for work in self._running)
        if not rising and self._may_rise(batch, block):
            self._start(batch, "forward", block, self._chain.forward_seconds[block - 1])
        for number in range(self._oldest, min(batch, self._num_batches)):
            position = self._positions[number]
            if number in busy or position < 0:
                continue
            if position < self._chain.num_blocks:
                block = self._chain.num_blocks - position
                self._start(number, "backward", block, self._chain.backward_seconds[block - 1])
            elif position < self._done and number == self._oldest:
                self._start(number, "turn", 0, self._chain.update_seconds)

    def _may_rise(self, batch: int, block: int) -> bool:
        if block == 1:
            if batch >= self._interlock.num_waves and self._oldest <= batch - self._interlock.num_waves:
                return False
            if self._round_size and batch % self._round_size == 0 and self._oldest < batch:
                return False
        entry = self._interlock.entries[block - 1]
        return all(
            batch < back or self._positions[batch - back] >= position for back, position in enumerate(entry, start=1)
        )

    def _start(self, batch: int, kind: Kind, block: int, seconds: float) -> None:
        self._running.append(_Work(batch, kind, block, self._now, seconds))

    def _advance(self) -> list[Span]:
        """Move to the moment when the next work ends."""
        assert self._running, "an interlock cannot deadlock"
        others = len(self._running) - 1
        slow = {
            "forward": 1 + others * (self._contention.forward - 1),
            "backward": 1 + others * (self._contention.backward - 1),
        }
        slow["turn"] = slow["backward"]
        step = min(work.left * slow[work.kind] for work in self._running)
        self._now += step
        ended: list[Span] = []
        for work in list(self._running):
            work.left -= step / slow[work.kind]
            if work.left <= 1e-12:
                self._running.remove(work)
                ended.append(Span(work.batch, work.kind, work.block, work.start, self._now))
        return ended

    def _finish(self, span: Span) -> None:
        if span.kind == "forward":
            is_last = span.block == self._chain.num_blocks
            self._next = (span.batch + 1, 1) if is_last else (span.batch, span.block + 1)
            if is_last:
                self._positions[span.batch] = 0
        else:
            self._positions[span.batch] += 1
            if span.kind == "turn":
                self._oldest += 1
