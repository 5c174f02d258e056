"""The engine: forward in ``step`` on the caller's thread, backward and update behind it in K waves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from wavelet import arguments, saving
from wavelet.devices.random_state import RandomState
from wavelet.exchange import Alone, Choice, check_exchange
from wavelet.face import Face
from wavelet.forking import quiet_before_fork
from wavelet.forward import LossFunction, Result
from wavelet.lifecycle import Lifecycle
from wavelet.measure import choose_waves
from wavelet.memory import Request, Watch
from wavelet.options import Options
from wavelet.planning.plan import Plan
from wavelet.step import Step
from wavelet.updates import HyperParameters, check_optimizer
from wavelet.waves.replica import check_model
from wavelet.waves.wave import Task, Wave

__all__ = ["Wavelet"]


class Wavelet(Lifecycle):
    """Trains ``model`` in interleaved waves (Wavelet, MLSys 2021): one wave's forward beside another's backward.

    Batch n, counted as handed in, belongs to wave n mod K. Its forward runs in `step` on the caller's thread; its
    backward and update run in its wave's thread, updates in batch order. So results depend on the batches alone.

    Args:
        model: on one device, CPU or CUDA. It and ``optimizer`` stay yours: change rates, modes or ``requires_grad`` as
            ever; after `drain` the model holds the newest weights.
        optimizer: any ``torch.optim.Optimizer`` that needs no closure.
        loss: ``loss(model, batch)`` gives a scalar tensor, or a mapping with ``"loss"`` whose other entries appear,
            detached, in ``step.outputs``. It must use the model that it is given.
        waves: K, at least 1; ``"auto"`` measures one and two with the first batch, and takes the better.
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
        budget: bound on peak memory: ``"1.25x"`` of one wave's step memory, or bytes (``"2GiB"``) in all.
        plan: made by `wavelet.plan`, in place of a budget; ``waves="auto"`` takes the plan's.
        blocks: modules whose calls start the blocks between which batches wait; found if left out.
        exchange: how ranks agree, one of `wavelet.exchange`: `AllReduce`, which is the default once torch.distributed
            is initialised, `LocalSGD`, `DreamDDP`, …, or `Alone`. Making, flushing and closing then involve all ranks.

    Raises:
        ValueError: for arguments that make no sense, with what to do instead.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss: LossFunction,
        *,
        waves: int | Literal["auto"] = 2,
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
        budget: str | int | None = None,
        plan: Plan | None = None,
        blocks: Sequence[str | nn.Module] | None = None,
        exchange: Choice | Alone | None = None,
    ) -> None:
        self._settings = arguments.check(waves, update, accumulate, resync, clip_grad_norm, autocast, timeout, compile)
        arguments.check_objects(model, optimizer, loss, scheduler, grad_scaler, replicate)
        self._options = Options(
            loss,
            autocast,
            grad_scaler,
            compile,
            streams,
            replicate,
            timeout,
            Request.of(model, waves, budget, plan, blocks),
            check_exchange(exchange, timeout, model, optimizer, update=update, waves=waves, clip=clip_grad_norm),
            waves == "auto" and plan is None,
        )
        if plan is not None:
            waves = plan.check(model, waves, update, accumulate)
        self.update, self.accumulate, self.waves = update, accumulate, 0  # waves: not decided yet
        self._scheduler = scheduler
        self._running = self._closed = False
        check_model(model, num_waves=1 if waves == 1 else 2)
        check_optimizer(optimizer, model)
        self._face = Face(model, optimizer)
        if waves != "auto":
            self._decide(waves)
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
            if self._is_undecided():
                self._decide(choose_waves(self, batch))
            self._check_open()
            if not self._running:
                self._go_on()
            wave = self._waves[self._position % self.waves]
            round_starts = self._rule.shares_weights and self._position < self.waves
            all_idle = round_starts and self._position == 0
            self._wait(lambda: self._waves.idle if all_idle else wave.idle)
            hyper_parameters = self._read_face(wave)
            updates = self._rule.updates_after(self._position)
            if updates:
                self._begin_exchange(wave)
            watch = self._memory.watch(wave, self._num_batches, batch, updates=updates)
            self._check_failure()
            with watch.recording:
                result = self._run_forward(wave, batch, watch, after_turns=round_starts)
                with self._device.running(wave.index):
                    scaled = self._rule.scaled(wave.index, result.loss)
                    loss = self._device.to_host(result.loss.detach(), wave.index)
                task = Task(self._num_batches, scaled, hyper_parameters, updates, result.batch, watch.watcher)
                self._hyper_parameters[wave.index] = hyper_parameters
                self._num_batches += 1
                self._position = (self._position + 1) % self._rule.round_size
                before = RandomState(self._device) if result.compiled or wave.sets_up(updates=updates) else None
                wave.hand_in(task, here=watch.here)
            self._check_failure()
            if before is not None:
                self._finish_alone(task, before)
            self._learn(watch, wave, batch, task)
            if updates:
                self._stepped()
            return Step(task, loss, result.outputs, self._turns)

    @property
    def plan(self) -> Plan | None:
        """The plan under a budget, once the first 2K + 2 batches are handed in; None without one."""
        request = self._options.request
        return self._memory.plan if self.waves else None if request is None else request.plan

    def drain(self) -> None:
        """Return when every backward handed in is done; ``model`` and ``optimizer`` are then the newest.

        An open round stays open. Draining changes no later result.
        """
        with self._fatal():
            if self._is_undecided():
                return
            self._check_open()
            self._settle()

    def flush(self) -> None:
        """Drain, and close the open round: apply the mean of what its waves have; ranks that train apart meet.

        The next batch opens a new round.
        """
        with self._fatal():
            if self._is_undecided():
                return
            self._check_open()
            if not self._running:
                self._go_on()
            self._wait(lambda: self._waves.idle)
            for index in self._updates_left():
                self._waves[index].close_round(self._hyper_parameters[index])
                self._check_failure()
                self._stepped()
            self._agree()
            if self._rule.round_size > self.waves or self._rule.shares_weights or not self._exchange.alike:
                self._position = 0
            self._settle()

    def close(self) -> None:
        """Flush, end all threads and give ``model`` and ``optimizer`` back. Closing twice is allowed."""
        if self.waves == 0:  # nothing was made
            self._closed = True
        elif not self._closed:
            try:
                self.flush()
            finally:
                self._end()

    def __enter__(self) -> Wavelet:
        if not self._is_undecided():
            self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._end(error)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on, as clones; may be taken after any batch and changes nothing.

        Holds tensors and plain values only, so it loads with ``torch.load(..., weights_only=True)``.
        """
        return saving.cloned(self._live_state())

    def _live_state(self) -> dict[str, Any]:
        """What `state_dict` clones: the tensors themselves, valid until the next batch."""
        with self._fatal():
            if self.waves == 0:
                self._check_open()
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
            self._check_open(saving.waves_of(state))
            saving.check_state(self, state)
            self._settle()
            saving.load_into(self, state)

    def _begin_exchange(self, wave: Wave) -> None:
        coming = self._exchange.begins(wave.index, self._num_batches, self._rule.micro_batches())
        if coming.must_be_known:
            self._wait(lambda: coming.known)
            _ = coming.total

    def _run_forward(self, wave: Wave, batch: Any, watch: Watch, *, after_turns: bool) -> Result:
        try:
            return self._forward.run(wave, batch, watch.forward(), after_turns=after_turns)
        except Exception as error:
            self._check_failure()  # what a gate raises is a wave's failure
            if self._exchange.num_ranks > 1:  # which have begun the exchange of this batch
                self._turns.fail(error)
                self._check_failure()
            raise

    def _learn(self, watch: Watch, wave: Wave, batch: Any, task: Task) -> None:
        try:
            self._memory.handed_in(watch, wave, batch, updates=task.updates)
        except ValueError as error:  # too late to be as if the batch had not been
            self._turns.fail(error)
        self._check_failure()

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
