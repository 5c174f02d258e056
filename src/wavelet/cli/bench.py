"""`wavelet bench`: compares Wavelet with the plain loop and with data parallelism, job by job.

The fields of its JSON: ``command_line``, ``machine``, ``versions``, ``options``, and those of `wavelet.bench.document`.
"""

from __future__ import annotations

import functools
import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from wavelet.bench.allocators import INSTALL_TCMALLOC, environment, find_tcmalloc, standard_allocator
from wavelet.bench.document import document, geometric_means
from wavelet.bench.launch import RunFailed
from wavelet.bench.progress import BenchProgress
from wavelet.bench.rounds import Plan, Results, calibrate, take_turns
from wavelet.bench.systems import System, choose_systems, round_up
from wavelet.bench.tables import results_table
from wavelet.bench.verdict import judge, make_rows, sentences
from wavelet.cli.bench_ranks import RanksSetting, bench_ranks, check_ranks
from wavelet.cli.options import BatchSize, Force, Json, Refusal, Rule, Seed, given, json_file, load_job, refusing
from wavelet.report.machine import available_cores, machine, versions
from wavelet.report.progress import Bar
from wavelet.report.tables import show

__all__ = ["bench"]

_CALIBRATION_BATCHES = 10
_SECONDS = 5.0
_NOT_OF_RANKS = ("against", "waves", "update", "compile", "demo")


@dataclass(frozen=True)
class _Setting:
    """What all jobs have in common."""

    systems: Sequence[System]
    allocators: Sequence[str]
    seconds: float
    steps: int | None
    rounds: int
    waves: int
    seed: int
    batch_size: int | None


def bench(
    context: typer.Context,
    jobs: Annotated[list[str], typer.Argument(metavar="JOB…", help="Built-in jobs or job files.")],
    *,
    against: Annotated[str, typer.Option(help="plain, or plain,ddp.")] = "plain,ddp",
    seconds: Annotated[float | None, typer.Option(min=0.1, help="A timed run, about.", show_default="5")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Timed batches, instead of --seconds.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Runs of each system.", show_default="3")] = None,
    waves: Annotated[int, typer.Option(min=2, help="Waves, and processes of DDP.")] = 2,
    update: Annotated[list[Rule] | None, typer.Option(help="A rule; repeatable.", show_default="all")] = None,
    compile: Annotated[bool | None, typer.Option(help="Compiled systems too.", show_default="compile")] = None,
    allocators: Annotated[str | None, typer.Option(help="glibc,tcmalloc,pool.", show_default="those found")] = None,
    ranks: Annotated[int | None, typer.Option(min=2, help="Over so many processes, against DDP.")] = None,
    rate: Annotated[str | None, typer.Option(help="Of each rank's link, as 500mbit.", show_default="one host")] = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    demo: Annotated[bool, typer.Option("--demo", help="In a minute or two: the plain loop and two waves.")] = False,
    json: Json = None,
    force: Force = False,
) -> None:
    """Compare Wavelet with the plain loop and with data parallelism: in turn, in fresh processes."""
    target = json_file(json, force)
    if seconds and not math.isfinite(seconds):
        raise Refusal(f"--seconds {seconds} makes no sense: give a number")
    if steps and seconds:
        raise Refusal("give --steps or --seconds, not both")
    check_ranks(ranks, rate, given(context, *_NOT_OF_RANKS))
    if ranks:
        over_ranks = RanksSetting(
            ranks=ranks,
            rate=rate,
            allocators=_allocators(allocators, demo),
            seconds=None if steps else seconds or _SECONDS,
            steps=steps,
            rounds=rounds or 3,
            seed=seed,
            batch_size=batch_size,
        )
        bench_ranks(jobs, over_ranks, lambda fields: target.write({**_about(over_ranks), **fields}) if target else None)
        return
    systems = choose_systems(
        against=_names("--against", against, ("plain", "ddp")),
        waves=waves,
        updates=list(dict.fromkeys(rule.value for rule in update or (list(Rule)[:1] if demo else Rule))),
        threads=_thread_counts(),
        compile=not demo if compile is None else compile,
        extras=not demo,
    )
    setting = _Setting(
        systems=systems,
        allocators=_allocators(allocators, demo),
        seconds=seconds or _SECONDS,
        steps=steps,
        rounds=rounds or (2 if demo else 3),
        waves=waves,
        seed=seed,
        batch_size=batch_size,
    )
    plans = [_plan(job, setting) for job in dict.fromkeys(jobs)]
    finished: list[Results] = []
    with Bar("starting", len(plans) * len(setting.allocators) * setting.rounds * len(systems)) as bar:
        for results in _compare(plans, setting, BenchProgress(bar, announce=demo)):
            finished.append(results)
            if target:  # before anything is printed, which can fail
                target.write(_fields(setting, finished))
            with bar.aside():
                _show(results)
    _conclude(finished)
    for failure in (failure for results in finished for failure in results.failures if not failure.system.compile):
        raise RunFailed(f"{failure.system.name}: {failure.reason}", failure.details)


def _names(option: str, text: str, known: Sequence[str]) -> list[str]:
    """The names in a comma-separated list, each once.

    Raises:
        Refusal: one is not among `known`.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise Refusal(f"{option} {text}: {name!r} is not one of {', '.join(known)}")
    return names


def _thread_counts() -> list[int]:
    """The plain loop's: one, PyTorch's own choice, and every core."""
    import torch

    return sorted({1, torch.get_num_threads(), available_cores()})


def _allocators(text: str | None, demo: bool) -> list[str]:
    """The allocators to compare under: those asked for, or those installed; for a demo the standard one."""
    if text is None:
        return [standard_allocator(), *(["tcmalloc"] if find_tcmalloc() and not demo else [])]
    names = _names("--allocators", text, (standard_allocator(), "tcmalloc", "pool"))
    for name in names:
        with refusing(ValueError):
            environment(name)
    return names


def _plan(spec: str, setting: _Setting) -> Plan:
    """The plan for a job that can be loaded, before it is known how long its steps take."""
    job = load_job(spec, seed=setting.seed, batch_size=setting.batch_size)
    return Plan(
        job=job.name,
        spec=spec,
        waves=setting.waves,
        batches=round_up(setting.steps or _CALIBRATION_BATCHES, setting.waves),
        rounds=setting.rounds,
        seed=setting.seed,
        batch_size=setting.batch_size,
    )


def _compare(plans: Sequence[Plan], setting: _Setting, progress: BenchProgress) -> Iterator[Results]:
    """The results of each job under each allocator, as they come."""
    for draft in plans:
        plan = draft if setting.steps else _calibrated(draft, setting, progress)
        for allocator in setting.allocators:
            results = Results(plan, allocator, setting.systems)
            take_turns(results, functools.partial(progress.running, results))
            yield results


def _calibrated(plan: Plan, setting: _Setting, progress: BenchProgress) -> Plan:
    """The plan with batches for `setting.seconds` of the plain loop, the same for every system and allocator."""
    return calibrate(
        plan,
        [system for system in setting.systems if system.kind == "plain" and not system.compile],
        seconds=setting.seconds,
        allocator=setting.allocators[0],
        on_event=functools.partial(progress.calibrating, plan),
    )


def _show(results: Results) -> None:
    """The table of one job under one allocator, and its verdict."""
    plan = results.plan
    rounds = f"{plan.rounds} round" + "s" * (plan.rounds > 1)
    title = f"{plan.job} under {results.allocator}: {plan.batches} batches, {rounds}"
    show(results_table(title, make_rows(results)))
    for failure in results.failures:
        print(f"{failure.system.name} {'does not compile' if failure.system.compile else 'fails'}: {failure.reason}")
    print(*sentences(judge(results)), *_about_losses(results), sep="\n", end="\n\n")


def _about_losses(results: Results) -> list[str]:
    """Why losses at equal samples and one rate differ between systems."""
    waves = results.plan.waves
    if waves == 1 or not any(system.update in ("neighbour", "synchronous") for system in results.systems):
        return []
    return [
        "Losses are at equal samples and one learning rate, after a short run.",
        f"neighbour, synchronous and DDP update with the mean of {waves} batches:",
        f"they learn as a plain loop with {waves} times the batch.",
    ]


def _conclude(finished: Sequence[Results]) -> None:
    """What holds over all tables."""
    for mean in geometric_means([judge(results) for results in finished]):
        if len(mean["jobs"]) > 1:
            over = f"{mean['over_ddp']:.2f} × DDP, geometric mean over {', '.join(mean['jobs'])}."
            print(f"Under {mean['allocator']}: Wavelet is {over}")
    if not find_tcmalloc():
        print(f"tcmalloc is not installed, so it was not compared: {INSTALL_TCMALLOC}")


def _fields(setting: _Setting, finished: Sequence[Results]) -> dict[str, Any]:
    """The JSON document of what has been finished so far."""
    about = _about(setting)
    options = {**about.pop("options"), "systems": [system.name for system in setting.systems]}
    return {**about, "options": options, **document(finished)}


def _about(setting: _Setting | RanksSetting) -> dict[str, Any]:
    """The fields that say what was asked, and where it ran."""
    return {
        "command": "bench",
        "command_line": shlex.join(["wavelet", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
        "options": asdict(setting),
    }
