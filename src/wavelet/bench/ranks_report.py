"""A bench over ranks as a table and as JSON fields; names and units are stable under one `schema_version`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from wavelet.bench.document import entry
from wavelet.bench.ranks import RankPlan, RankResults, RankSystem
from wavelet.bench.ranks_verdict import RankRow, judge_ranks, make_rank_rows
from wavelet.report.numbers import ratio, significant
from wavelet.report.tables import Table

__all__ = ["about_ranks", "rank_document", "rank_table"]

_SECTIONS: tuple[Callable[[RankSystem], bool], ...] = (
    lambda system: system.like_for_like and system.precision == "fp32",
    lambda system: system.like_for_like and system.precision == "bf16",
    lambda system: system.trains and not system.like_for_like,
    lambda system: not system.trains,
)


def rank_table(title: str, rows: Sequence[RankRow]) -> Table:
    """Systems by precision, then those that are not compared like for like, then the limits."""
    numbers = ("ms", "low–high", "MB", "loss", "ratio", "limit")
    table = Table(title, ("system", *numbers), numbers=numbers)
    parts = [[row for row in rows if belongs(row.system)] for belongs in _SECTIONS]
    for number, part in enumerate(part for part in parts if part):
        if number:
            table.section()
        for row in part:
            table.row(*_cells(row))
    return table


def about_ranks(plan: RankPlan) -> list[str]:
    """What the columns mean."""
    measured = "counted on its link" if plan.rate else "computed, not measured"
    return [
        "ms: for one batch of every rank. loss: validation, at equal samples.",
        f"MB: what a rank sends for one batch, {measured}.",
        "ratio: times as fast as the best DDP of the same precision.",
        "limit: share of what compute alone and all-reduce alone, the slower one, allow.",
        "no_sync and synchronous send and update half as often: not like for like.",
    ]


def rank_document(results: Sequence[RankResults]) -> dict[str, Any]:
    """The measurements, and what follows from them.

    Returns:
        ``measurements``: every run, as `RankMeasurement`, with its job and allocator.
        ``failures``: systems that could not be measured, as `Failure`.
        ``rows``: the tables, as `RankRow`. ``verdicts``: as `RankVerdict`.
        ``sent_bytes_are``: `measured` on the links, or `computed`.
    """
    return {
        "measurements": [entry(table, run) for table in results for run in table.measurements],
        "failures": [entry(table, failure) for table in results for failure in table.failures],
        "rows": [entry(table, row) for table in results for row in make_rank_rows(table)],
        "verdicts": [asdict(verdict) for table in results for verdict in judge_ranks(table)],
        "sent_bytes_are": "measured" if results and results[0].plan.rate else "computed",
    }


def _cells(row: RankRow) -> tuple[str, ...]:
    if row.failure is not None:
        return (row.system.name, "fails", "", "", "", "", "")
    return (
        row.system.name,
        _milliseconds(row.seconds_per_batch),
        f"{_milliseconds(row.lowest)}–{_milliseconds(row.highest)}",
        significant(None if row.sent_bytes_per_batch is None else row.sent_bytes_per_batch / 1e6, 3),
        significant(row.validation_loss),
        f"{ratio(row.ratio)}{' best' if row.best else ''}",
        "–" if row.of_limit is None else f"{row.of_limit:.0%}",
    )


def _milliseconds(seconds: float | None) -> str:
    return significant(None if seconds is None else seconds * 1e3, 3)
