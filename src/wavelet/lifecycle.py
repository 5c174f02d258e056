"""The engine's life: made, running, drained, failed, closed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wavelet.devices import Device, make_device
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
        self.waves = waves
        self._device = make_device(check_model(face.model, num_waves=waves), waves, options.streams)
        replicas = make_replicas(face.model, waves, options.replicate, compile=options.compile)
        buffers = BufferSlots(face.model).clone()
        self._forward = Forward(options.loss, options.autocast, self._device, buffers, face.parameters)
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
        self._memory = Memory(options.request, self._waves, self._rule, self._device)
        self._num_batches = self._position = 0
        self._hyper_parameters = [face.read()] * waves  # at each wave's last micro-batch
        self._gradients_seen = face.gradients_seen()
        face.publish(self._rule, self._forward.buffers)
        self._stop_threads = weakref.finalize(self, _stop, self._waves, self._device)

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
        except (KeyboardInterrupt, SystemExit, GeneratorExit, NoProgressError) as error:
            if self.waves:
                self._turns.fail(error)
            self._end()
            raise

    def _end(self) -> None:
        """Stop and join all threads, once; the user's objects become the newest finished weights."""
        if self._closed:
            return
        self._closed = True
        if self.waves == 0:
            return
        self._stop_threads()
        self._running = False
        self._face.publish(self._rule, self._forward.buffers, final=True)


def _stop(waves: WaveGroup, device: Device) -> None:
    """End the threads and give the caller's thread back what was taken, also when an engine is forgotten."""
    if not waves.stop():
        device.leave()
