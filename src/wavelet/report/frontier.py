"""The frontier of throughput and step memory: ways to train, as marks in one figure."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wavelet.planning.plan import WORTH_A_WAVE
from wavelet.report.numbers import significant
from wavelet.report.style import Colours, axis, layout, plain, rounded

__all__ = ["Point", "PointKind", "frontier_figure", "gain_in_words"]

MIB = 2**20

PointKind = Literal["one wave", "plan", "free", "checkpointing", "smaller batch", "plain loop"]

SYMBOLS: dict[PointKind, str] = {
    "one wave": "square",
    "plan": "circle",
    "free": "diamond",
    "checkpointing": "triangle-up",
    "smaller batch": "triangle-down",
    "plain loop": "star",
}


@dataclass(frozen=True)
class Point:
    """A way to train, as one mark in the frontier.

    Args:
        name: its label.
        kind: what it is.
        step_bytes: its peak of step memory.
        samples_per_second: its throughput.
        measured: or predicted.
    """

    name: str
    kind: PointKind
    step_bytes: int
    samples_per_second: float
    measured: bool


def frontier_figure(points: Sequence[Point], colours: Colours) -> dict[str, Any]:
    """Throughput over step memory; the page's script puts the labels of ``meta`` where there is room."""
    from plotly import graph_objects as go

    figure = go.Figure()
    for measured in (False, True):
        plans = sorted(
            (point for point in points if point.kind == "plan" and point.measured == measured),
            key=lambda point: point.step_bytes,
        )
        line = {"color": colours.accent, "width": 2, "dash": "solid" if measured else "dot"}
        figure.add_trace(
            go.Scatter(
                x=[rounded(point.step_bytes / MIB) for point in plans],
                y=[rounded(point.samples_per_second) for point in plans],
                **{"mode": "lines", "line": line, "hoverinfo": "skip"},
            )
        )
    ours = {"plan", "free"}
    colour = [colours.accent if point.kind in ours else colours.soft for point in points]
    marker = {"size": 11, "color": colour, "line": {"width": 2, "color": colour}, "opacity": 1}
    marker["symbol"] = [SYMBOLS[point.kind] + ("" if point.measured else "-open") for point in points]
    xs = [rounded(point.step_bytes / MIB) for point in points]
    ys = [rounded(point.samples_per_second) for point in points]
    figure.add_trace(
        go.Scatter(x=xs, y=ys, mode="markers", marker=marker, hoverinfo="text", hovertext=list(map(_about, points)))
    )
    measured_names = {(point.name, point.kind) for point in points if point.measured}
    labels = [
        {"x": x, "y": y, "text": html.escape(point.name)}
        for x, y, point in zip(xs, ys, points, strict=True)
        if point.measured or (point.name, point.kind) not in measured_names
    ]
    figure.update_layout(layout(colours, height=420), dragmode=False, meta={"labels": labels})
    axes = axis(colours) | {"fixedrange": True, "zeroline": False}
    figure.update_xaxes(axes, title="step memory, MiB", range=_padded(xs))
    figure.update_yaxes(axes, title="samples/s", range=_padded(ys))
    return plain(figure)


def gain_in_words(points: Sequence[Point]) -> str | None:
    """From which budget on two waves are predicted to be faster than one; None where neither was predicted."""
    alone = next((point for point in points if point.kind == "one wave" and not point.measured), None)
    plans = [point for point in points if point.kind == "plan" and not point.measured]
    if alone is None or not plans:
        return None
    gains = [point.samples_per_second / alone.samples_per_second for point in plans]
    first = next((index for index, gain in enumerate(gains) if gain > WORTH_A_WAVE), None)
    if first is None:
        return (
            f"Two waves do not pay here under any budget up to {plans[-1].name} the memory of one wave: they are "
            f"predicted to reach at most {max(gains):.2f} times its speed. Train with one wave."
        )
    if first:
        return (
            f"Below {plans[first].name} the memory of one wave, two waves gain nothing here: one wave is predicted to "
            "be as fast or faster there. Give them more memory, or train with one wave."
        )
    return (
        f"Two waves are predicted to be faster than one under each of these budgets: {gains[0]:.2f} times as fast at "
        f"{plans[0].name} its memory, {gains[-1]:.2f} times at {plans[-1].name}."
    )


def _about(point: Point) -> str:
    name = html.escape(point.name if point.name == point.kind else f"{point.name} ({point.kind})")
    how = "measured" if point.measured else "predicted"
    rate = significant(point.samples_per_second)
    return f"{name}, {how}<br>{rate} samples/s<br>{point.step_bytes / MIB:,.1f} MiB of step memory"


def _padded(values: Sequence[float]) -> list[float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = max(0.15 * (high - low), 0.08 * high)
    return [max(0.0, low - room), high + room]
