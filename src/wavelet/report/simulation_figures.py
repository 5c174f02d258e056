"""The figures of a simulated cluster: what an iteration is spent on, and strategies over ranks and over bandwidths."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wavelet.planning.advice import areas
from wavelet.report.numbers import significant
from wavelet.report.simulation import rate_text
from wavelet.report.style import Colours, axis, layout, plain, rounded

if TYPE_CHECKING:
    from wavelet.planning.comparison import Outcome

__all__ = ["bandwidth_figure", "colour_of", "efficiency_figure", "parts_figure"]

_ROLES = {"naive": "soft", "DDP": "backward", "local SGD": "turn", "DreamDDP": "forward"}
"""The colour of a strategy, by what its name begins with; Wavelet's are the accent and the colours of waves."""

_DASHES = {"naive": "dot", "DDP": "dash", "local SGD": "longdash", "DreamDDP": "dashdot"}
_SYMBOLS = {"naive": "x", "DDP": "square", "local SGD": "diamond", "DreamDDP": "triangle-up"}
_PARTS = (("compute", "compute_seconds"), ("exposed communication", "exposed_seconds"), ("waiting", "waiting_seconds"))
_PART_ROLES = ("forward", "backward", "wait")


def colour_of(name: str, colours: Colours) -> str:
    """Of a strategy."""
    for start, role in _ROLES.items():
        if name.startswith(start):
            return str(getattr(colours, role))
    return {"Wavelet (K=1)": colours.wave(2), "Wavelet (K=3)": colours.wave(1)}.get(name, colours.accent)


def parts_figure(outcomes: Sequence[Outcome], colours: Colours) -> dict[str, Any]:
    """One bar a strategy: milliseconds of an iteration, stacked by what they are spent on."""
    from plotly import graph_objects as go

    figure = go.Figure()
    names = [html.escape(outcome.strategy).replace(" (", "<br>(") for outcome in outcomes]
    for (part, field), role in zip(_PARTS, _PART_ROLES, strict=True):
        values = [rounded(getattr(outcome, field) * 1e3) for outcome in outcomes]
        hover = [
            f"{html.escape(outcome.strategy)}<br>{part}: {significant(value)} ms of "
            f"{significant(outcome.seconds * 1e3)} ms"
            for outcome, value in zip(outcomes, values, strict=True)
        ]
        bar = {"orientation": "h", "marker": {"color": getattr(colours, role)}, "name": part}
        figure.add_trace(go.Bar(x=values, y=names, hoverinfo="text", hovertext=hover, **bar))
    totals = [rounded(outcome.seconds * 1e3) for outcome in outcomes]
    figure.add_trace(
        go.Scatter(
            x=totals,
            y=names,
            mode="text",
            text=[f" {significant(total, 3)}" for total in totals],
            textposition="middle right",
            hoverinfo="skip",
            cliponaxis=False,
        )
    )
    figure.update_layout(layout(colours, height=70 + 52 * len(outcomes)), barmode="stack", bargap=0.35, dragmode=False)
    figure.update_xaxes(axis(colours), fixedrange=True, title="ms an iteration", range=[0, 1.18 * max(totals)])
    figure.update_yaxes(axis(colours), fixedrange=True, autorange="reversed")
    return plain(figure)


def efficiency_figure(rows: Sequence[Sequence[Outcome]], colours: Colours) -> dict[str, Any]:
    """Efficiency over the number of ranks, one line a strategy."""
    counts = [float(row[0].num_ranks) for row in rows]
    hover = [[f"{row[0].num_ranks} ranks, efficiency {outcome.efficiency:.2f}" for outcome in row] for row in rows]
    values = [[outcome.efficiency for outcome in row] for row in rows]
    figure = _lines(rows, counts, values, hover, colours)
    ticks = [f"{int(count):,}" for count in counts]
    figure.update_xaxes(axis(colours), fixedrange=True, type="log", title="ranks", tickvals=counts, ticktext=ticks)
    figure.update_yaxes(axis(colours), fixedrange=True, title="efficiency", range=_efficiencies(values))
    return plain(figure)


def bandwidth_figure(rows: Sequence[tuple[float, Sequence[Outcome]]], own: float, colours: Colours) -> dict[str, Any]:
    """Efficiency over the bandwidth between hosts, one line a strategy, on areas in the colour of that to take.

    Args:
        rows: bytes a second, and the strategies there.
        own: the cluster's own bytes a second, which are marked.
        colours: of the scheme.
    """
    rates = [rate * 8 / 1e6 for rate, _ in rows]
    found = [row for _, row in rows]
    hover = [
        [
            f"{rate_text(rate)}: {significant(outcome.seconds * 1e3)} ms, efficiency {outcome.efficiency:.2f}"
            for outcome in row
        ]
        for rate, row in rows
    ]
    values = [[outcome.efficiency for outcome in row] for row in found]
    figure = _lines(found, rates, values, hover, colours)
    for area in areas(rows):
        first, last = (_border(rates, rate * 8 / 1e6, side) for rate, side in ((area.first, -1), (area.last, 1)))
        fill = {"fillcolor": colour_of(area.strategy, colours), "opacity": 0.16, "line_width": 0, "layer": "below"}
        figure.add_vrect(x0=first, x1=last, **fill)
    figure.add_vline(x=own * 8 / 1e6, line={"color": colours.soft, "width": 1, "dash": "dot"})
    shown = [(rate, rate_text(bytes_)) for rate, (bytes_, _) in list(zip(rates, rows, strict=True))[::3]]
    ends = [math.log10(rates[0]), math.log10(rates[-1])] if len(rates) > 1 else None
    log = {"type": "log", "range": ends, "ticklabeloverflow": "allow"}
    ticks = {"tickvals": [rate for rate, _ in shown], "ticktext": [text for _, text in shown]}
    figure.update_xaxes(axis(colours), fixedrange=True, title="bandwidth between hosts", **log, **ticks)
    figure.update_traces(cliponaxis=False)
    figure.update_layout(margin_r=40)
    figure.update_yaxes(axis(colours), fixedrange=True, title="efficiency", range=_efficiencies(values))
    return plain(figure)


def _border(rates: Sequence[float], rate: float, side: int) -> float:
    """Half way, on a scale of ratios, to the next rate on this side; the rate itself where there is none."""
    place = rates.index(rate) + side
    return math.sqrt(rate * rates[place]) if 0 <= place < len(rates) else rate


def _efficiencies(values: Sequence[Sequence[float]]) -> list[float]:
    return [0, 1.05 * max(1.0, *map(max, values))]


def _lines(
    rows: Sequence[Sequence[Outcome]],
    xs: Sequence[float],
    values: Sequence[Sequence[float]],
    hover: Sequence[Sequence[str]],
    colours: Colours,
) -> Any:
    from plotly import graph_objects as go

    figure = go.Figure()
    for index, outcome in enumerate(rows[0]):
        start = outcome.strategy.split(" (")[0]
        colour = colour_of(outcome.strategy, colours)
        figure.add_trace(
            go.Scatter(
                x=list(xs),
                y=[row[index] for row in values],
                mode="lines+markers",
                name=html.escape(outcome.strategy),
                line={"color": colour, "width": 2, "dash": _DASHES.get(start, "solid")},
                marker={"color": colour, "size": 7, "symbol": _SYMBOLS.get(start, "circle")},
                hoverinfo="text",
                hovertext=[f"{html.escape(outcome.strategy)}<br>{row[index]}" for row in hover],
            )
        )
    figure.update_layout(layout(colours, height=400), dragmode=False)
    return figure
