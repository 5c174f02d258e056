"""`wavelet profile`: what one step of a job costs, block by block.

The fields of its JSON: ``job``, ``seed``, ``samples_per_batch``, ``threads``, ``machine``, ``versions``, and
``profile``, which `wavelet.Profile.from_json` takes.
"""

from __future__ import annotations

from typing import Annotated

import typer

from wavelet.cli.options import (
    BatchSize,
    Force,
    JobName,
    Json,
    Report,
    Seed,
    Threads,
    about,
    first_batches,
    json_file,
    load_job,
    output_file,
    set_threads,
    waves_to_measure,
)
from wavelet.report.progress import Bar

__all__ = ["profile"]


def profile(
    job: JobName,
    *,
    waves: Annotated[str, typer.Option(help="Numbers of waves to measure.")] = "1,2",
    batch_size: BatchSize = None,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
    report: Report = None,
    force: Force = False,
) -> None:
    """Measure what one step of a job costs, block by block, in bytes and seconds."""
    target, page = json_file(json, force), output_file(report, force)
    counts = waves_to_measure(waves)
    set_threads(threads)
    loaded = load_job(job, seed=seed, batch_size=batch_size)
    (batch,) = first_batches(loaded, 1)
    from wavelet.alternatives import profile_job

    with Bar(f"profiling {loaded.name}", None):
        found = profile_job(loaded, batch, waves=counts)
    if target:
        target.write({"command": "profile", **about(loaded, seed), "profile": found.to_json()})
    if page:
        from wavelet.cli.reports import page_of_profile

        page.write_text(page_of_profile(loaded, seed, found, batch))
    print(found)
