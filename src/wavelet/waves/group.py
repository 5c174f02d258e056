"""The K waves of one device, and what the caller's thread waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from wavelet.devices import Device
from wavelet.exchange import Setting
from wavelet.updates import UpdateRule
from wavelet.waves.compiling import is_compiled
from wavelet.waves.recompute import offer_between_blocks
from wavelet.waves.replica import Replica
from wavelet.waves.turns import NoProgressError, Turns
from wavelet.waves.wave import Wave

__all__ = ["WaveGroup"]


class WaveGroup:
    """K waves that share a rule, a device and their turns.

    Args:
        replicas: one a wave.
        rule: what becomes of their gradients.
        device: where they run.
        timeout: seconds without progress before a wait raises.
    """

    def __init__(self, replicas: Sequence[Replica], rule: UpdateRule, device: Device, timeout: float) -> None:
        self.turns = Turns(timeout)
        self._offers = False
        self._caller: threading.Thread | None = None
        self.waves = [Wave(index, replica, rule, self.turns, device) for index, replica in enumerate(replicas)]

    @property
    def num_waves(self) -> int:
        """K."""
        return len(self.waves)

    @property
    def num_batches(self) -> int:
        """Handed in so far, to all waves."""
        return sum(wave.num_batches for wave in self.waves)

    def __getitem__(self, index: int) -> Wave:
        return self.waves[index]

    @property
    def idle(self) -> bool:
        """Whether no batch is in flight."""
        return all(wave.idle for wave in self.waves)

    def is_callers_thread(self) -> bool:
        """Whether this thread is the one that hands in batches: the only one that may lend the baton."""
        return self._caller is threading.current_thread()

    def setting(self, rule: UpdateRule, device: Device, buffers: list[Tensor | None]) -> Setting:
        """What an exchange needs of these waves."""

        def drawing(number: int) -> AbstractContextManager[None]:
            return nullcontext() if self.is_callers_thread() else self.turns.baton(number)

        return Setting(
            rule.weights,
            num_trajectories=len(rule.optimizers),
            newest=lambda: rule.newest,
            buffers=buffers,
            micro_batches=rule.micro_batches(),
            early=not rule.shares_weights,
            running=device.running,
            unscale=rule.unscale_,
            inverse_scale=rule.inverse_scale,
            wait=lambda number, ready: self.turns.wait_in_wave(lambda: number, ready),
            changed=self.turns.changed,
            drawing=drawing,
        )

    def describe(self) -> dict[str, Any]:
        """What is going on, for other ranks."""
        doing = "; ".join(f"the {wave.name} {wave.doing}" for wave in self.waves)
        return {"batches": self.num_batches, "doing": f"after handing in {self.num_batches} batches ({doing})"}

    def start(self) -> None:
        """Start the threads that do not run yet; this thread will hand in batches."""
        self._caller = threading.current_thread()
        for wave in self.waves:
            if wave.thread is None:
                wave.start()

    def wait(self, ready: Callable[[], bool]) -> None:
        """In the caller's thread: wait until ``ready()`` or until something has failed.

        Raises:
            NoProgressError: nothing has moved for ``timeout`` seconds; says what each wave is doing.
        """
        self.turns.wait(ready, lambda: "; ".join(f"the {wave.name} is {wave.doing}" for wave in self.waves))

    def offer_between_blocks(self) -> None:
        """Once the model has been seen to recompute: let the caller hand the baton over at block boundaries too."""
        if self.turns.recomputes and not self._offers and not is_compiled(self.waves[0].replica.model):
            self._offers = True
            for wave in self.waves:
                offer_between_blocks(self.turns, wave.replica.model)

    def stop(self) -> list[Wave]:
        """Stop and join the threads; gives the waves whose threads sleep for ever and are abandoned."""
        self.turns.stop()
        patience = 1.0 if isinstance(self.turns.failure, NoProgressError) else self.turns.timeout
        started = [wave for wave in self.waves if wave.thread is not None]
        for wave in started:
            assert wave.thread is not None
            wave.thread.join(patience)
        return [wave for wave in started if wave.thread is not None and wave.thread.is_alive()]
