"""`wavelet plan`: how many waves, and which interlock, are the fastest within a budget.

The fields of its JSON: ``job``, ``seed``, ``threads``, ``machine``, ``versions``, and ``plan``, which
`wavelet.Plan.from_json` takes.
"""

from __future__ import annotations

from typing import Annotated

import typer

from wavelet.cli.options import (
    Accumulate,
    BatchSize,
    Force,
    JobName,
    Json,
    Refusal,
    Rule,
    Seed,
    Threads,
    about,
    first_batches,
    json_file,
    load_job,
    refusing,
    set_threads,
)
from wavelet.report.progress import Bar

__all__ = ["plan"]


def plan(
    job: JobName,
    *,
    budget: Annotated[str, typer.Option(help="1.25x of one wave's step memory, or 2GiB in all.")],
    waves: Annotated[str, typer.Option(help="auto, or a number.")] = "auto",
    update: Annotated[Rule, typer.Option(help="The update rule.")] = Rule.neighbour,
    accumulate: Accumulate = 1,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
    force: Force = False,
) -> None:
    """Plan the fastest schedule of a job within a memory budget, and show it."""
    target = json_file(json, force)
    if waves != "auto" and not (waves.isdecimal() and 1 <= int(waves) <= 3):
        raise Refusal(f"--waves {waves} makes no sense: give auto, 1, 2 or 3")
    from wavelet.alternatives import profile_job
    from wavelet.planning.budget import Budget
    from wavelet.planning.plan import make_plan

    with refusing(ValueError):
        wanted = Budget.of(int(budget) if budget.isdecimal() else budget)
    set_threads(threads)
    loaded = load_job(job, seed=seed, batch_size=batch_size)
    counts = (1, 2) if waves == "auto" else tuple(sorted({1, int(waves)}))
    with Bar(f"profiling {loaded.name}", None):
        found = profile_job(loaded, first_batches(loaded, 1)[0], waves=counts)
    with refusing(ValueError):
        made = make_plan(
            found, wanted, "auto" if waves == "auto" else int(waves), update=update.value, accumulate=accumulate
        )
    if target:
        target.write({"command": "plan", **about(loaded, seed), "plan": made.to_json()})
    print(made, end="")
