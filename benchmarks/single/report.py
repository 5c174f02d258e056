"""Turns results*.json of `wavelet bench` into this folder's README and the table in the project's README.

python benchmarks/single/report.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RULES = ("neighbour", "synchronous", "delayed")
NOT_IN_MEAN = "mlp-small-ops"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main() -> None:
    documents = [json.loads(path.read_text()) for path in sorted(HERE.glob("results*.json"))]
    rows = [row for document in documents for row in document["rows"]]
    verdicts = [verdict for document in documents for verdict in document["verdicts"]]
    tables = [section(verdict, rows) for verdict in verdicts]
    commands = "\n".join(f"    {document['command_line']}" for document in documents)
    summary = "\n\n".join(
        f"**Under {allocator}**\n\n{summary_table(allocator, verdicts, rows)}"
        for allocator in dict.fromkeys(verdict["allocator"] for verdict in verdicts)
    )
    machine = describe(documents[0])
    head = [
        "# One device, one process: against the plain loop and DDP",
        f"{machine} Every system runs in turn in fresh processes, round after round; figures are medians, with the "
        "lowest and the highest run in brackets. All single runs are in `results*.json`.",
        f"Commands:\n\n{commands}\n    python benchmarks/single/report.py",
        summary,
    ]
    (HERE / "README.md").write_text("\n\n".join([*head, *tables]) + "\n")
    write_block(
        ROOT / "README.md",
        f"{summary}\n\n{machine} Commands, every system, spread, loss and peak of memory: "
        "[benchmarks/single](benchmarks/single/README.md).",
    )


def describe(document: dict[str, Any]) -> str:
    machine, versions = document["machine"], document["versions"]
    return (
        f"Measured on {machine['cores']} cores ({machine['cpu']}), PyTorch {versions['torch']}, "
        f"Python {versions['python']}, Wavelet {versions['wavelet']}."
    )


def pick(rows: list[dict[str, Any]], verdict: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in rows if (row["job"], row["allocator"]) == (verdict["job"], verdict["allocator"])]


def rate(rows: list[dict[str, Any]], name: str) -> float | None:
    return next((row["samples_per_second"] for row in rows if row["system"]["name"].startswith(name)), None)


def ratio(above: float | None, below: float | None) -> str:
    return "–" if above is None or below is None else f"{above / below:.2f}"


def summary_table(allocator: str, verdicts: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """Two waves over the others, one line a job."""
    lines = [
        "| job | best plain loop | `neighbour` over it | `synchronous` | `delayed` | `neighbour` over DDP, 2 processes "
        "| share of the ceiling | compiled over the compiled loop | one wave over the plain loop |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    logs = []
    for verdict in (verdict for verdict in verdicts if verdict["allocator"] == allocator):
        mine = pick(rows, verdict)
        plain, ddp = rate(mine, verdict["best_plain"]), rate(mine, "DDP")
        rules = [rate(mine, f"Wavelet {rule}") for rule in RULES]
        if rules[0] and ddp and verdict["job"] != NOT_IN_MEAN:
            logs.append(math.log(rules[0] / ddp))
        compiled = "–"
        if verdict["over_compiled"] is not None:
            compiled = f"{verdict['over_compiled']:.2f}" + ("" if verdict["compiling_helps"] else " (does not help it)")
        one = "–" if verdict["one_wave"] is None else f"{verdict['one_wave']:.2f}"
        cells = [verdict["job"], verdict["best_plain"], *(ratio(rule, plain) for rule in rules)]
        cells += [ratio(rules[0], ddp), ratio(rules[0], rate(mine, "ceiling")), compiled, one]
        lines.append("| " + " | ".join(cells) + " |")
    text = "\n".join(lines)
    if logs:
        mean = math.exp(sum(logs) / len(logs))
        text += f"\n\n`neighbour` over DDP, geometric mean without {NOT_IN_MEAN}: {mean:.2f}."
    return text


def section(verdict: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Every system on one job."""
    lines = [
        f"## {verdict['job']} under {verdict['allocator']}\n",
        "| system | samples/s | over the best plain loop of its kind | validation loss | peak resident MiB |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in pick(rows, verdict):
        name = row["system"]["name"]
        if row["samples_per_second"] is None:
            lines.append(f"| {name} | {row['failure']} | – | – | – |")
            continue
        speed = f"{row['samples_per_second']:.1f} [{row['lowest']:.1f}, {row['highest']:.1f}]"
        loss = "–" if row["validation_loss"] is None else f"{row['validation_loss']:.4f}"
        over = "–" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append(f"| {name} | {speed} | {over} | {loss} | {row['peak_resident_bytes'] / 2**20:.0f} |")
    return "\n".join(lines)


def write_block(path: Path, text: str) -> None:
    """Replace what stands between the marks of a page."""
    page = path.read_text()
    before, rest = page.split(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
