"""The picture: bars of the time a step takes, by rate and system, and each system's loss against time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from summary import Row, Run

__all__ = ["draw"]

_DASHES = {"1": "--", "2": "-"}
"""Of Wavelet's systems, by the number of waves; a reference is dotted."""


def draw(title: str, rows: Sequence[Row], runs: Sequence[Run], path: Path) -> None:
    """Draw it beside `path`, then rename it, so that a reader never sees half of it."""
    rates = list(dict.fromkeys(row.rate for row in rows))
    figure = pyplot.figure(figsize=(4.2 * max(len(rates), 2), 8.4), layout="constrained")
    grid = figure.add_gridspec(2, len(rates))
    colours = _colours(list(dict.fromkeys(row.system for row in rows)))
    bars = figure.add_subplot(grid[0, :])
    _draw_bars(bars, rates, rows, colours)
    bars.set_title(title)
    figure.legend(loc="outside lower center", fontsize="small", ncols=3 * max(len(rates), 2))
    first: Axes | None = None
    for column, rate in enumerate(rates):
        axes = figure.add_subplot(grid[1, column], sharey=first)
        first = first or axes
        _draw_losses(axes, [run for run in runs if run.rate == rate], colours)
        axes.set(title=rate, xlabel="seconds of training after the warm-up")
    if first is not None:
        first.set_ylabel("validation loss")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        figure.savefig(part, dpi=110, format="png")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
        pyplot.close(figure)


def _draw_bars(axes: Axes, rates: Sequence[str], rows: Sequence[Row], colours: dict[str, str]) -> None:
    """Medians, with a line from the fastest round to the slowest."""
    width = 0.8 / len(colours)
    for place, system in enumerate(colours):
        mine = [row for row in rows if row.system == system]
        where = [rates.index(row.rate) + (place - (len(colours) - 1) / 2) * width for row in mine]
        middle = [1e3 * row.seconds_per_step for row in mine]
        below = [1e3 * (row.seconds_per_step - row.lowest) for row in mine]
        above = [1e3 * (row.highest - row.seconds_per_step) for row in mine]
        look: Any = {"color": colours[system], "hatch": "//" if system.endswith(":2") else "", "edgecolor": "white"}
        axes.bar(where, middle, width, yerr=[below, above], label=system, **look)
    axes.set(xticks=range(len(rates)), xticklabels=rates, ylabel="ms a step", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")


def _draw_losses(axes: Axes, runs: Sequence[Run], colours: dict[str, str]) -> None:
    """Every round's curve."""
    for run in runs:
        seconds, losses = [point.seconds for point in run.points], [point.loss for point in run.points]
        dashes = _DASHES.get(run.system.partition(":")[2], ":")
        axes.plot(seconds, losses, color=colours[run.system], linestyle=dashes, marker=".", linewidth=1)


def _colours(systems: Sequence[str]) -> dict[str, str]:
    """One for each system; those that differ in the number of waves alone share it."""
    methods = list(dict.fromkeys(system.partition(":")[0] for system in systems))
    return {system: f"C{methods.index(system.partition(':')[0])}" for system in systems}
