"""Draws the README's picture: one wave and two waves in time and memory, from a computed schedule.

    python benchmarks/pictures/two_waves.py

The schedule follows the engine's own rules on a device that has room for both waves: forwards run one at a time, in
batch order; a batch's forward starts when its wave has done with the batch before. Nothing in it is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

__all__ = ["Batch", "draw", "memory", "schedule"]

FORWARD, BACKWARD, UPDATE = 1.0, 2.0, 0.25
NUM_BLOCKS = 8
END = 13.0
SVG = Path(__file__).parents[2] / "docs" / "pictures" / "two_waves.svg"

INK, GREY = "#22272e", "#6b7480"
NAMES = ("tick-wave", "tock-wave")
# Of each wave: memory, forward, backward, update.
COLOURS = (("#4f8fd0", "#b9d5f2", "#4f8fd0", "#1d4f86"), ("#eda13a", "#fbdfb3", "#eda13a", "#9a5b08"))


@dataclass(frozen=True)
class Batch:
    """One batch of a schedule: when its forward, backward and update start, and when it is done."""

    number: int
    wave: int
    forward: float
    backward: float
    update: float
    done: float


def schedule(num_waves: int, until: float = END) -> list[Batch]:
    """The batches that start before `until`."""
    batches: list[Batch] = []
    wave_free = [0.0] * num_waves
    caller_free = last_update = 0.0
    while (start := max(caller_free, wave_free[len(batches) % num_waves])) < until:
        number, wave = len(batches), len(batches) % num_waves
        backward = caller_free = start + FORWARD
        update = max(backward + BACKWARD, last_update)
        last_update = wave_free[wave] = update + UPDATE
        batches.append(Batch(number, wave, start, backward, update, wave_free[wave]))
    return batches


def memory(batches: Sequence[Batch], wave: int) -> tuple[list[float], list[float]]:
    """Times, and from each of them on the saved activations of `wave` in units of one batch's.

    A block's forward takes its share when it starts, its backward gives it back when it ends.
    """
    share = 1 / NUM_BLOCKS
    changes = [(0.0, 0.0)]
    for batch in batches:
        if batch.wave == wave:
            changes += [(batch.forward + block * FORWARD * share, share) for block in range(NUM_BLOCKS)]
            changes += [(batch.backward + (block + 1) * BACKWARD * share, -share) for block in range(NUM_BLOCKS)]
    changes.sort()
    times, levels, level = [], [], 0.0
    for time, change in changes:
        level += change
        times.append(time)
        levels.append(level)
    return times, levels


def stacked(batches: Sequence[Batch], num_waves: int) -> tuple[list[float], list[list[float]]]:
    """Common times, and for each wave its own memory plus that of the waves below it."""
    each = [memory(batches, wave) for wave in range(num_waves)]
    times = sorted({time for own, _ in each for time in own if time <= END} | {END})
    below, tops = [0.0] * len(times), []
    for own, levels in each:
        below = [base + _level_at(own, levels, time) for base, time in zip(below, times, strict=True)]
        tops.append(below)
    return times, tops


def _level_at(times: Sequence[float], levels: Sequence[float], time: float) -> float:
    return next((level for at, level in zip(reversed(times), reversed(levels), strict=True) if at <= time), 0.0)


def mean(times: Sequence[float], levels: Sequence[float]) -> float:
    """The mean over time of a staircase."""
    steps = zip(times, times[1:], levels, strict=False)
    return sum((after - before) * level for before, after, level in steps) / (times[-1] - times[0])


def draw() -> Figure:
    """One wave above two waves, on one time axis."""
    mpl.rcParams.update({"svg.hashsalt": "wavelet", "font.family": "DejaVu Sans", "font.size": 10.5})
    width, height = 9.2, 5.7
    figure = Figure(figsize=(width, height))
    card = FancyBboxPatch(
        (0.003, 0.004),
        0.994,
        0.992,
        boxstyle="round,pad=0,rounding_size=0.014",
        mutation_aspect=width / height,
        transform=figure.transFigure,
        facecolor="white",
        edgecolor="#d0d7de",
        linewidth=1,
        zorder=-1,
    )
    figure.add_artist(card)
    left, right = 0.108, 0.978
    for num_waves, title, bottom in ((1, "One wave", 0.672), (2, "Two waves, offset in time", 0.072)):
        batches = schedule(num_waves)
        rows, tall = 0.07 * num_waves, 0.158 * num_waves
        above = figure.add_axes((left, bottom + rows + 0.008, right - left, tall))
        below = figure.add_axes((left, bottom, right - left, rows))
        times, tops = stacked(batches, num_waves)
        _draw_memory(above, times, tops)
        _draw_timeline(below, batches, num_waves)
        num_done = sum(batch.done <= END for batch in batches)
        facts = f"{num_done} batches done · memory: peak {max(tops[-1]):.1f}, on average {mean(times, tops[-1]):.1f}"
        above.set_title(title, loc="left", fontsize=12.5, fontweight="bold", color=INK, pad=8)
        above.set_title(facts, loc="right", color=GREY, pad=8)
    below.set_xlabel("time →", color=GREY, loc="right", labelpad=4)
    below.text(0, -0.8, "dark bars: updates", color=GREY, va="top")
    return figure


def _draw_memory(axes: Axes, times: Sequence[float], tops: Sequence[Sequence[float]]) -> None:
    num_waves = len(tops)
    below: Sequence[float] = [0.0] * len(times)
    for wave, top in enumerate(tops):
        colour = COLOURS[wave][0]
        axes.fill_between(times, below, top, step="post", color=colour, alpha=0.9, linewidth=0)
        below = top
    axes.step(times, tops[-1], where="post", color=INK, linewidth=1.1)
    axes.axhline(num_waves, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    label = "one batch in full" if num_waves == 1 else "two batches in full"
    axes.text(END - 0.08, num_waves + 0.04, label, ha="right", va="bottom", color=GREY, fontsize=9.5)
    axes.set(xlim=(0, END), ylim=(0, num_waves + 0.26))
    axes.set_yticks(range(num_waves + 1))
    axes.tick_params(axis="y", colors=GREY, length=0)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    axes.set_ylabel("memory", color=INK, labelpad=28)
    _frame(axes)


def _draw_timeline(axes: Axes, batches: Sequence[Batch], num_waves: int) -> None:
    for batch in batches:
        row = num_waves - 1 - batch.wave
        spans = (
            (batch.forward, FORWARD, "forward"),
            (batch.backward, BACKWARD, "backward"),
            (batch.update, UPDATE, ""),
        )
        for (start, length, word), colour in zip(spans, COLOURS[batch.wave][1:], strict=True):
            if start >= END:
                continue
            shown = min(length, END - start)
            axes.barh(row, shown, left=start, height=0.74, color=colour, edgecolor="white", linewidth=1.2)
            if word and shown == length:
                text = f"{word} {batch.number}" if word == "backward" else f"fwd {batch.number}"
                axes.text(start + length / 2, row, text, ha="center", va="center", fontsize=8.8, color=INK)
    axes.set(xlim=(0, END), ylim=(-0.55, num_waves - 0.45))
    axes.set_yticks(range(num_waves), ["one wave"] if num_waves == 1 else list(reversed(NAMES)))
    axes.tick_params(axis="y", length=0, colors=INK)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    _frame(axes)


def _frame(axes: Axes) -> None:
    axes.patch.set_alpha(0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom" and axes.get_ylabel() != "")
        spine.set_color(GREY)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description="Draw the README's picture of one wave and two waves.")
    parser.add_argument("--out", type=Path, default=SVG, help="where to write; the suffix says the format")
    path: Path = parser.parse_args().out
    draw().savefig(path, transparent=False, facecolor="none", metadata={"Date": None} if path.suffix == ".svg" else {})
    print(path)


if __name__ == "__main__":
    main()
