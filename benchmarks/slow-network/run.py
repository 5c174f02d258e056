"""Training over hosts with slow links: Wavelet's exchanges, DDP and local SGD of others, in turn.

python benchmarks/slow-network/run.py --job char-gpt --hosts 2 --rates 50mbit,500mbit --json results.json
"""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from picture import draw
from rounds import Plan, Results, take_turns
from summary import Row, make_rows
from systems import SYSTEMS

from wavelet.bench.allocators import environment
from wavelet.bench.hosts import bits_per_second, why_not
from wavelet.bench.launch import Event
from wavelet.cli.options import Refusal, load_job
from wavelet.jobs import Job
from wavelet.jobs.loading import JobFileError
from wavelet.report.jsonfile import JsonFile
from wavelet.report.machine import available_cores, machine, versions
from wavelet.report.numbers import count, ratio, significant
from wavelet.report.outputfile import OutputFile
from wavelet.report.progress import Bar
from wavelet.report.tables import Table, show

_INTERRUPTED = 130


def main() -> int:
    """Measure, print, write; 1 if a system failed, 2 with one sentence where what was asked makes no sense."""
    arguments = _arguments()
    try:
        plan, job, files = _check(arguments)
    except (Refusal, ValueError) as error:
        print(f"slow-network: {error}", file=sys.stderr)
        return 2
    except JobFileError as error:
        print(f"slow-network: {error}", file=sys.stderr)
        return 1
    left_out = {name: reason for name in arguments.systems if (reason := SYSTEMS[name].why_not(job)) is not None}
    for name, reason in left_out.items():
        print(f"{name} is left out: {reason}", file=sys.stderr)
    systems = [name for name in arguments.systems if name not in left_out]
    if not systems:
        return 2
    if plan.hosts > (cores := available_cores()):
        print(f"{plan.hosts} hosts share {cores} cores: steps take longer than with a core for each", file=sys.stderr)
    about = _about(plan, job, left_out)
    try:
        return _measure(plan, arguments.rates, systems, about, *files)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _measure(
    plan: Plan,
    rates: list[str],
    systems: list[str],
    about: dict[str, Any],
    document: JsonFile | None,
    picture: OutputFile | None,
) -> int:
    with Bar("starting", len(rates) * plan.rounds * len(systems)) as bar:
        write = functools.partial(_write, about, document)
        results = take_turns(plan, rates, systems, on_event=_mover(bar, plan), on_round=write)
    rows = make_rows(results.runs)
    if rows and picture is not None:
        title = f"{plan.job}: {count(about['parameters'])} parameters, {plan.hosts} hosts, period {plan.period}"
        draw(title, rows, results.runs, picture.path)
    for rate in rates:
        show(_table(plan, rate, [row for row in rows if row.rate == rate]))
    print("MB: what a rank sends a step, counted on its link. loss: at equal samples.")
    print("then: loss when the fastest of the table is at its end. ratio: times as fast as ddp.")
    for failure in results.failures:
        print(f"{failure.system} failed at {failure.rate}: {failure.reason}", file=sys.stderr)
    return 1 if results.failures else 0


def _mover(bar: Bar, plan: Plan) -> Callable[[str, Event], None]:
    """What moves the bar by the runs' events."""
    finished = 0

    def move(title: str, event: Event) -> None:
        nonlocal finished
        finished += event["event"] == "finish"
        note = f"loss {significant(event['loss'])}" if "loss" in event else ""
        bar.update(finished + event.get("done", 0) / plan.steps, note, title)

    return move


def _write(about: dict[str, Any], file: JsonFile | None, results: Results) -> None:
    """The fields: `_about`'s; ``runs`` as `Run`, ``failures`` as `Failure` and ``rows`` as `Row`."""
    if file is not None:
        file.write(
            {
                **about,
                "runs": [asdict(run) for run in results.runs],
                "failures": [asdict(failure) for failure in results.failures],
                "rows": [asdict(row) for row in make_rows(results.runs)],
            }
        )


def _about(plan: Plan, job: Job, left_out: dict[str, str]) -> dict[str, Any]:
    try:
        accelerate = version("accelerate")
    except PackageNotFoundError:
        accelerate = None
    return {
        "command": shlex.join(["python", *sys.argv]),
        "machine": machine(),
        "versions": {**versions(), "accelerate": accelerate},
        "plan": asdict(plan),
        "parameters": sum(parameter.numel() for parameter in job.model.parameters()),
        "left_out": left_out,
    }


def _table(plan: Plan, rate: str, rows: list[Row]) -> Table:
    numbers = ("ms", "low–high", "MB", "loss", "then", "ratio")
    rounds = f"{plan.rounds} round" + "s" * (plan.rounds > 1)
    title = f"{plan.job}, {plan.hosts} hosts, {rate}, period {plan.period}: {plan.steps} steps, {rounds}"
    table = Table(title, ("system", *numbers), numbers=numbers)
    for row in rows:
        low, middle, high = (
            significant(1e3 * seconds, 3) for seconds in (row.lowest, row.seconds_per_step, row.highest)
        )
        figures = (significant(row.sent_bytes_per_step / 1e6, 3), significant(row.loss), significant(row.loss_then))
        table.row(row.system, middle, f"{low}–{high}", *figures, ratio(row.over_ddp))
    return table


def _check(arguments: argparse.Namespace) -> tuple[Plan, Job, tuple[JsonFile | None, OutputFile | None]]:
    """What is to be done, once it makes sense.

    Raises:
        ValueError, Refusal: it does not.
    """
    reason = why_not()
    if reason is not None:
        raise ValueError(f"there can be no hosts here: {reason}")
    # Each wave counts its own updates, so a period of K waves takes K times as many steps.
    whole = arguments.period * max(SYSTEMS[name].waves for name in arguments.systems)
    warmup = 2 * whole if arguments.warmup is None else arguments.warmup
    for name, steps, of in (("warmup", warmup, whole), ("steps", arguments.steps, whole * arguments.validations)):
        if steps % of:
            raise ValueError(
                f"--{name} {steps} is not possible: a period of all waves takes {whole} steps, and the warm-up and the "
                f"steps before each of {arguments.validations} validations are whole ones: give a multiple of {of}"
            )
    environment(arguments.allocator)
    job = load_job(arguments.job, seed=arguments.seed, batch_size=arguments.batch_size)
    if job.validation is None:
        raise ValueError(f"the job {job.name} has no validation data, so there is no loss to compare")
    path: Path | None = arguments.json
    force = arguments.force
    files = (JsonFile(path, force=force), OutputFile(path.with_suffix(".png"), force=force)) if path else (None, None)
    same = {name: getattr(arguments, name) for name in ("hosts", "max_norm", "steps", "validations", "rounds", "seed")}
    plan = Plan(
        job=job.name,
        spec=arguments.job,
        period=arguments.period,
        warmup=warmup,
        batch_size=arguments.batch_size,
        allocator=arguments.allocator,
        **same,
    )
    return plan, job, files


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="char-gpt", help="a built-in job or a job file (char-gpt)")
    parser.add_argument("--hosts", type=_at_least(2), default=2, help="each is one rank on one core (2)")
    parser.add_argument("--rates", type=_rates, default="50mbit,100mbit,200mbit,500mbit", help="of each link, in turn")
    parser.add_argument("--systems", type=_systems, default=",".join(SYSTEMS), help=", ".join(SYSTEMS))
    parser.add_argument("--period", type=_at_least(2), default=10, help="updates of a wave between two averagings (10)")
    parser.add_argument("--max-norm", type=float, default=1.0, help="of a local gradient, for celgc (1)")
    parser.add_argument("--warmup", type=_at_least(1), help="steps before the clock starts (two periods)")
    parser.add_argument("--steps", type=_at_least(1), default=80, help="timed steps (80)")
    parser.add_argument("--validations", type=_at_least(1), default=4, help="during the timed steps (4)")
    parser.add_argument("--rounds", type=_at_least(1), default=3, help="in which all systems take turns (3)")
    parser.add_argument("--seed", type=int, default=0, help="of the first round (0)")
    parser.add_argument("--batch-size", type=_at_least(1), help="samples in a batch of one rank (the job's own)")
    parser.add_argument("--allocator", default="glibc", help="glibc, tcmalloc or pool, for all systems (glibc)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for the results; a picture FILE.png is drawn beside")
    parser.add_argument("--force", action="store_true", help="overwrite files that are there")
    return parser.parse_args()


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not possible: give {least} or more")
        return int(text)

    return number


def _rates(text: str) -> list[str]:
    rates = list(dict.fromkeys(text.split(",")))
    try:
        for rate in rates:
            bits_per_second(rate)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return rates


def _systems(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in SYSTEMS:
            raise argparse.ArgumentTypeError(f"there is no system {name}: name some of {', '.join(SYSTEMS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
