"""Writes what was found: results.json, and the tables into README.md."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from convergence.runs import BATCHES, CASES, JOBS, SEEDS, TUNING_SEED, Case, Store, best_rate, next_rates, tuned
from convergence.summary import Drift, Row, drifts, plain_equals, rows
from convergence.training import CONSTANT_UNTIL, EVALUATE_AT, RISING_SHARE
from convergence.verdict import SHARE, STANDARD_ERRORS, Verdict
from wavelet.arguments import AUTO_RESYNC
from wavelet.report.jsonfile import SCHEMA_VERSION, finite
from wavelet.report.machine import machine, versions

__all__ = ["tables", "tuned_cases", "write_readme", "write_results"]

START, END = "<!-- tables: written by run.py -->", "<!-- end of tables -->"


def tuned_cases(store: Store) -> list[Case]:
    """The cases whose tuning is complete."""
    return [case for case in CASES if not next_rates(store, case)]


def write_results(store: Store, path: Path) -> None:
    """Write everything: how it was measured, what follows, and every run on a line of its own. NaN becomes null."""
    cases = tuned_cases(store)
    head = {
        "schema_version": SCHEMA_VERSION,
        "command": shlex.join(["python", "benchmarks/convergence/run.py", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
        "auto_resync": AUTO_RESYNC,
        "settings": {
            "samples_per_batch": {job: BATCHES[job][0] for job in JOBS},
            "batches": {job: BATCHES[job][1] for job in JOBS},
            "seeds": SEEDS,
            "tuning_seed": TUNING_SEED,
            "rate_rises_until_share_of_rounds": RISING_SHARE,
            "rate_falls_from_share_of_rounds": CONSTANT_UNTIL,
            "evaluated_at_share_of_batches": EVALUATE_AT,
            "bound_share": SHARE,
            "bound_standard_errors": STANDARD_ERRORS,
        },
        "tuning": {
            case.name: [{"rate": rate, "loss": loss} for rate, loss in sorted(tuned(store, case).items())]
            for case in cases
        },
        "rate": {case.name: best_rate(store, case) for case in cases},
        "plain_equals_synchronous": {case.name: plain_equals(store, case) for case in cases},
        "rows": [{**asdict(row), "name": row.rule.name} for case in cases for row in rows(store, case)],
        "drifts": [{**asdict(drift), "name": drift.rule.name} for case in cases for drift in drifts(store, case)],
    }
    text = json.dumps(finite(head), indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    runs = ",\n".join(json.dumps(finite(asdict(record)), allow_nan=False) for record in store.records.values())
    _replace(path, f'{text},\n "runs": [\n{runs}\n]}}\n')


def write_readme(store: Store, path: Path) -> None:
    """Put the tables between the two marks in the file."""
    text = path.read_text(encoding="utf-8")
    before, after = text.split(START)[0], text.split(END)[1]
    _replace(path, f"{before}{START}\n\n{tables(store)}\n{END}{after}")


def tables(store: Store) -> str:
    """All tables as Markdown."""
    parts = []
    for case in tuned_cases(store):
        size, num_batches = BATCHES[case.job]
        parts.append(f"### {case.name}\n\n{num_batches} batches of {size}, rate {best_rate(store, case):g}.\n")
        parts.append(_rules_table(rows(store, case)))
        if found := drifts(store, case):
            parts.append(_drift_table(found))
    parts.append("### Tuning\n\nThe plain loop's last validation loss on a seed that is used for nothing else.\n")
    parts.append(
        _markdown(
            ("case", "rate: loss"),
            ((case.name, _tuning_cell(store, case)) for case in tuned_cases(store)),
        )
    )
    return "\n".join(parts)


def _tuning_cell(store: Store, case: Case) -> str:
    best = best_rate(store, case)
    cells = (f"{rate:g}: {loss:.4f}" for rate, loss in sorted(tuned(store, case).items()))
    return ", ".join(f"**{cell}**" if cell.startswith(f"{best:g}:") else cell for cell in cells)


def _rules_table(found: Sequence[Row]) -> str:
    has_accuracy = any(row.accuracy for row in found)
    head = ("rule", "seeds", "loss ± sd", "worse by", "bound", "within", "worse by, before decay")
    lines = []
    for row in found:
        first = row.rule.rule == "synchronous"
        within = "" if first else "yes" if row.loss.within else "**no**"
        cells = [row.rule.name, str(len(row.seeds)), _mean(row.loss.candidate, row.deviation)]
        cells += ["", "", "", ""] if first else [*_comparison(row.loss), within, _comparison(row.before_decay)[0]]
        if row.accuracy is not None:
            accuracy = "" if first else f" (worse by {_points(row.accuracy.worse_by)}, {_within(row.accuracy)})"
            cells.append(f"{100 * row.accuracy.candidate:.1f} %{accuracy}")
        lines.append(cells)
    return _markdown((*head, "accuracy") if has_accuracy else head, lines)


def _drift_table(found: Sequence[Drift]) -> str:
    return _markdown(
        ("rule", "drift at full rate", "of the weights' norm", "drift at the end"),
        (
            (drift.rule.name, f"{drift.constant:.3g}", f"{100 * drift.relative:.2g} %", f"{drift.last:.2g}")
            for drift in found
        ),
    )


def _comparison(verdict: Verdict) -> tuple[str, str]:
    percent = 100 / verdict.reference
    if math.isinf(verdict.worse_by):
        return "∞", f"{verdict.bound * percent:.1f} %"
    error = "" if verdict.standard_error is None else f" ± {verdict.standard_error * percent:.1f}"
    return f"{verdict.worse_by * percent:+.1f}{error} %", f"{verdict.bound * percent:.1f} %"


def _mean(mean: float, deviation: float | None) -> str:
    return f"{mean:.4f}" + (f" ± {deviation:.4f}" if deviation is not None and math.isfinite(deviation) else "")


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points"


def _within(verdict: Verdict) -> str:
    return "within" if verdict.within else "**not** within"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    table = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in table) + "\n"


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
