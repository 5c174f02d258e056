"""Sleeps that try to break the promise: at random, or such that two batches meet in the plan's worst state."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

import wavelet
from wavelet.planning import worst_state
from wavelet.planning.plan import chain_of

__all__ = ["Meeting", "sleep_at_random"]


def sleep_at_random(model: nn.Module, longest: float, seed: int) -> None:
    """Sleep behind one in four modules on the way up, and as often on the way down."""
    draw = random.Random(seed)

    def behind(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if draw.random() < 0.25:
            time.sleep(draw.random() * longest)
        if isinstance(output, Tensor) and output.grad_fn is not None and draw.random() < 0.25:
            output.grad_fn.register_prehook(lambda _: time.sleep(draw.random() * longest))

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(behind)


class Meeting:
    """Lets two batches meet in the worst state: each stands still at a point of its place until the other is there.

    Points on the way up are the ends of modules, on the way down the beginnings of autograd's nodes. Batch by batch
    other points are taken. Whoever comes first waits for the other, at most half a second.

    Args:
        engine: with a plan for two waves; idle.
    """

    def __init__(self, engine: wavelet.Wavelet) -> None:
        assert engine.plan is not None
        self._memory = engine._memory
        self.state = worst_state(chain_of(engine.plan.profile, 2), engine.plan.interlock)
        self.met = 0
        self._points = (0, 0)
        self._waiting = threading.Condition()
        self._here: set[int] = set()
        self._log = engine._memory.record()  # so that every position is known
        for wave in engine._waves.waves:
            for module in wave.replica.model.modules():
                if not list(module.children()):
                    module.register_forward_hook(self._behind(wave.index))

    def at(self, newest: int, older: int) -> None:
        """From now on, these are the points."""
        self._points = (newest, older)
        self._log.clear()  # or it would count as memory of the steps

    def _behind(self, wave: int) -> Callable[..., None]:
        seen: dict[tuple[str, int], int] = {}

        def nth(way: str, place: int) -> int:
            seen[way, place] = seen.get((way, place), -1) + 1
            return seen[way, place]

        def behind(_module: nn.Module, _inputs: Any, output: Any) -> None:
            block = next((event.where for event in reversed(self._log) if event.what == "starts"), 1)
            if block == 1:
                seen.clear()
            if self.state.block and block == self.state.block and nth("up", block) == self._points[0]:
                self._meet(0)
            if isinstance(output, Tensor) and output.grad_fn is not None:
                output.grad_fn.register_prehook(before_node)

        def before_node(_gradients: Any) -> None:
            for index, passage in enumerate(list(self._memory._passages)[:2]):
                rises = bool(self.state.block)
                if passage._wave == wave and (index == 0 if rises else True):
                    wanted = self.state.positions[0 if rises else index]
                    who = 1 if rises else index
                    if passage.position == wanted and nth("down", wanted) == self._points[who]:
                        self._meet(who)

        return behind

    def _meet(self, who: int) -> None:
        with self._waiting:
            self._here.add(who)
            self._waiting.notify_all()
            if self._waiting.wait_for(lambda: len(self._here) == 2 or not self._here, timeout=0.5) and self._here:
                self.met += 1
            self._here.clear()
            self._waiting.notify_all()
