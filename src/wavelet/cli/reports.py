"""The pages and traces that commands write."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wavelet.alternatives import other_points, plan_points, profile_job
from wavelet.cli.options import num_threads
from wavelet.planning.plan import Plan, make_plan
from wavelet.report.frontier import Point
from wavelet.report.machine import machine, versions
from wavelet.report.numbers import significant
from wavelet.report.page import Page, render_page
from wavelet.report.progress import Bar
from wavelet.report.timeline import Span, predicted_spans

if TYPE_CHECKING:
    from wavelet.jobs import Job
    from wavelet.profiling.profile import Profile

__all__ = ["page_of_profile", "page_of_run"]

BUDGET_OF_A_PROFILE = "1.25x"


def page_of_profile(job: Job, seed: int, found: Profile, batch: Any) -> str:
    """The page of a profile: two waves within a budget, as predicted."""
    plan = make_plan(found, BUDGET_OF_A_PROFILE, max(found.timings))
    points = _frontier(job, found, batch, plan)
    waves = f"{plan.waves} wave" + "s" * (plan.waves > 1)
    sentence = f"Predicted from a profile, for {waves} within {BUDGET_OF_A_PROFILE} of one wave's step memory."
    page = Page(job.name, plan, predicted_spans(plan), False, points, _about(job, seed), [sentence])
    return render_page(page)


def page_of_run(job: Job, seed: int, plan: Plan, spans: Sequence[Span], batch: Any, samples_per_second: float) -> str:
    """The page of a run under a plan; one wave and other plans are predicted from a profile made for it."""
    found = profile_job(job, batch)
    run = Point(
        f"this run, {plan.waves} wave" + "s" * (plan.waves > 1),
        "plan",
        plan.peak_step_bytes,
        samples_per_second,
        measured=True,
    )
    alone = make_plan(found, "1x", 1).samples_per_second
    sentence = (
        f"{significant(samples_per_second)} samples/s measured, {significant(plan.samples_per_second)} predicted; "
        f"one wave alone is predicted to reach {significant(alone)}."
    )
    points = [*_frontier(job, found, batch, plan), run]
    return render_page(Page(job.name, plan, spans, True, points, _about(job, seed), [sentence]))


def _frontier(job: Job, found: Profile, batch: Any, plan: Plan) -> list[Point]:
    points: list[Point] = []
    if {1, 2} <= set(found.timings):
        points += plan_points(found, plan.update, plan.accumulate)
    with Bar("measuring the alternatives", None):
        points += other_points(job, batch, found.samples)
    return points


def _about(job: Job, seed: int) -> dict[str, str]:
    on, of = machine(), versions()
    return {
        "command": shlex.join(["wavelet", *sys.argv[1:]]),
        "job": f"{job.name}, batches of {job.samples_per_batch}, seed {seed}",
        "machine": f"{on['cpu']}, {on['cores']} cores, {num_threads()} intra-op threads",
        "versions": f"wavelet {of['wavelet']}, torch {of['torch']}, Python {of['python']}",
    }
