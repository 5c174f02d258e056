"""The page of a plan or a run: one HTML file with figures and tables that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from wavelet.report.frontier import Point, frontier_figure, gain_in_words
from wavelet.report.numbers import significant
from wavelet.report.plan import schedule_table
from wavelet.report.profile import block_table
from wavelet.report.rendering import in_both_schemes, render
from wavelet.report.timeline import Span
from wavelet.report.timeline_figure import opening_in_words, timeline_figure, views
from wavelet.waves.wave import wave_name

if TYPE_CHECKING:
    from wavelet.planning.plan import Plan

__all__ = ["Page", "Point", "render_page"]

UNITS = {"saved": "MiB", "grads": "MiB", "peak up": "MiB", "peak down": "MiB", "up": "ms", "down": "ms"}
"""Of the columns of the block table."""

RISE_AND_FALL = (
    "Each batch first rises, when its forward fills memory block by block, and then falls, when its backward gives "
    "that memory back; "
)
ONE = RISE_AND_FALL + "with one wave, the next batch rises when the one before has had its turn. {last}"
SEVERAL = RISE_AND_FALL + "the batches take turns between {waves}, so that one rises while another falls. {last}"
PROMISE = (
    "Before it starts a block that would need too much, a rising batch waits until the falling one has given back "
    "enough: so together they stay below the promise, however the timing turns out."
)
NO_PROMISE_NEEDED = "So memory never holds more than one batch, and on average it is about half empty."


@dataclass(frozen=True)
class Page:
    """What a page shows.

    Args:
        title: the name of the job.
        plan: the plan.
        spans: of a run, or as the plan predicts them.
        measured: whether they are of a run.
        points: marks of the frontier.
        about: machine, versions, command and the like.
        sentences: the verdict, for the top of the page.
    """

    title: str
    plan: Plan
    spans: Sequence[Span]
    measured: bool
    points: Sequence[Point] = ()
    about: dict[str, str] = field(default_factory=dict)
    sentences: Sequence[str] = ()


class Number(NamedTuple):
    """A number in the headline."""

    value: str
    unit: str
    note: str


def render_page(page: Page) -> str:
    """One HTML document that loads nothing."""
    return render(
        "plan",
        {"wave": lambda colours: [colours.wave(wave) for wave in range(page.plan.waves)]},
        page=page,
        numbers=_numbers(page),
        explanation=_explanation(page.plan),
        opening=opening_in_words(page.spans, measured=page.measured),
        gain=gain_in_words(page.points),
        wave_names=[wave_name(wave) for wave in range(page.plan.waves)],
        figures=_figures(page),
        blocks=block_table(page.plan.profile),
        schedule=schedule_table(page.plan),
        units=UNITS,
        mebibytes=lambda count: f"{count / 2**20:,.1f} MiB",
    )


def _figures(page: Page) -> dict[str, object]:
    """What the page's script draws: each figure in both schemes, and what the timeline shows first."""
    figures = {"timeline": in_both_schemes(lambda colours: timeline_figure(page.plan, page.spans, colours))}
    if page.points:
        figures["frontier"] = in_both_schemes(lambda colours: frontier_figure(page.points, colours))
    return {"figures": figures, "views": views(page.spans)}


def _explanation(plan: Plan) -> str:
    if plan.waves == 1:
        return ONE.format(last=NO_PROMISE_NEEDED)
    names = [f"the {wave_name(wave)}" if wave < 2 else wave_name(wave) for wave in range(plan.waves)]
    return SEVERAL.format(waves=", ".join(names[:-1]) + " and " + names[-1], last=PROMISE)


def _numbers(page: Page) -> list[Number]:
    plan = page.plan
    rate = _rate(page)
    predicted = f"{significant(plan.samples_per_second)} predicted"
    numbers = [
        Number(significant(plan.samples_per_second), "samples/s", "predicted")
        if rate is None
        else Number(significant(rate), "samples/s", f"measured in this timeline, {predicted}"),
        Number(f"{plan.peak_step_bytes / 2**20:,.1f}", "MiB", "step memory promised: never more"),
        Number(
            f"{plan.peak_step_bytes / plan.one_wave_step_bytes:.2f}",
            "×",
            f"the step memory of one wave, {plan.one_wave_step_bytes / 2**20:,.1f} MiB",
        ),
    ]
    gain = _gain(page, rate)
    return numbers if gain is None else [*numbers, gain]


def _gain(page: Page, rate: float | None) -> Number | None:
    """The speed over one wave's, both measured or both predicted."""
    plan = page.plan
    measured = next((point for point in page.points if point.kind == "one wave" and point.measured), None)
    if rate is not None and measured is not None:
        alone, ours, how = measured.samples_per_second, rate, "measured"
    elif plan.one_wave_samples_per_second is not None:
        alone, ours, how = plan.one_wave_samples_per_second, plan.samples_per_second, "predicted"
    else:
        return None
    if plan.waves == 1 or not alone:
        return None
    return Number(f"{ours / alone:.2f}", "×", f"the speed of one wave, {significant(alone)} samples/s, {how}")


def _rate(page: Page) -> float | None:
    """Samples/s from the first turn to the last."""
    turns = [span.end for span in page.spans if span.kind == "turn"]
    if not page.measured or len(turns) < 3 or max(turns) == min(turns):
        return None
    return (len(turns) - 1) * page.plan.profile.samples / (max(turns) - min(turns))
