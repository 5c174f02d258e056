"""How far a bench is: one bar over all runs, with the run that is on and its loss."""

from __future__ import annotations

from wavelet.bench.launch import Event
from wavelet.bench.rounds import Plan, Results
from wavelet.bench.systems import System
from wavelet.report.numbers import significant
from wavelet.report.progress import Bar

__all__ = ["BenchProgress"]


class BenchProgress:
    """Moves a bar by the events of the runs.

    Args:
        announce: say when the very first step is done.
    """

    def __init__(self, bar: Bar, *, announce: bool) -> None:
        self._bar = bar
        self._announce = announce
        self._finished = 0

    def calibrating(self, plan: Plan, event: Event) -> None:
        """An event of the run that finds out how many batches to take."""
        self.move(event, f"{plan.job}: how long is a step?", 0.0)

    def running(self, results: Results, number: int, system: System, event: Event) -> None:
        """An event of a run in round `number`."""
        share = event.get("done", 0) * system.processes / results.plan.batches
        self.move(event, results.title(number, system), share)

    def move(self, event: Event, title: str, share: float) -> None:
        """An event of a run that is called `title`, of which `share` is done."""
        if self._announce and event["event"] == "first_step":
            self._announce = False
            self._bar.say("The first step is done.")
        self._finished += event["event"] == "finish"
        note = f"loss {significant(event['loss'])}" if "loss" in event else ""
        self._bar.update(self._finished + share, note, title)
