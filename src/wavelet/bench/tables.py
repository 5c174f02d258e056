"""A bench's results as a table."""

from __future__ import annotations

from collections.abc import Sequence

from wavelet.bench.verdict import Row
from wavelet.report.numbers import mebibytes, ratio, significant
from wavelet.report.tables import Table

__all__ = ["results_table"]


def results_table(title: str, rows: Sequence[Row]) -> Table:
    """Eager systems, then compiled ones; in each part the ratio is to that part's best plain loop."""
    numbers = ("samples/s", "low–high", "ratio", "val. loss", "MiB")
    table = Table(title, ("system", *numbers), numbers=numbers)
    for compiled in (False, True):
        part = [row for row in rows if row.system.compile is compiled]
        if compiled and part:
            table.section()
        for row in part:
            table.row(*_cells(row))
    return table


def _cells(row: Row) -> tuple[str, ...]:
    if row.failure is not None:
        return (row.system.name, "fails", "", "", "", "")
    return (
        row.system.name,
        significant(row.samples_per_second),
        f"{significant(row.lowest)}–{significant(row.highest)}",
        f"{ratio(row.ratio)}{' best' if row.best else ''}",
        significant(row.validation_loss),
        mebibytes(row.peak_resident_bytes),
    )
