"""The figure of memory over time, and under it the waves' timeline."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from wavelet.report.numbers import significant
from wavelet.report.style import Colours, axis, layout, plain, rounded
from wavelet.report.timeline import Kind, Span, level_at, memory_curve
from wavelet.waves.wave import wave_name

if TYPE_CHECKING:
    from wavelet.planning.plan import Plan

__all__ = ["opening_in_words", "timeline_figure", "views"]

MIB = 2**20
SET_ASIDE = "set aside"
NUM_SHOWN, NUM_SHOWN_NARROW = 5, 3
"""Batches that the timeline shows before anybody pans."""


def timeline_figure(plan: Plan, spans: Sequence[Span], colours: Colours) -> dict[str, Any]:
    """Memory over time, and under it, on the same time axis, a row of bars for each wave."""
    from plotly.subplots import make_subplots

    scale, unit = _time_unit(spans)
    end = max((span.end for span in spans), default=0.0) * scale
    heights = [300, 64 * plan.waves]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.05, row_heights=heights)
    figure.add_traces(_areas(plan, spans, colours, scale), rows=1, cols=1)
    figure.add_traces(_bars(plan, spans, colours, scale, unit), rows=2, cols=1)
    figure.add_hline(plan.peak_step_bytes / MIB, row=1, col=1, line={"color": colours.ink, "width": 2})
    one_wave = {"color": colours.ink, "width": 1.5, "dash": "dot"}
    figure.add_hline(plan.one_wave_step_bytes / MIB, row=1, col=1, line=one_wave)
    promise = plan.peak_step_bytes / MIB
    figure.add_annotation(
        text=f"promise: never above {promise:,.1f} MiB",
        **{"x": 0, "xref": "x domain", "xanchor": "left", "y": promise, "yref": "y", "yanchor": "bottom", "yshift": 2},
        **{"showarrow": False, "bgcolor": colours.paper},
    )
    figure.update_layout(layout(colours, height=sum(heights) + 90), barmode="overlay", dragmode="pan")
    figure.update_xaxes(axis(colours), minallowed=0, maxallowed=end, zeroline=False)
    figure.update_xaxes(title=f"time, {unit}", row=2, col=1)
    figure.update_yaxes(axis(colours), fixedrange=True)
    figure.update_yaxes(range=[0, 1.15 * promise], ticksuffix=" MiB", nticks=6, row=1, col=1)
    names = [f'<span style="color:{colours.wave(wave)}">■</span> {wave_name(wave)} ' for wave in range(plan.waves)]
    rows = {"tickvals": list(range(plan.waves)), "ticktext": names, "showgrid": False}
    figure.update_yaxes(rows, range=[plan.waves - 0.6, -0.65], zeroline=False, row=2, col=1)
    return plain(figure)


def _areas(plan: Plan, spans: Sequence[Span], colours: Colours, scale: float) -> list[Any]:
    """What is always there, and on it what each wave's batch holds."""
    from plotly import graph_objects as go

    curves = memory_curve(spans, plan.profile, plan.waves)
    end = max((span.end for span in spans), default=0.0)
    times = sorted({moment for curve in curves for moment, _ in curve} | {end})
    ready = (plan.one_wave_step_bytes - plan.profile.peak) / MIB
    layers = [(colours.ready, SET_ASIDE, [ready] * len(times))]
    for wave, curve in enumerate(curves):
        layers.append((colours.wave(wave), wave_name(wave), [level / MIB for level in level_at(curve, times)]))
    totals = [sum(levels) for levels in zip(*(levels for _, _, levels in layers), strict=True)]
    return [
        go.Scatter(
            x=[rounded(time * scale) for time in times],
            y=[rounded(level) for level in levels],
            hovertext=[
                f"{name}: {level:,.2f} MiB<br>all: {total:,.2f} MiB"
                for level, total in zip(levels, totals, strict=True)
            ],
            hoverinfo="text",
            stackgroup="memory",
            fillcolor=colour,
            mode="lines",
            line={"shape": "hv", "width": 0, "color": colour},
        )
        for colour, name, levels in layers
    ]


def _bars(plan: Plan, spans: Sequence[Span], colours: Colours, scale: float, unit: str) -> list[Any]:
    """A trace for each kind of work, and the numbers of the batches; neighbouring blocks differ a little in shade."""
    from plotly import graph_objects as go

    by_kind: dict[Kind, str] = {
        "wait": colours.wait,
        "forward": colours.forward,
        "backward": colours.backward,
        "turn": colours.turn,
    }
    traces: list[Any] = []
    for kind, colour in by_kind.items():
        those = [span for span in spans if span.kind == kind and span.end > span.start]
        traces.append(
            go.Bar(
                base=[rounded(span.start * scale) for span in those],
                x=[rounded((span.end - span.start) * scale) for span in those],
                y=[span.wave for span in those],
                orientation="h",
                width=0.52,
                marker={
                    "color": colour,
                    "opacity": [0.86 if span.block % 2 == 0 and span.block else 1 for span in those],
                    "line": {"width": 0},
                },
                hovertext=[_words(span, plan, scale, unit) for span in those],
                hoverinfo="text",
            )
        )
    begins = _begins(spans)
    labels = go.Scatter(
        x=[rounded(span.start * scale) for span in begins],
        y=[span.wave - 0.4 for span in begins],
        text=[f"batch {span.batch}" for span in begins],
        **{"mode": "text", "textposition": "middle right", "hoverinfo": "skip", "textfont": {"color": colours.soft}},
        meta="batches",
    )
    return [*traces, labels]


def _begins(spans: Iterable[Span]) -> list[Span]:
    """The first work on each batch."""
    found: dict[int, Span] = {}
    for span in spans:
        if span.kind == "forward" and span.block == 1:
            found.setdefault(span.batch, span)
    return list(found.values())


def _words(span: Span, plan: Plan, scale: float, unit: str) -> str:
    name = plan.profile.blocks[span.block - 1] or "the beginning" if span.block else ""
    block = f"block {span.block} ({html.escape(name)})"
    doing = {
        "forward": f"forward of {block}",
        "backward": f"backward of {block}",
        "turn": "turn: exchange and update",
        "wait": f"waits before {block}" if span.block else "waits for its turn",
    }[span.kind]
    took = significant((span.end - span.start) * scale, 3)
    return f"batch {span.batch}, {wave_name(span.wave)}<br>{doing}<br>{took} {unit}"


def views(spans: Sequence[Span]) -> dict[str, list[float]]:
    """Where the timeline begins and ends at first: on a wide screen, on a narrow one, and with everything."""
    scale, _ = _time_unit(spans)
    begins = [span.start * scale for span in _begins(spans)]
    end = max((span.end for span in spans), default=0.0) * scale
    first = begins[_opens_at(begins)] if begins else 0.0
    found = {"all": [0.0, end]}
    for name, count in (("wide", NUM_SHOWN), ("narrow", NUM_SHOWN_NARROW)):
        later = [begin for begin in begins if begin > first]
        found[name] = [rounded(first), rounded(later[count - 1] if len(later) >= count else end)]
    return found


def opening_in_words(spans: Sequence[Span], *, measured: bool) -> str:
    """Why the timeline opens at the batch where it does."""
    batches = [span.batch for span in _begins(spans)]
    if not batches:
        return ""
    shown = batches[_opens_at(batches)]
    words = []
    if measured and batches[0]:
        words.append(
            f"Batches 0 to {batches[0] - 1} are not in the picture: they ran one at a time, so that the engine could "
            "measure a batch and make its plan."
        )
    if shown != batches[0]:
        words.append(
            f"The picture opens at batch {shown}, when all waves are under way; the button “earlier” shows the batches "
            f"from {batches[0]} on."
        )
    return " ".join(words)


def _opens_at(begins: Sequence[object]) -> int:
    """The place of the first batch that is shown: a pipeline is full after a few."""
    return 2 if len(begins) > 2 + NUM_SHOWN else 0


def _time_unit(spans: Sequence[Span]) -> tuple[float, str]:
    """Units in a second, and the unit: that in which a batch takes at least a few."""
    end = max((span.end for span in spans), default=0.0)
    batches = len({span.batch for span in spans}) or 1
    return (1.0, "s") if end / batches > 3 else (1e3, "ms")
