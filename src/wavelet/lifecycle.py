"""The engine's life: made, running, drained, failed, closed."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wavelet.devices import Device, make_device
from wavelet.exchange import Exchange, ExchangeError, connect
from wavelet.face import Face
from wavelet.forward import Forward
from wavelet.memory import Memory
from wavelet.options import Options
from wavelet.updates import RULES, LossScale, UpdateSettings
from wavelet.waves.buffers import BufferSlots
from wavelet.waves.group import WaveGroup
from wavelet.waves.replica import check_model, make_replicas
from wavelet.waves.turns import NoProgressError

__all__ = ["Lifecycle"]


class Lifecycle:
    """What `Wavelet` is built of, and the ways in which it starts, waits, fails and ends.

    While ``waves`` is 0 it is not decided how many there are, and nothing has been made yet.
    """

    waves: int
    update: str
    accumulate: int
    _options: Options
    _settings: UpdateSettings
    _face: Face
    _running: bool
    _closed: bool
    _num_batches: int
    _position: int  # in the open round

    def _decide(self, waves: int) -> None:
        """Make the waves, once it is known how many."""
        options, face = self._options, self._face
        device = check_model(face.model, num_waves=waves)
        exchange = connect(options.exchange, device, self._facts(waves), [*face.parameters, *face.model.buffers()])
        self.waves = waves = exchange.of_first(waves) if options.chosen else waves
        self._device = make_device(device, waves, options.streams)
        replicas = make_replicas(face.model, waves, options.replicate, compile=options.compile)
        buffers = BufferSlots(face.model).clone()
        self._forward = Forward(options.loss, options.autocast, self._device, buffers, face.parameters, exchange)
        self._rule = RULES[self.update](
            [replica.parameters for replica in replicas],
            face.parameters,
            face.optimizer,
            self._settings.among(waves),
            LossScale.of(options.grad_scaler, waves),
            self._device,
        )
        self._waves = WaveGroup(replicas, self._rule, self._device, options.timeout)
        self._turns = self._waves.turns
        self._exchange = self._rule.exchange = exchange
        exchange.attach(self._waves.setting(self._rule, self._device, buffers))
        self._memory = Memory(options.request, self._waves, self._rule, self._device)
        self._num_batches = self._position = 0
        self._hyper_parameters = [face.read()] * waves  # at each wave's last micro-batch
        self._gradients_seen = face.gradients_seen()
        face.publish(self._rule, self._forward.buffers)
        self._forgotten = weakref.finalize(self, _forget, self._waves, self._device, exchange)
        exchange.watch(self._waves.describe, self._turns.fail)

    def _facts(self, waves: int) -> dict[str, Any]:
        """In what all ranks must be alike."""
        shapes = [(tuple(p.shape), str(p.dtype)) for p in self._face.parameters]
        print_ = f"{len(shapes)} of shapes with checksum {zlib.crc32(repr(shapes).encode()):08x}"
        facts = {
            "waves": "auto" if self._options.chosen else waves,
            "update": self.update,
            "accumulate": self.accumulate,
            "resync": self._settings.resync,
            "clip_grad_norm": self._settings.clip_grad_norm,
            "optimizer": type(self._face.optimizer).__name__,
        }
        return {**facts, "parameters": print_, "buffers": len(list(self._face.model.buffers()))}

    def _updates_left(self) -> Iterator[int]:
        """At a flush, all waves idle: the waves that still update, each before it does.

        Those are the ones with micro-batches of an open round; and where another rank has more batches than this one,
        the ones that update with what it brings.
        """
        while self._exchange.joins(wave := self._rule.next_update(self._position)):
            self._hyper_parameters[wave] = self._face.read()
            coming = self._exchange.begins(wave, self._num_batches, self._rule.folded(wave))
            self._wait(lambda coming=coming: coming.known)  # type: ignore[misc]
            if coming.total == 0:
                self._exchange.skip(wave)
                return
            yield wave
            self._position = self._rule.after_next_update(self._position)
        for wave in self._rule.pending():
            self._exchange.begins(wave, self._num_batches, self._rule.folded(wave))
            yield wave

    def _agree(self) -> None:
        """At a flush, when no updates are left: let all ranks become alike."""

        def settle() -> None:
            self._rule.newest = self._exchange.settle()

        self._waves[0].alone("agreeing with the other ranks", settle)
        self._check_failure()

    def _go_on(self) -> None:
        self._face.adopt(self._rule, self._forward.buffers)
        self._device.enter()
        self._running = True
        self._gradients_seen = self._face.gradients_seen()
        self._waves.start()

    def _settle(self) -> None:
        """Wait for all waves, and make the user's objects the newest."""
        self._wait(lambda: self._waves.idle)
        if self._running:
            self._device.leave()
            self._running = False
            self._face.publish(self._rule, self._forward.buffers)

    def _wait_until_idle(self) -> None:
        if self._running and self._waves.is_callers_thread():
            self._waves.wait(lambda: self._waves.idle)

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._waves.wait(ready)
        self._check_failure()

    def _is_undecided(self) -> bool:
        """Whether no batch has come yet by which to choose the number of waves."""
        return self.waves == 0 and not self._closed

    def _check_open(self, undecided: int = 2) -> None:
        if self._is_undecided():
            self._decide(undecided)  # no batch has come by which to choose
        self._check_failure()
        if self._closed:
            raise RuntimeError("this engine is closed: make a new one, or use drain() where training goes on later.")

    def _check_failure(self) -> None:
        failure = self._turns.failure if self.waves else None
        if failure is None:
            return
        if self._closed:
            raise RuntimeError("this engine has stopped after an error in a wave: make a new one.") from failure
        self._end()
        raise self._turns.failure or failure  # an earlier batch may have failed meanwhile

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        try:
            yield
        except (KeyboardInterrupt, SystemExit, GeneratorExit, NoProgressError, ExchangeError) as error:
            if self.waves:
                self._turns.fail(error)
            self._end()
            raise

    def _end(self, error: BaseException | None = None) -> None:
        """Stop and join all threads, once; the user's objects become the newest finished weights.

        Args:
            error: why, where it is not a failure that the waves know of.
        """
        if self._closed:
            return
        self._closed = True
        if self.waves == 0:
            return
        error = self._turns.failure or error
        if error is not None:
            self._exchange.fail(error)  # first: the threads that are waited for next may wait for other ranks
        self._forgotten.detach()
        _stop(self._waves, self._device)
        self._running = False
        self._face.publish(self._rule, self._forward.buffers, final=True)
        if error is None:
            self._exchange.close()


def _stop(waves: WaveGroup, device: Device) -> None:
    """End the threads and give the caller's thread back what was taken."""
    if not waves.stop():
        device.leave()


def _forget(waves: WaveGroup, device: Device, exchange: Exchange) -> None:
    """What becomes of an engine that nobody has closed."""
    _stop(waves, device)
    exchange.forget()
