"""The results table at 80 columns, with systems that do not compile."""

import io

from rich.console import Console

from wavelet.bench.tables import results_table
from wavelet.bench.verdict import make_rows
from wavelet.report.tables import show

from .test_verdict import BLOCKS, COMPILED_1, COMPILED_2, PLAIN_2, RATES, made_up


def lines_of(results, width=80):
    console = Console(file=io.StringIO(), width=width)
    show(results_table("char-lstm under glibc", make_rows(results)), console)
    return [line.strip() for line in console.file.getvalue().splitlines()]


def test_one_line_a_system_at_80_columns():
    large = {system: [rate * 123.45 for rate in rates] for system, rates in RATES.items()}
    lines = lines_of(made_up(large))
    rows = [line for line in lines if any(line.startswith(system.name) for system in RATES)]
    assert [row[: len(system.name)] for row, system in zip(rows, RATES, strict=True)] == [s.name for s in RATES]
    best = next(row for row in rows if row.startswith(PLAIN_2.name))
    assert best.split()[-6:] == ["12345", "11110–16048", "1.00", "best", "3.000", "0"]
    assert "" in lines[lines.index(rows[6]) : lines.index(rows[7])]  # compiled systems stand apart


def test_narrow_terminals_lose_no_number():
    text = " ".join(lines_of(made_up(RATES), width=50))
    assert all(number in text for number in ("125.0", "1.25", "3.000"))


def test_what_does_not_compile():
    eager = {system: rates for system, rates in RATES.items() if not system.compile}
    lines = lines_of(made_up(eager, [(system, "x") for system in (COMPILED_1, COMPILED_2, BLOCKS)]))
    assert [line.split("  ")[0] for line in lines if line.endswith("fails")] == [
        "compiled, 1 thread",
        "compiled, 2 threads",
        "Wavelet, compiled",
    ]
