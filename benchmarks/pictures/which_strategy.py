"""Draws the picture of "Which strategy for my network?": efficiency over the bandwidth, from a simulation's JSON.

    wavelet simulate examples/cluster.toml --period 10 --json simulated.json \
        --rates 10mbit,20mbit,50mbit,100mbit,200mbit,500mbit,1gbit,2gbit,5gbit,10gbit,20gbit,50gbit,100gbit
    python benchmarks/pictures/which_strategy.py simulated.json

Nothing in it is measured.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from wavelet.planning.advice import areas
from wavelet.planning.comparison import Outcome
from wavelet.report.simulation import rate_text
from wavelet.report.simulation_figures import colour_of
from wavelet.report.style import LIGHT

__all__ = ["draw", "rows_of"]

SVG = Path(__file__).parents[2] / "docs" / "pictures" / "which_strategy.svg"
DASHES = {"naive": ":", "DDP": "--", "local SGD": (0, (7, 3)), "DreamDDP": "-."}
MARKERS = {"naive": "x", "DDP": "s", "local SGD": "D", "DreamDDP": "^"}

Rows = list[tuple[float, list[Outcome]]]


def rows_of(document: dict[str, Any]) -> Rows:
    """For each bandwidth, in bytes a second, the strategies there.

    Raises:
        ValueError: the simulation was not over bandwidths.
    """
    found = document.get("over_bandwidths")
    if not found:
        raise ValueError("there is nothing over bandwidths in it: simulate with --rates")
    return [
        (rate, [Outcome(**{name: value for name, value in each.items() if name != "bytes_per_second"}) for each in run])
        for rate, run in groupby(found, key=lambda each: each["bytes_per_second"])
    ]


def draw(rows: Rows) -> Figure:
    """One line a strategy, on areas in the colour of that to take."""
    mpl.rcParams.update({"svg.hashsalt": "wavelet", "font.family": "DejaVu Sans", "font.size": 10.5})
    width, height = 9.2, 4.9
    figure = Figure(figsize=(width, height))
    rounded: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.014", "mutation_aspect": width / height}
    paint: dict[str, Any] = {"facecolor": LIGHT.paper, "edgecolor": "#d0d7de", "linewidth": 1, "zorder": -1}
    figure.add_artist(FancyBboxPatch((0.003, 0.004), 0.994, 0.992, transform=figure.transFigure, **rounded, **paint))
    axes = figure.add_axes((0.075, 0.215, 0.87, 0.685))
    _draw_areas(axes, rows)
    _draw_lines(axes, rows)
    rates = [rate for rate, _ in rows]
    axes.set(xscale="log", xlim=(rates[0], rates[-1]), ylim=(0, 1.05))
    axes.set_xticks(rates[::3], [rate_text(rate) for rate in rates[::3]])
    axes.minorticks_off()
    axes.tick_params(colors=LIGHT.soft, length=0, pad=7)
    axes.set_xlabel("bandwidth between hosts", color=LIGHT.ink)
    axes.set_ylabel("efficiency", color=LIGHT.ink)
    axes.grid(visible=True, color=LIGHT.line, linewidth=0.8)
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.legend(loc="lower center", ncols=len(rows[0][1]), frameon=False, labelcolor=LIGHT.ink, handlelength=2.8)
    return figure


def _draw_areas(axes: Axes, rows: Rows) -> None:
    found = areas(rows)
    borders = [math.sqrt(one.last * other.first) for one, other in pairwise(found)]
    for area, first, last in zip(found, [rows[0][0], *borders], [*borders, rows[-1][0]], strict=True):
        axes.axvspan(first, last, color=colour_of(area.strategy, LIGHT), alpha=0.17, linewidth=0)
        name = area.strategy.split(" (")[0].replace(" ", "\n")
        axes.text(math.sqrt(first * last), 1.07, name, ha="center", va="bottom", color=LIGHT.ink, fontweight="bold")


def _draw_lines(axes: Axes, rows: Rows) -> None:
    rates = [rate for rate, _ in rows]
    lines: Sequence[Sequence[Outcome]] = list(zip(*(row for _, row in rows), strict=True))
    for line in lines:
        name = line[0].strategy
        kind = name.split(" (")[0]
        look: dict[str, Any] = {"linestyle": DASHES.get(kind, "-"), "marker": MARKERS.get(kind, "o"), "markersize": 4.5}
        efficiencies = [outcome.efficiency for outcome in line]
        axes.plot(rates, efficiencies, color=colour_of(name, LIGHT), label=name, linewidth=1.8, clip_on=False, **look)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description='Draw the picture of "Which strategy for my network?".')
    parser.add_argument("json", type=Path, help="what wavelet simulate --rates … --json FILE has written")
    parser.add_argument("--out", type=Path, default=SVG, help="where to write; the suffix says the format")
    asked = parser.parse_args()
    path: Path = asked.out
    picture = draw(rows_of(json.loads(asked.json.read_text(encoding="utf-8"))))
    picture.savefig(path, facecolor="none", metadata={"Date": None} if path.suffix == ".svg" else {})
    print(path)


if __name__ == "__main__":
    main()
