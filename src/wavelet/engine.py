"""The engine: forward in ``step`` on the caller's thread, backward and update behind it in K waves."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from wavelet import arguments, saving
from wavelet.devices import Device, make_device
from wavelet.devices.random_state import RandomState
from wavelet.face import Face
from wavelet.forking import quiet_before_fork
from wavelet.forward import Forward, LossFunction
from wavelet.step import Step
from wavelet.updates import RULES, HyperParameters, LossScale, check_optimizer
from wavelet.waves.buffers import BufferSlots
from wavelet.waves.group import WaveGroup
from wavelet.waves.replica import check_model, make_replicas
from wavelet.waves.turns import NoProgressError
from wavelet.waves.wave import Task, Wave

__all__ = ["Wavelet"]


class Wavelet:
    """Trains ``model`` in interleaved waves (Wavelet, MLSys 2021): one wave's forward beside another's backward.

    Batch n, counted as handed in, belongs to wave n mod K. Its forward runs in `step` on the caller's thread; its
    backward and update run in its wave's thread, updates in batch order. So results depend on the batches alone.

    Args:
        model: on one device, CPU or CUDA. It and ``optimizer`` stay yours: change rates, modes or ``requires_grad`` as
            ever; after `drain` the model holds the newest weights.
        optimizer: any ``torch.optim.Optimizer`` that needs no closure.
        loss: ``loss(model, batch)`` gives a scalar tensor, or a mapping with ``"loss"`` whose other entries appear,
            detached, in ``step.outputs``. It must use the model that it is given.
        waves: K, at least 1.
        update: ``"neighbour"`` (each wave steps with the mean of the last K gradients), ``"synchronous"`` (one step a
            round, the plain loop with accumulation) or ``"delayed"`` (serial SGD with delay K−1).
        accumulate: micro-batches a wave gives to one update.
        resync: under ``neighbour``, a wave averages with its predecessor at every so many updates of its own;
            ``"auto"``, a number, or None for never.
        clip_grad_norm: largest norm of the gradient that the optimizer uses.
        autocast: a dtype for the forward, such as ``torch.bfloat16``.
        grad_scaler: a ``torch.amp.GradScaler`` for fp16.
        scheduler: a learning-rate scheduler of ``optimizer``, stepped once an update.
        compile: compile the model's forward.
        streams: on CUDA, ``"separate"`` (a stream a wave), ``"shared"``, or ``"auto"``.
        replicate: ``() -> Module``, for models that ``copy.deepcopy`` cannot copy.
        timeout: seconds without progress before a wait raises `NoProgressError`.

    Raises:
        ValueError: for arguments that make no sense, with what to do instead.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss: LossFunction,
        *,
        waves: int = 2,
        update: str = "neighbour",
        accumulate: int = 1,
        resync: int | Literal["auto"] | None = "auto",
        clip_grad_norm: float | None = None,
        autocast: torch.dtype | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
        scheduler: Any = None,
        compile: bool = False,
        streams: str = "auto",
        replicate: Callable[[], nn.Module] | None = None,
        timeout: float = 300.0,
    ) -> None:
        settings = arguments.check(waves, update, accumulate, resync, clip_grad_norm, autocast, timeout, compile)
        arguments.check_objects(model, optimizer, loss, scheduler, grad_scaler, replicate)
        self.waves, self.update, self.accumulate = waves, update, accumulate
        self._device = make_device(check_model(model, num_waves=waves), waves, streams)
        check_optimizer(optimizer, model)
        replicas = make_replicas(model, waves, replicate, compile=compile)
        self._face = Face(model, optimizer)
        self._forward = Forward(loss, autocast, self._device, BufferSlots(model).clone(), self._face.parameters)
        self._scheduler = scheduler
        self._rule = RULES[update](
            [replica.parameters for replica in replicas],
            self._face.parameters,
            optimizer,
            settings,
            LossScale.of(grad_scaler, waves),
            self._device,
        )
        self._waves = WaveGroup(replicas, self._rule, self._device, timeout)
        self._turns = self._waves.turns
        self._num_batches = self._position = 0  # the position is that in the open round
        self._hyper_parameters = [self._face.read()] * waves  # at each wave's last micro-batch
        self._running = self._closed = False
        self._gradients_seen = self._face.gradients_seen()
        self._face.publish(self._rule, self._forward.buffers)
        self._stop_threads = weakref.finalize(self, _stop, self._waves, self._device)
        quiet_before_fork(self)

    def step(self, batch: Any) -> Step:
        """Run the forward of ``batch``, hand its backward and update to its wave, and return.

        Waits first until the wave is free. An exception in the forward rises here and leaves the engine usable: the
        batch was not counted, buffers and random state are as before.

        Raises:
            ValueError: the loss function gave no scalar that requires a gradient.
            NoProgressError: nothing has moved for ``timeout`` seconds.
            Exception: whatever was raised in a wave since the last call; all threads have ended then.
        """
        with self._fatal():
            self._check_open()
            if not self._running:
                self._go_on()
            wave = self._waves[self._position % self.waves]
            round_starts = self._rule.shares_weights and self._position < self.waves
            all_idle = round_starts and self._position == 0
            self._wait(lambda: self._waves.idle if all_idle else wave.idle)
            hyper_parameters = self._read_face(wave)
            result = self._forward.run(wave, batch, after_turns=round_starts)
            updates = self._rule.updates_after(self._position)
            with self._device.running(wave.index):
                scaled = self._rule.scaled(wave.index, result.loss)
                loss = self._device.to_host(result.loss.detach(), wave.index)
            task = Task(self._num_batches, scaled, hyper_parameters, updates, result.batch)
            self._hyper_parameters[wave.index] = hyper_parameters
            self._num_batches += 1
            self._position = (self._position + 1) % self._rule.round_size
            before = RandomState(self._device) if result.compiled or wave.sets_up(task) else None
            wave.hand_in(task)
            self._check_failure()
            if before is not None:
                self._finish_alone(task, before)
            if updates:
                self._stepped()
            return Step(task, loss, result.outputs, self._turns)

    def drain(self) -> None:
        """Return when every backward handed in is done; ``model`` and ``optimizer`` are then the newest.

        An open round stays open. Draining changes no later result.
        """
        with self._fatal():
            self._check_open()
            self._settle()

    def flush(self) -> None:
        """Drain, and close the open round: apply the mean of what its waves have. The next batch opens a new one."""
        with self._fatal():
            self._check_open()
            if not self._running:
                self._go_on()
            self._wait(lambda: self._waves.idle)
            for index in self._rule.pending():
                self._waves[index].close_round(self._hyper_parameters[index])
                self._check_failure()
                self._stepped()
            if self._rule.round_size > self.waves or self._rule.shares_weights:
                self._position = 0
            self._settle()

    def close(self) -> None:
        """Flush, end all threads and give ``model`` and ``optimizer`` back. Closing twice is allowed."""
        if not self._closed:
            try:
                self.flush()
            finally:
                self._end()

    def __enter__(self) -> Wavelet:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on, as clones; may be taken after any batch and changes nothing.

        Holds tensors and plain values only, so it loads with ``torch.load(..., weights_only=True)``.
        """
        with self._fatal():
            self._check_failure()
            if not self._running and not self._closed:
                self._face.adopt(self._rule, self._forward.buffers)
            self._wait(lambda: self._waves.idle)
            if self._face.optimizer_was_replaced() and not self._closed:
                self._face.give_optimizer(self._rule)
            return saving.state_of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken, bitwise.

        Raises:
            ValueError: the state was saved with other ``waves``, ``update`` or ``accumulate``, or for another model.
        """
        with self._fatal():
            self._check_open()
            saving.check_state(self, state)
            self._settle()
            saving.load_into(self, state)

    def _read_face(self, wave: Wave) -> HyperParameters:
        if self._face.optimizer_was_replaced():
            self._wait(lambda: self._waves.idle)
            self._face.give_optimizer(self._rule)
        self._face.apply_modes(wave.replica)
        return self._face.read()

    def _finish_alone(self, task: Task, before: RandomState) -> None:
        """Let lazy state and compilers be set up with nothing beside them, and look at what the backward did."""
        self._wait(lambda: task.done)
        try:
            arguments.check_gradients_seen(self._gradients_seen, self._face.gradients_seen())
            if self.waves > 1:
                arguments.check_draws(before)
        except ValueError as error:  # too late to be as if the batch had not been
            self._turns.fail(error)
        self._check_failure()
        self._waves.offer_between_blocks()

    def _stepped(self) -> None:
        self._face.optimizer._opt_called = True  # type: ignore[attr-defined]  # or schedulers would warn
        if self._scheduler is not None:
            self._scheduler.step()

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

    def _check_open(self) -> None:
        self._check_failure()
        if self._closed:
            raise RuntimeError("this engine is closed: make a new one, or use drain() where training goes on later.")

    def _check_failure(self) -> None:
        failure = self._turns.failure
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
            self._turns.fail(error)
            self._end()
            raise

    def _end(self) -> None:
        """Stop and join all threads, once; the user's objects become the newest finished weights."""
        if self._closed:
            return
        self._closed = True
        self._stop_threads()
        self._running = False
        self._face.publish(self._rule, self._forward.buffers, final=True)


def _stop(waves: WaveGroup, device: Device) -> None:
    """End the threads and give the caller's thread back what was taken, also when an engine is forgotten."""
    if not waves.stop():
        device.leave()
