"""The tables of the memory benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["write_readme"]

MIB = 2**20


def write_readme(results: dict[str, Any], path: Path) -> None:
    """Write the tables of what has been measured."""
    path.write_text("\n".join(_lines(results)) + "\n", encoding="utf-8")


def _lines(results: dict[str, Any]) -> Iterator[str]:
    of = results["versions"]
    yield "# The promise of memory"
    yield ""
    yield (
        f"Measured on {results['machine']['cores']} cores ({results['machine']['cpu']}), PyTorch {of['torch']}, "
        f"Python {of['python']}, Wavelet {of['wavelet']}. All single figures are in `results.json`."
    )
    yield ""
    yield from (f"    {command}" for command in dict.fromkeys(results["commands"].values()))
    for part in ("heap", "speed", "resident"):
        if part in results:
            yield ""
            yield from globals()[f"_{part}"](results[part])


def _heap(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "## The heap's peak against the promise"
    yield ""
    yield (
        "Step memory in MiB: the peak of steady steps that memray sees, less what the idle engine holds, against "
        "`plan.peak_step_bytes`. Under random sleeps in forward and backward, and with sleeps that let two batches "
        "meet in the worst state that the plan allows."
    )
    yield ""
    yield "| job | budget | promised | measured | random sleeps | worst state | measured at most, of the promise |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for job in _each(rows, "job"):
        for budget in _each(rows, "budget"):
            mine = {row["sleeps"]: row for row in rows if (row["job"], row["budget"]) == (job, budget)}
            promised = max(row["promised_step_bytes"] for row in mine.values())
            measured = [mine[sleeps]["measured_step_bytes"] for sleeps in ("none", "random", "worst")]
            share = max(row["measured_step_bytes"] / row["promised_step_bytes"] for row in mine.values())
            cells = [f"{count / MIB:.2f}" for count in (promised, *measured)]
            yield f"| {job} | {budget} | {' | '.join(cells)} | {share:.3f} |"


def _speed(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "## Throughput within a budget"
    yield ""
    yield (
        "Samples a second, medians of runs in turn. One wave has one thread, as each of two waves has. In brackets: "
        "what `wavelet.plan` predicted from a `wavelet.profile`, over what was measured."
    )
    yield ""
    budgets = list(rows[0]["predicted"]["samples_per_second"])
    yield f"| job | one wave | {' | '.join(budgets)} | free | 1.0x over one wave | 1.5x over free |"
    yield "|---|" + "--:|" * (len(budgets) + 4)
    for row in rows:
        rates = {name: median(runs) for name, runs in row["samples_per_second"].items()}
        predicted = row["predicted"]["samples_per_second"]
        cells = [f"{rates[budget]:.0f} ({predicted[budget] / rates[budget]:.2f})" for budget in budgets]
        yield (
            f"| {row['job']} | {rates['one wave']:.0f} | {' | '.join(cells)} | {rates['free']:.0f} | "
            f"{rates['1.0x'] / rates['one wave']:.2f} | {rates['1.5x'] / rates['free']:.2f} |"
        )
    yield ""
    yield "| job | blocks | activations, of step memory | profile, s | plan, s |"
    yield "|---|--:|--:|--:|--:|"
    for row in rows:
        of = row["predicted"]
        yield (
            f"| {row['job']} | {of['num_blocks']} | {of['activations_share']:.0%} | {of['profile_seconds']:.1f} | "
            f"{of['plan_seconds']:.2f} |"
        )


def _resident(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "## Resident memory against data parallelism"
    yield ""
    yield (
        "The rise of proportional resident memory (PSS) over rest, in MiB: two waves at 1.25x, and the sum of two "
        "processes of DistributedDataParallel with one thread each, under the same allocator. Rest is after a warm-up, "
        "with what is free given back."
    )
    yield ""
    yield "| allocator | job | waves | DDP | waves over DDP | samples/s, waves | DDP | waves over DDP |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for row in rows:
        rise, speed = (
            [median(run[name] for run in row[system]) for system in ("waves", "ddp")]
            for name in ("rise_bytes", "samples_per_second")
        )
        yield (
            f"| {row['allocator']} | {row['job']} | {rise[0] / MIB:.1f} | {rise[1] / MIB:.1f} | "
            f"{rise[0] / rise[1]:.2f} | {speed[0]:.0f} | {speed[1]:.0f} | {speed[0] / speed[1]:.2f} |"
        )


def _each(rows: Iterable[dict[str, Any]], name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))
