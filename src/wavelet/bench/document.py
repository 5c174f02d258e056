"""A bench's results as JSON fields; the names and units here are stable under one `schema_version`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from wavelet.bench.rounds import Results
from wavelet.bench.verdict import NOT_IN_MEAN, Verdict, geometric_mean, judge, make_rows

__all__ = ["document", "entry", "geometric_means"]


def document(results: Sequence[Results]) -> dict[str, Any]:
    """The measurements, and what follows from them.

    Returns:
        ``measurements``: every run, as `Measurement`, with its job and allocator.
        ``failures``: systems that could not be measured, as `Failure`.
        ``rows``: the tables, as `Row`. ``verdicts``: as `Verdict`.
        ``geometric_means``: for each allocator, ``over_ddp`` over the jobs without mlp-small-ops.
    """
    return {
        "measurements": [entry(table, run) for table in results for run in table.measurements],
        "failures": [entry(table, failure) for table in results for failure in table.failures],
        "rows": [entry(table, row) for table in results for row in make_rows(table)],
        "verdicts": [asdict(judge(table)) for table in results],
        "geometric_means": geometric_means([judge(table) for table in results]),
    }


def geometric_means(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """For each allocator the geometric mean of `over_ddp`, and the jobs that it is of."""
    means = []
    for allocator in dict.fromkeys(verdict.allocator for verdict in verdicts):
        ratios = {
            verdict.job: verdict.over_ddp
            for verdict in verdicts
            if verdict.allocator == allocator and verdict.over_ddp is not None and verdict.job != NOT_IN_MEAN
        }
        means.append({"allocator": allocator, "over_ddp": geometric_mean(ratios.values()), "jobs": list(ratios)})
    return means


def entry(table: Any, part: Any) -> dict[str, Any]:
    """The fields of a dataclass that has a system, with the job and the allocator of its table."""
    fields = asdict(part)
    system = {"name": part.system.name, **fields.pop("system")}
    return {"job": table.plan.job, "allocator": table.allocator, "system": system, **fields}
