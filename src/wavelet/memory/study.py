"""What the first batches of an engine are watched for: blocks, then bytes, then seconds, each batch alone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from wavelet.devices import Device, tensors_in
from wavelet.profiling.calls import CallRecorder
from wavelet.profiling.chain_blocks import find_blocks, order_blocks
from wavelet.profiling.contention import contention_in, seconds_between
from wavelet.profiling.edges import BlockEdges
from wavelet.profiling.profile import NO_CONTENTION, Profile, Shapes, Timing, fits, model_print, shapes_in
from wavelet.profiling.recorders import BlockBytes, BlockSeconds, BytesRecorder, SecondsRecorder
from wavelet.profiling.watcher import Event, Watcher
from wavelet.updates import UpdateRule
from wavelet.waves.group import WaveGroup
from wavelet.waves.wave import Wave

__all__ = ["Study", "Watch"]

Lesson = Literal["calls", "bytes", "seconds"]


@dataclass
class Watch:
    """How one batch runs.

    Args:
        watcher: told of its way.
        edges: of the blocks of its wave's replica.
        lesson: what is learnt from it.
        recording: around all of it.
    """

    watcher: Watcher = field(default_factory=Watcher)
    edges: BlockEdges | None = None
    lesson: Lesson | None = None
    recording: AbstractContextManager[Any] = field(default_factory=nullcontext)

    @property
    def here(self) -> bool:
        """Whether all of it runs in the caller's thread."""
        return self.lesson is not None

    def forward(self) -> AbstractContextManager[Any]:
        """Around its forward."""
        return nullcontext() if self.edges is None else self.edges.forward(self.watcher)


class Study:
    """Learns what one batch costs, and knows when a batch comes that was not covered.

    Args:
        waves: the waves, whose batches are watched one at a time.
        rule: decides what a turn holds.
        device: where they run.
        blocks: names of the modules that start the blocks after the first; None to find them.
        coarse: the model cannot be watched inside: it is one block.
    """

    def __init__(
        self, waves: WaveGroup, rule: UpdateRule, device: Device, blocks: tuple[str, ...] | None, *, coarse: bool
    ) -> None:
        self._waves, self._rule, self._device = waves, rule, device
        self._wanted = blocks
        self._blocks: tuple[str | None, ...] | None = (None,) if coarse else None
        self._calls: Mapping[str, int] = {}
        self._bytes: BlockBytes | None = None
        self._seconds: list[BlockSeconds] = []
        self._contention = self._tight = NO_CONTENTION
        self._between = 0.0
        self._threads = 1
        self.num_timed = waves.num_waves  # batches whose seconds are wanted
        self.last = 2 * waves.num_waves + 1  # the number of the batch after which a plan must be possible
        self._shapes: list[Shapes] = []
        self._batch_bytes = 0
        self._update_covered = False
        self._modes: set[Any] = set()
        self._last_modes: dict[int, Any] = {}

    def adopt(self, profile: Profile) -> None:
        """Know what ``profile`` knows."""
        self._blocks, self._calls, self._bytes = profile.blocks, profile.calls, profile.bytes
        timing = profile.timing(self._waves.num_waves)
        self._seconds = [timing.seconds] * self.num_timed
        self._contention, self._tight, self._between = timing.contention, timing.tight, timing.between
        self._shapes, self._batch_bytes = list(profile.shapes), profile.batch_bytes
        self._update_covered = True
        for wave in self._waves.waves:
            self._modes.add(_modes_key(wave))

    @property
    def enough(self) -> bool:
        """Whether a plan can be made."""
        if self._bytes is None or not self._seconds:
            return False
        return len(self._seconds) >= self.num_timed or self._waves.num_batches > self.last

    def lesson(self, wave: Wave, batch: Any, *, updates: bool, first: bool) -> Lesson | None:
        """What the next batch of ``wave`` should be watched for; None if all that it does is known.

        Args:
            wave: which has had a batch already.
            batch: the next.
            updates: whether an update follows.
            first: whether that is the wave's first, which sets up lazy state.
        """
        if self._blocks is None:
            return "calls"
        if not self.enough and not self._seconds and self._waves.num_batches >= self.last:
            return "seconds"
        if first:
            return None if self.enough else "seconds"
        if self._bytes is None or not self._covers(wave, batch, updates=updates):
            return "bytes"
        return None if self.enough else "seconds"

    def watch(self, lesson: Lesson, wave: Wave, batch: Any) -> Watch:
        """How a batch runs that something is learnt from."""
        model = wave.replica.model
        if lesson == "calls":
            calls = CallRecorder(model, self._device.device)
            return Watch(calls, BlockEdges(model, (None,)), lesson, calls.recording())
        assert self._blocks is not None
        edges = BlockEdges(model, self._blocks)
        if lesson == "seconds":
            return Watch(SecondsRecorder(len(self._blocks), self._device), edges, lesson)
        stay = self._rule.settings.accumulate > 1 and not self._rule.shares_weights
        recorder = BytesRecorder(model, len(self._blocks), self._device, self._bytes_of(batch), gradients_stay=stay)
        return Watch(recorder, edges, lesson, recorder.recording())

    def learn(self, watch: Watch, wave: Wave, batch: Any, *, updates: bool) -> None:
        """Take over what was recorded."""
        assert watch.edges is not None
        watch.edges.remove()
        self._threads = torch.get_num_threads()  # those of a wave, while the engine runs
        if isinstance(watch.watcher, CallRecorder):
            self._learn_calls(watch.watcher)
        elif isinstance(watch.watcher, SecondsRecorder):
            self._seconds.append(watch.watcher.result())
        elif isinstance(watch.watcher, BytesRecorder):
            found = watch.watcher.result()
            self._bytes = found if self._bytes is None else self._bytes.most(found)
            self._shapes.append(shapes_in(batch))
            self._batch_bytes = max(self._batch_bytes, self._bytes_of(batch))
            self._update_covered = self._update_covered or updates
            self._modes.add(_modes_key(wave))

    def time(self, events: list[Event], *, freely: bool = True, tightly: bool = True) -> None:
        """Learn from what happened to batches that did not run alone, and say which case that shows."""
        found = contention_in(events, BlockSeconds.of(self._seconds))
        if tightly:
            self._tight = found
        if freely:
            self._contention = found
            self._between = seconds_between(events, self._waves.num_waves)

    def profile(self) -> Profile:
        """What has been learnt."""
        assert self._blocks is not None
        assert self._bytes is not None
        replica = self._waves[0].replica
        seconds = BlockSeconds.of(self._seconds)
        timing = Timing(self._threads, seconds, self._contention, self._tight, self._between)
        return Profile(
            model=model_print(replica.model),
            device=self._device.device.type,
            blocks=self._blocks,
            calls=self._calls,
            bytes=self._bytes,
            timings={self._waves.num_waves: timing},
            samples=max(map(_samples, self._shapes)),
            shapes=tuple(self._shapes),
            batch_bytes=self._batch_bytes,
            parameter_bytes=sum(parameter.nbytes for parameter in replica.parameters),
            gradient_bytes=sum(parameter.nbytes for parameter in replica.parameters if parameter.requires_grad),
            buffer_bytes=sum(buffer.nbytes for buffer in replica.buffers.values() if buffer is not None),
            optimizer_bytes=self._rule.optimizers[0].state_bytes(),
            exchange_bytes=self._rule.exchange.resting_bytes(),
        )

    def _covers(self, wave: Wave, batch: Any, *, updates: bool) -> bool:
        if updates and not self._update_covered:
            return False
        modes = wave.replica.modes
        if self._last_modes.get(wave.index) is not modes:
            if _modes_key(wave) not in self._modes:
                return False
            self._last_modes[wave.index] = modes
        return fits(shapes_in(batch), self._shapes)

    def _learn_calls(self, recorder: CallRecorder) -> None:
        tree = recorder.tree()
        self._calls = dict(tree.counts())
        if recorder.under_autocast and self._waves.turns.recomputes:
            self._blocks, self._calls = (None,), {}  # a gate would lend the baton, see offer_between_blocks
        elif self._wanted is None:
            self._blocks = tuple(block.module for block in find_blocks(tree))
        else:
            self._blocks = (None, *order_blocks(tree, self._wanted))

    def _bytes_of(self, batch: Any) -> int:
        """Of what lies on the device before the step."""
        return sum(tensor.nbytes for tensor in tensors_in(batch) if tensor.device == self._device.device)


def _modes_key(wave: Wave) -> Any:
    training, trainable = wave.replica.modes
    return tuple(training), tuple(trainable)


def _samples(shapes: Shapes) -> int:
    return next((shape[0] for shape in shapes if shape), 1)
