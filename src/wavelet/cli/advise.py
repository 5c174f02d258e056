"""`wavelet advise`: measures the ordinary loop, one wave and two, and says what to use and what it gains.

The fields of its JSON: ``job``, ``seed``, ``threads``, ``machine``, ``versions``; ``systems``, each with ``system`` and
``samples_per_second`` (the median of three rounds in turn); ``advice``, one sentence; ``use``, ``plain``, ``1`` or
``2`` waves; ``gain``, of what to use over the ordinary loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavelet.cli.options import (
    BatchSize,
    Force,
    JobName,
    Json,
    Seed,
    Threads,
    about,
    first_batches,
    json_file,
    load_job,
    set_threads,
)
from wavelet.report.numbers import mebibytes, ratio, significant
from wavelet.report.progress import Bar
from wavelet.report.tables import Table, show

if TYPE_CHECKING:
    from wavelet.jobs import Job

__all__ = ["advise"]

NAMES = {"plain": "ordinary loop", 1: "one wave", 2: "two waves"}
WORTH_IT = 1.03
"""Less than this is within what such a short comparison can tell."""


def advise(
    job: JobName,
    *,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="Of each of three rounds of each.")] = 1.0,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
    force: Force = False,
) -> None:
    """Measure one and two waves for a few seconds, and say what to use."""
    target = json_file(json, force)
    set_threads(threads)
    loaded = load_job(job, seed=seed, batch_size=batch_size)
    from wavelet.alternatives import profile_job
    from wavelet.measure import ROUNDS, compare
    from wavelet.planning.plan import make_plan

    batches = first_batches(loaded, 16)
    rounds = 0

    def on_round() -> None:
        nonlocal rounds
        rounds += 1
        bar.update(rounds)

    with Bar(f"measuring {loaded.name}", ROUNDS * len(NAMES)) as bar:
        found = compare(_systems(loaded), loaded.model, loaded.optimizer, None, batches, seconds, on_round)
        tight = make_plan(profile_job(loaded, batches[0]), "1x", 2)
    rates = {system: rate * loaded.samples_per_batch for system, rate in found.items()}
    use, gain, sentence = judge(rates)
    if target:
        systems = [{"system": NAMES[system], "samples_per_second": rate} for system, rate in rates.items()]
        advice = {"systems": systems, "advice": sentence, "use": str(use), "gain": gain}
        target.write({"command": "advise", **about(loaded, seed), **advice})
    table = Table(loaded.name, ("", "samples/s", "× ordinary"), numbers=("samples/s", "× ordinary"))
    for system, rate in rates.items():
        table.row(NAMES[system], significant(rate), ratio(rate / rates["plain"]))
    show(table)
    print(sentence)
    if use == 2:
        step = mebibytes(tight.one_wave_step_bytes)
        share = tight.samples_per_second / rates[2]
        print(f"Within one wave's step memory ({step} MiB, --budget 1x) they keep about {share:.0%} of that speed.")


def judge(rates: dict[Any, float]) -> tuple[Any, float, str]:
    """What to use, what it gains over the ordinary loop, and the sentence that says so."""
    plain = rates["plain"]
    use = max(rates, key=lambda system: rates[system])
    gain = rates[use] / plain
    two = f"two waves reach {rates[2] / plain:.2f} × the speed of the ordinary loop"
    if use == "plain" or gain < WORTH_IT:
        return "plain", 1.0, f"Waves do not pay here: {two}; keep the ordinary loop."
    one = rates[1] / plain
    if one >= WORTH_IT and rates[2] < WORTH_IT * rates[1]:
        return 1, one, f"A second wave does not pay here: {two}, one wave {one:.2f} ×; use waves=1."
    return 2, gain, f"Use two waves: they train at {gain:.2f} × the speed of the ordinary loop."


def _systems(job: Job) -> dict[Any, Any]:
    import dataclasses

    from wavelet.bench.loops import PlainLoop, WavesLoop

    def on(model: Any, optimizer: Any) -> Job:
        return dataclasses.replace(job, model=model, optimizer=optimizer, scheduler=None)

    return {
        "plain": lambda model, optimizer: PlainLoop(on(model, optimizer)),
        1: lambda model, optimizer: WavesLoop(on(model, optimizer), waves=1),
        2: lambda model, optimizer: WavesLoop(on(model, optimizer), waves=2),
    }
