"""`wavelet jobs`: lists the built-in jobs.

The fields of its JSON: ``versions``, and ``jobs``, each with ``job``, ``what``, ``parameters``, ``samples_per_batch``.
"""

from __future__ import annotations

from typing import Any

from wavelet.cli.options import Force, Json, json_file, load_job
from wavelet.report.machine import versions
from wavelet.report.numbers import count
from wavelet.report.tables import Table, show

__all__ = ["jobs"]


def jobs(json: Json = None, force: Force = False) -> None:
    """List the built-in jobs."""
    import wavelet.jobs

    target = json_file(json, force)
    entries = [_entry(name, wavelet.jobs.describe(name)) for name in wavelet.jobs.names()]
    table = Table("Built-in jobs", ("job", "what", "parameters", "batch"), numbers=("parameters", "batch"))
    for entry in entries:
        table.row(entry["job"], entry["what"], count(entry["parameters"]), str(entry["samples_per_batch"]))
    show(table)
    if target:
        target.write({"command": "jobs", "versions": versions(), "jobs": entries})


def _entry(name: str, what: str) -> dict[str, Any]:
    job = load_job(name, seed=0, batch_size=None)
    num_parameters = sum(parameter.numel() for parameter in job.model.parameters())
    return {"job": name, "what": what, "parameters": num_parameters, "samples_per_batch": job.samples_per_batch}
