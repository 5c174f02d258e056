"""The promise of memory: learn what a batch costs, plan by the budget, and let batches rise by the plan."""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import replace
from typing import Any

from wavelet.devices import Device
from wavelet.memory.request import Request
from wavelet.memory.study import Study, Watch
from wavelet.planning.budget import Budget
from wavelet.planning.plan import Plan, make_plan, predict
from wavelet.profiling.edges import BlockEdges
from wavelet.profiling.watcher import Event
from wavelet.updates import UpdateRule
from wavelet.waves.compiling import is_compiled
from wavelet.waves.gates import Passage
from wavelet.waves.group import WaveGroup
from wavelet.waves.wave import Wave

__all__ = ["Memory"]

BATCHES_TO_TIME = 6
"""Batches a wave, after planning, from which it is learnt how the waves slow each other down."""


class Memory:
    """Keeps a budget, or lets batches run freely if there is none.

    Args:
        request: what the user asked for.
        waves: which rise and fall.
        rule: decides what a turn holds.
        device: where they run.
    """

    def __init__(self, request: Request | None, waves: WaveGroup, rule: UpdateRule, device: Device) -> None:
        self._request, self._waves, self._rule, self._device = request, waves, rule, device
        self.plan: Plan | None = None
        self.log: list[Event] | None = None
        self._free = Watch()
        self._edges: list[BlockEdges] = []
        self._passages: deque[Passage] = deque(maxlen=waves.num_waves - 1)
        self._timed: list[Event] | None = None
        self._batches_to_time = 0
        if request is not None:
            coarse = is_compiled(waves[0].replica.model)
            self.study = Study(waves, rule, device, request.blocks, coarse=coarse)
            if request.plan is not None:
                _check_exchange(request.plan, rule)
                self.study.adopt(request.plan.profile)
                self._install(request.plan)

    def watch(self, wave: Wave, number: int, batch: Any, *, updates: bool) -> Watch:
        """How the next batch of ``wave`` is to run. Returns when nothing else runs, if it is to run alone."""
        if self._request is None:
            return self._free
        first = wave.sets_up(updates=updates)
        lesson = None if wave.num_batches == 0 else self.study.lesson(wave, batch, updates=updates, first=first)
        if lesson is not None or first or self.plan is None:
            self._waves.wait(lambda: self._waves.idle)
            return self.study.watch(lesson, wave, batch) if lesson else self._free
        if self._waves.num_waves == 1 and self.log is None:
            return self._free
        ahead, turns = list(self._passages), self._waves.turns
        log = self._timed if self.log is None else self.log
        passage = Passage(number, wave.index, self.plan.interlock, ahead, turns, self._device, log)
        return Watch(passage, self._edges[wave.index])

    def handed_in(self, watch: Watch, wave: Wave, batch: Any, *, updates: bool) -> None:
        """After the batch was handed in: learn from it, and plan once enough is known.

        Raises:
            BudgetError: the budget is below what one wave needs.
        """
        if isinstance(watch.watcher, Passage):
            self._passages.appendleft(watch.watcher)
            if watch.watcher.strange:
                self._waves.wait(lambda: wave.idle)
            self._time()
        elif watch.lesson is not None:
            self.study.learn(watch, wave, batch, updates=updates)
            self._passages.clear()
            if self.study.enough:
                self._install(self._make_plan())
                self._timed, self._batches_to_time = [], BATCHES_TO_TIME * self._waves.num_waves

    def record(self, *, every_edge: bool = True) -> list[Event]:
        """All waves are idle: from now on, write what happens into the list that this gives.

        Args:
            every_edge: watch all edges of blocks, which costs a little, not only those where somebody waits.
        """
        assert self.plan is not None
        self._timed, self.log = None, []
        if every_edge or self.plan.waves == 1:
            self._watch_edges(self.plan)
        return self.log

    def stop_recording(self) -> None:
        """All waves are idle: what happens from now on is not written."""
        assert self.plan is not None
        self.log = None
        self._install(self.plan)

    def replan(self, budget: str) -> None:
        """All waves are idle: keep another budget from now on."""
        self._install(self._make_plan(Budget.of(budget)))

    def _make_plan(self, budget: Budget | None = None) -> Plan:
        assert self._request is not None
        budget = budget or self._request.budget
        if budget is None:
            assert self._request.plan is not None
            budget = Budget(bytes=self._request.plan.budget_bytes)
        rule = self._rule
        profile, waves, accumulate = self.study.profile(), self._waves.num_waves, rule.settings.accumulate
        return make_plan(profile, budget, waves, update=rule.name, accumulate=accumulate)

    def _install(self, plan: Plan) -> None:
        """All waves are idle: later batches rise by ``plan``."""
        is_new, self.plan = self.plan is None, plan
        if plan.waves > 1:
            self._watch_edges(plan)
            if is_new and plan.profile.num_blocks == 1:
                warnings.warn(_one_block(plan), stacklevel=6)

    def _watch_edges(self, plan: Plan) -> None:
        """Watch those edges that the interlock needs, or all of them for the log."""
        for edges in self._edges:
            edges.remove()
        profile, interlock = plan.profile, plan.interlock
        which: dict[str, set[int]] = {}
        if self.log is None:
            which = {"blocks": interlock.gates(), "positions": {p for entry in interlock.entries for p in entry}}
        self._edges = [
            BlockEdges(wave.replica.model, profile.blocks, profile.calls or None, **which) for wave in self._waves.waves
        ]

    def _time(self) -> None:
        """Once, some batches after planning: correct the prediction by how the waves have slowed each other down."""
        if self._timed is None:
            return
        self._batches_to_time -= 1
        if self._batches_to_time:
            return
        plan = self.plan
        assert plan is not None
        self.study.time(self._timed)
        self._timed = None
        profile = self.study.profile()
        predicted = predict(profile, plan.interlock, plan.update, plan.accumulate)
        self.plan = replace(plan, profile=profile, samples_per_second=predicted)


def _check_exchange(plan: Plan, rule: UpdateRule) -> None:
    """Refuse a plan that does not count what the ranks' exchange holds.

    Raises:
        ValueError: it was made for a rank that trains alone, or for an exchange that holds less.
    """
    if rule.exchange.resting_bytes() > plan.profile.exchange_bytes:
        raise ValueError(
            "the plan does not count what the exchange of these ranks holds: give budget= instead, or the plan of an "
            "engine that had the same exchange and a budget."
        )


def _one_block(plan: Plan) -> str:
    return (
        f"the model is one block to wavelet, so under this budget a batch waits for the one before it as a whole: "
        f"{plan.samples_per_second:.4g} samples/s are predicted. Blocks are found in a model that is not compiled and "
        "calls its parts once each."
    )
