"""`wavelet simulate`: what ways to train would give on a cluster that is described, not there.

The fields of its JSON: ``versions``; ``cluster`` and ``model``, what was simulated; ``outcomes``, one for each strategy
with the fields of `wavelet.planning.comparison.Outcome`; ``over_ranks`` and ``over_bandwidths``, lists of the same, the
latter with ``bytes_per_second``, null where neither `--ranks` or `--rates` nor a page asked for them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavelet.cli.options import (
    BatchSize,
    Force,
    Json,
    Refusal,
    Report,
    Seed,
    Threads,
    json_file,
    output_file,
    refusing,
    waves_to_measure,
)
from wavelet.cli.simulated import Model, measure_profile, model_of_file, model_of_profile, read_profile
from wavelet.report.machine import versions
from wavelet.report.progress import Bar
from wavelet.report.simulation import (
    areas_sentence,
    bandwidth_table,
    efficiency_table,
    outcome_table,
    rate_text,
    verdict,
)
from wavelet.report.tables import show

if TYPE_CHECKING:
    from wavelet.planning.cluster import Cluster
    from wavelet.planning.cluster_file import ClusterFile
    from wavelet.planning.comparison import Outcome
    from wavelet.planning.strategies import Strategy

__all__ = ["simulate"]

_MOST_PERIOD = 1000
_RATES = tuple(2.0**exponent for exponent in range(-6, 7))
"""Of the picture over bandwidths, relative to the cluster's."""


def simulate(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER", help="A TOML file that describes the cluster.")],
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="A job to profile, or the JSON of wavelet profile.", show_default=False),
    ] = None,
    *,
    period: Annotated[int, typer.Option(min=1, max=_MOST_PERIOD, help="H of local SGD and DreamDDP.")] = 8,
    waves: Annotated[str, typer.Option(help="Numbers of waves to simulate.")] = "2",
    budget: Annotated[str | None, typer.Option(help="Waves within so much memory.", show_default="free")] = None,
    ranks: Annotated[str | None, typer.Option(help="Efficiency over these, as 2,4,8.", show_default="none")] = None,
    rates: Annotated[str | None, typer.Option(help="Speed over these, as 10mbit,1gbit.", show_default="none")] = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = None,
    report: Report = None,
    force: Force = False,
) -> None:
    """Simulate DDP, Wavelet, local SGD and DreamDDP on a cluster."""
    target, page = json_file(json, force), output_file(report, force)
    counts = waves_to_measure(waves)
    numbers, bandwidths = _numbers(ranks), _bandwidths(rates)
    from wavelet.planning.advice import areas
    from wavelet.planning.cluster_file import read_cluster
    from wavelet.planning.comparison import compare, over_bandwidths, over_ranks

    with refusing(ValueError):
        described = read_cluster(cluster)
        for number in numbers:
            described.cluster.resized(number)
    if job is None:
        model = model_of_file(cluster, described, counts, budget)
    else:
        found = (
            read_profile(Path(job), counts)
            if job.endswith(".json")
            else measure_profile(job, counts, seed=seed, batch_size=batch_size, threads=threads)
        )
        model = model_of_profile(Path(job).stem, found, counts, budget)
    strategies = _strategies(model, described.bucket_bytes, period)
    setting = (strategies, lambda strategy: model.layers[strategy.waves])
    alone = model.layers[1].alone
    with Bar("simulating", None):
        outcomes = compare(*setting, described.cluster, alone)
        if not numbers and page:
            numbers = _powers(described.cluster)
        by_ranks = over_ranks(*setting, described.cluster, alone, numbers)
        if not bandwidths and page:
            bandwidths = [share * described.cluster.inter.bytes_per_second for share in _RATES]
        by_rate = over_bandwidths(*setting, described.cluster, alone, bandwidths)
        rows = list(zip(bandwidths, by_rate, strict=True))
    if target:
        target.write({**_about(described, model), **_fields(outcomes, by_ranks, rows)})
    title = _title(model.name, described.cluster)
    if page:
        from wavelet.report.simulation_page import SimulationPage, render_simulation

        about = {
            "command": shlex.join(["wavelet", *sys.argv[1:]]),
            "cluster": str(cluster),
            "versions": f"wavelet {versions()['wavelet']}",
        }
        shown = SimulationPage(title, described.cluster, outcomes, by_ranks, rows, verdict(outcomes), about)
        page.write_text(render_simulation(shown))
    show(outcome_table(title, outcomes))
    if ranks:
        show(efficiency_table(by_ranks))
    if rates:
        show(bandwidth_table(rows))
        print(areas_sentence(areas(rows)))
    print("\n".join(verdict(outcomes)))


def _numbers(text: str | None) -> list[int]:
    """The numbers of ranks in a list such as ``2,4,8``.

    Raises:
        Refusal: one is no number of ranks.
    """
    from wavelet.planning.cluster import MOST_RANKS

    parts = [part.strip() for part in text.split(",")] if text is not None else []
    for part in parts:
        if not part.isdecimal() or not 1 <= int(part) <= MOST_RANKS:
            raise Refusal(f"--ranks {text} makes no sense: give numbers from 1 to {MOST_RANKS:,}, such as 2,4,8")
    return sorted({int(part) for part in parts})


def _bandwidths(text: str | None) -> list[float]:
    """The bytes a second in a list of rates such as ``10mbit,1gbit``, ascending.

    Raises:
        Refusal: one is no rate.
    """
    from wavelet.planning.quantities import bits_per_second

    if text is None:
        return []
    try:
        return sorted({bits_per_second(part.strip()) / 8 for part in text.split(",")})
    except ValueError as error:
        raise Refusal(f"--rates {text}: {error}") from error


def _powers(cluster: Cluster) -> list[int]:
    """Hosts doubled until there are as many as the cluster has, and twice more."""
    counts = [cluster.ranks_per_host]
    while counts[-1] < 4 * cluster.num_ranks and counts[-1] * 2 <= 2**15:
        counts.append(2 * counts[-1])
    return counts


def _strategies(model: Model, bucket_bytes: float, period: int) -> list[Strategy]:
    from wavelet.planning.strategies import dream, local, naive, wait_free, waves

    several = [waves(count, bucket_bytes, interlock) for count, interlock in model.interlocks.items()]
    return [naive(), wait_free(bucket_bytes), *several, local(period), dream(period)]


def _about(described: ClusterFile, model: Model) -> dict[str, Any]:
    """The fields that say what was simulated."""
    return {
        "command": "simulate",
        "versions": versions(),
        "cluster": asdict(described.cluster) | {"bucket_bytes": described.bucket_bytes},
        "model": {"name": model.name, "layers": [{"waves": k, **asdict(v)} for k, v in model.layers.items()]},
    }


def _fields(
    outcomes: Sequence[Outcome],
    by_ranks: Sequence[Sequence[Outcome]],
    rows: Sequence[tuple[float, Sequence[Outcome]]],
) -> dict[str, Any]:
    """The fields that say what came of it."""
    over_bandwidths = [{"bytes_per_second": rate, **asdict(outcome)} for rate, row in rows for outcome in row]
    return {
        "outcomes": list(map(asdict, outcomes)),
        "over_ranks": [asdict(outcome) for row in by_ranks for outcome in row] or None,
        "over_bandwidths": over_bandwidths or None,
    }


def _title(name: str, cluster: Cluster) -> str:
    hosts = f"{cluster.hosts} host" + "s" * (cluster.hosts > 1)
    per = f" of {cluster.ranks_per_host} ranks" if cluster.ranks_per_host > 1 else ""
    return f"{name} on {hosts}{per}, {rate_text(cluster.inter.bytes_per_second)}, {cluster.all_reduce}"
