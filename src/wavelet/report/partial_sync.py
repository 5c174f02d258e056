"""A plan of partial synchronisation as a picture: what each iteration sends, what the backward hides, what waits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from wavelet.report.numbers import significant
from wavelet.report.tables import Table, as_text

if TYPE_CHECKING:
    from wavelet.planning.partial_sync import PartialSyncPlan

__all__ = ["partial_sync_table", "partial_sync_text", "ranges", "waits_table"]

BACKWARD, HIDDEN, IDLE, WAITS, END = "━", "█", "·", "×", "│"

ROOM = 80 - len(" iteration" + 4 * "   " + END + " ")
"""Characters that a line has for layers, early layers, the bar and the seconds."""

WIDEST_LAYERS, WIDEST_EXTRA = 14, 11


def partial_sync_text(plan: PartialSyncPlan) -> str:
    """The picture, and what a period waits beside what else could be done."""
    lines = [
        f"{HIDDEN} sent behind the backward   {IDLE} idle   {END} the backward ends   {WAITS} waited for",
        "Layers are counted from 0 in backward order; early ones go again, in idle time.",
    ]
    parts = [as_text(partial_sync_table(plan)), "\n".join(lines) + "\n", as_text(waits_table(plan))]
    if plan.optimal:
        parts.append("No division of the layers waits less.\n")
    return "".join(parts)


def partial_sync_table(plan: PartialSyncPlan) -> Table:
    """One row an iteration, iterations that do the same in one; above them the backward, which is the same in each."""
    unit, name = _unit(plan)
    columns = ("iteration", "layers", "early", "on the link", f"waits, {name}")
    runs = list(_runs(plan))
    cells = [(*_layers(plan, first), _seconds(plan.waits[first] / unit)) for first, _ in runs]
    bar = ROOM - sum(max(map(len, column)) for column in zip(("layers", "early", columns[-1]), *cells, strict=True))
    hidden = _backward_cells(plan, bar)
    iterations, layers = _plural(plan.period, "iteration"), _plural(plan.num_layers, "layer")
    table = Table(f"Partial synchronisation: {layers} in {iterations}", columns, numbers=("iteration", columns[-1]))
    table.row("backward", "", "", BACKWARD * hidden + END, "")
    for (first, last), (own, extra, wait) in zip(runs, cells, strict=True):
        number = str(first) if first == last else f"{first}–{last}"
        table.row(number, own, extra, _bar(plan, first, hidden, bar), wait)
    return table


def waits_table(plan: PartialSyncPlan) -> Table:
    """What a period waits, and would wait."""
    unit, name = _unit(plan)
    found = "improved" if plan.improved else "best among contiguous"
    table = Table("", ("a period waits", name), numbers=(name,))
    table.row(f"under this plan ({found})", _seconds(plan.wait_seconds / unit))
    if plan.improved:
        table.row("under the best of contiguous layers", _seconds(plan.contiguous_wait_seconds / unit))
    table.row("for all layers in every iteration, overlapped", _seconds(plan.others.every_iteration / unit))
    table.row("for all layers at its end, not overlapped", _seconds(plan.others.end_of_period / unit))
    return table


def _layers(plan: PartialSyncPlan, iteration: int) -> tuple[str, str]:
    """The layers of an iteration, and its early ones."""
    extra = plan.extra[iteration]
    own = sorted(set(plan.assignment[iteration]) - set(extra))
    return ranges(own, WIDEST_LAYERS), ranges(extra, WIDEST_EXTRA)


def _backward_cells(plan: PartialSyncPlan, bar: int) -> int:
    """Characters for the backward, of ``bar`` for the longest iteration; what waits, however short, has one too."""
    backward, wait = plan.times.ready[-1], max(plan.waits)
    if wait == 0:
        return bar
    return min(max(round(bar * (backward / (backward + wait))), 1 if backward else 0), bar - 1)


def _bar(plan: PartialSyncPlan, iteration: int, hidden: int, bar: int) -> str:
    """What the link does during the backward, in ``hidden`` characters of ``bar``, and what is waited for after it.

    A character shows what the link does for most of the time that it stands for; the shortest wait has one.
    """
    backward, wait = plan.times.ready[-1], plan.waits[iteration]
    busy = [0.0] * hidden
    if backward:
        for _, start, end in plan.times.sendings(plan.assignment[iteration]):
            begins, ends = (min(moment / backward, 1.0) * hidden for moment in (start, end))
            for cell in range(math.floor(begins), math.ceil(ends)):
                busy[cell] += min(ends, cell + 1) - max(begins, cell)
    waits = math.ceil((bar - hidden) * (wait / max(plan.waits))) if wait else 0
    return "".join(HIDDEN if share > 0.5 else IDLE for share in busy) + END + WAITS * waits


def ranges(layers: Sequence[int], width: int) -> str:
    """Ascending layers as text: "0–3, 7"; what is longer than ``width`` ends with how many there are."""
    parts = [f"{first}" if first == last else f"{first}–{last}" for first, last in _stretches(layers)]
    text = ", ".join(parts)
    if len(text) <= width:
        return text
    rest = f", … ({len(layers)})"
    while len(parts) > 1 and len(", ".join(parts)) + len(rest) > width:
        parts.pop()
    return ", ".join(parts) + rest


def _stretches(layers: Iterable[int]) -> Iterator[tuple[int, int]]:
    stretch: tuple[int, int] | None = None
    for layer in layers:
        if stretch and layer == stretch[1] + 1:
            stretch = (stretch[0], layer)
        else:
            if stretch:
                yield stretch
            stretch = (layer, layer)
    if stretch:
        yield stretch


def _runs(plan: PartialSyncPlan) -> Iterator[tuple[int, int]]:
    """The first and the last of each run of iterations that send the same."""
    first = 0
    for iteration in range(1, plan.period + 1):
        same = iteration < plan.period and (plan.assignment[iteration], plan.extra[iteration]) == (
            plan.assignment[first],
            plan.extra[first],
        )
        if not same:
            yield first, iteration - 1
            first = iteration


def _unit(plan: PartialSyncPlan) -> tuple[float, str]:
    return (1.0, "s") if max(plan.times.ready[-1], plan.wait_seconds) >= 1 else (1e-3, "ms")


def _seconds(value: float) -> str:
    return "0" if value == 0 else significant(value)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
