"""Other ways to train a job in less memory, measured on copies: what plans are compared with in the frontier."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from wavelet.measure import first_samples, profile
from wavelet.planning.plan import Plan, make_plan, one_wave_bytes
from wavelet.profiling.blocks import blocks_of
from wavelet.profiling.profile import Profile
from wavelet.report.frontier import Point

if TYPE_CHECKING:
    from wavelet.jobs import Job

__all__ = ["BUDGETS", "other_points", "plan_points", "profile_job"]

BUDGETS = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0)


def profile_job(job: Job, batch: Any, **options: Any) -> Profile:
    """The profile of a job with one of its batches."""
    options = {"optimizer": job.optimizer, "autocast": job.autocast, **options}
    return profile(job.model, job.loss, batch, **options)


def plan_points(found: Profile, update: str, accumulate: int) -> list[Point]:
    """One wave, and two waves within budgets from 1.0 to 2.0 of it, all predicted."""
    plans: list[Plan] = [make_plan(found, f"{ratio}x", 2, update=update, accumulate=accumulate) for ratio in BUDGETS]
    alone = plans[0].one_wave_samples_per_second
    assert alone is not None
    points = [Point("one wave", "one wave", one_wave_bytes(found), alone, measured=False)]
    for ratio, plan in zip(BUDGETS, plans, strict=True):
        points.append(Point(f"{ratio:g}×", "plan", plan.peak_step_bytes, plan.samples_per_second, measured=False))
    return points


def other_points(job: Job, batch: Any, samples: int) -> Iterator[Point]:
    """One wave with activation checkpointing and with smaller batches; those that the model cannot do are left out."""
    with suppress(Exception):  # a model may be made for one size, or not stand being checkpointed
        point = _one_wave(profile(_checkpointed(job.model), job.loss, batch, waves=(1,), autocast=job.autocast))
        yield Point("checkpointing", "checkpointing", *point, measured=True)
    for share in (2, 4):
        with suppress(Exception):
            smaller = first_samples(batch, samples // share, samples)
            if smaller is not None:
                point = _one_wave(profile_job(job, smaller, waves=(1,)))
                yield Point(f"batch {samples // share}", "smaller batch", *point, measured=True)


def _one_wave(found: Profile) -> tuple[int, float]:
    plan = make_plan(found, "1x", 1)
    return plan.one_wave_step_bytes, plan.samples_per_second


def _checkpointed(model: nn.Module) -> nn.Module:
    """A copy of the model that keeps only what goes into its blocks, and runs them again in backward."""
    fresh = copy.deepcopy(model)
    for block in blocks_of(fresh):
        forward = block.forward
        block.forward = _again(forward)
    return fresh


def _again(forward: Any) -> Any:
    return lambda *inputs, **named: checkpoint(forward, *inputs, use_reentrant=False, **named)
