"""Pictures: validation loss against samples, and the drift between the waves against updates."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import stdev

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from convergence.report import tuned_cases
from convergence.runs import Case, Store
from convergence.summary import Rule, paired, rules
from convergence.training import CONSTANT_UNTIL
from convergence.verdict import judge
from wavelet.arguments import AUTO_RESYNC

__all__ = ["draw_drifts", "draw_losses"]

COLOURS = {
    Rule("synchronous"): "black",
    Rule("neighbour", 1): "tab:brown",
    Rule("neighbour", 2): "tab:cyan",
    Rule("neighbour", 8): "tab:purple",
    Rule("neighbour", 32): "tab:blue",
    Rule("neighbour"): "tab:orange",
    Rule("delayed"): "tab:red",
    Rule("delayed", None, 0.5): "tab:green",
}
IN_LOSSES = [rule for rule in COLOURS if rule.resync in (None, AUTO_RESYNC)]


WIDE = 30
"""Percent: differences beyond that are drawn on a logarithmic scale."""


def draw_losses(store: Store, path: Path) -> None:
    """For each case: the loss with a band of one standard deviation, and below it the paired differences."""
    cases = tuned_cases(store)
    figure, grid = pyplot.subplots(
        2, len(cases), figsize=(3.8 * len(cases), 6.6), sharex="col", squeeze=False, layout="constrained"
    )
    for column, case in enumerate(cases):
        for rule in (rule for rule in IN_LOSSES if rule in rules(store, case)):
            _draw_loss(store, case, rule, grid[0, column], grid[1, column])
        grid[0, column].set(title=case.name, yscale="log")
        grid[1, column].set(xlabel="samples")
        grid[1, column].axhline(2, color="grey", linestyle=":", linewidth=1)
        if max(map(abs, grid[1, column].get_ylim())) > WIDE:
            grid[1, column].set_yscale("symlog", linthresh=10)
        for axis in (grid[0, column].yaxis, grid[1, column].yaxis):
            axis.set_major_formatter("{x:g}")
        grid[0, column].yaxis.set_minor_formatter("{x:.2g}" if _spans_little(grid[0, column]) else "")
    grid[0, 0].set_ylabel("validation loss (mean ± sd over seeds)")
    grid[1, 0].set_ylabel("worse than synchronous, %\n(mean ± 2 standard errors; dotted: 2 %)")
    _add_legend(grid[0, 0], grid[0])
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_drifts(store: Store, path: Path) -> None:
    """For each case the L2 distance of the waves' weights, mean over seeds, with a band from lowest to highest."""
    cases = tuned_cases(store)
    figure, grid = pyplot.subplots(1, len(cases), figsize=(3.8 * len(cases), 3.8), squeeze=False, layout="constrained")
    for case, axes in zip(cases, grid[0], strict=True):
        for rule in (rule for rule in COLOURS if rule in rules(store, case) and rule.rule != "synchronous"):
            records = [record for _, record in paired(store, case, rule)]
            values = [[drift or float("nan") for drift in record.drifts] for record in records]
            if records:
                _draw_band(axes, records[0].updates, values, rule)
                axes.axvline(CONSTANT_UNTIL * records[0].run.num_batches / 2, color="grey", linestyle=":", linewidth=1)
        axes.set(title=case.name, xlabel="updates of a wave", yscale="log")
    grid[0, 0].set_ylabel("L2 distance of the waves' weights\n(dotted: the rate begins to fall)")
    _add_legend(grid[0, 0], grid[0])
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_loss(store: Store, case: Case, rule: Rule, upper: Axes, lower: Axes) -> None:
    pairs = paired(store, case, rule)
    if not pairs:
        return
    samples = pairs[0][1].samples
    points = range(len(samples))
    losses = [[record.loss_at(point) for point in points] for _, record in pairs]
    means = [sum(column) / len(column) for column in zip(*losses, strict=True)]
    spread = [_deviation(column) for column in zip(*losses, strict=True)]
    upper.plot(samples, means, color=COLOURS[rule], label=rule.name, marker=".")
    _fill(upper, samples, means, spread, COLOURS[rule])
    if rule.rule == "synchronous":
        lower.axhline(0, color="black", linewidth=1)
        return
    verdicts = [
        judge([one.loss_at(point) for one, _ in pairs], [other.loss_at(point) for _, other in pairs])
        for point in points
    ]
    worse = [100 * verdict.worse_by / verdict.reference for verdict in verdicts]
    errors = [200 * (verdict.standard_error or 0.0) / verdict.reference for verdict in verdicts]
    lower.plot(samples, worse, color=COLOURS[rule], marker=".")
    _fill(lower, samples, worse, errors, COLOURS[rule])


def _draw_band(axes: Axes, where: Sequence[int], rows: Sequence[Sequence[float]], rule: Rule) -> None:
    columns = list(zip(*rows, strict=True))
    axes.plot(where, [sum(column) / len(column) for column in columns], color=COLOURS[rule], label=rule.name)
    low, high = [min(column) for column in columns], [max(column) for column in columns]
    axes.fill_between(where, low, high, color=COLOURS[rule], alpha=0.2, linewidth=0)


def _fill(axes: Axes, where: Sequence[int], middle: Sequence[float], by: Sequence[float], colour: str) -> None:
    low = [value - half for value, half in zip(middle, by, strict=True)]
    high = [value + half for value, half in zip(middle, by, strict=True)]
    axes.fill_between(where, low, high, color=colour, alpha=0.2, linewidth=0)


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 and all(map(isfinite, values)) else 0.0


def _spans_little(axes: Axes) -> bool:
    """Whether the logarithmic axis has too few powers of ten to be read by them."""
    low, high = axes.get_ylim()
    return bool(high < 10 * low)


def _add_legend(axes: Axes, all_axes: Sequence[Axes]) -> None:
    """One legend with what any of the axes shows."""
    shown: dict[str, Artist] = {}
    for each in all_axes:
        handles, labels = each.get_legend_handles_labels()
        shown.update(zip(labels, handles, strict=True))
    axes.legend(list(shown.values()), list(shown), fontsize="small")
