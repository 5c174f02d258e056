"""`wavelet jobs`: lists the built-in jobs."""

from __future__ import annotations

from wavelet.cli.options import Force, Json, json_file
from wavelet.report.machine import versions
from wavelet.report.numbers import count
from wavelet.report.tables import Table, show

__all__ = ["jobs"]


def jobs(json: Json = None, force: Force = False) -> None:
    """List the built-in jobs."""
    target = json_file(json, force)
    entries: list = []
    table = Table("Built-in jobs", ("job", "model", "data", "parameters", "batch"), numbers=("parameters", "batch"))
    for entry in entries:
        table.row(entry["job"], entry["model"], entry["data"], count(entry["parameters"]), str(entry["batch"]))
    show(table)
    if target:
        target.write({"command": "jobs", "versions": versions(), "jobs": entries})
