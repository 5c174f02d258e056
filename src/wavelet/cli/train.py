"""`wavelet train`: trains a job in waves, or with the ordinary loop.

The fields of its JSON: what was asked (``job``, ``seed``, ``samples_per_batch``, ``threads``, ``compile``, ``waves``,
``update``, which is ``plain`` for the ordinary loop, ``accumulate``, ``resync``, ``budget``, ``exchange``, null on
one rank); ``resumed_from``, the
step of the checkpoint from which the run went on, null for none; ``steps`` and ``samples`` trained in this process;
``timed_steps`` and ``timed_seconds``, without the warm-up, and ``samples_per_second`` over them, of all ``ranks``;
``losses`` of these steps, ``training_loss`` (mean of the last ten), ``validation_loss`` and ``validation_accuracy``,
null for none;
``peak_resident_bytes`` before the validation; ``plan``, which `wavelet.Plan.from_json` takes, null without a budget;
``machine`` and ``versions``.
"""

from __future__ import annotations

import contextlib
import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavelet.bench.loops import Loop, PlainLoop, WavesLoop
from wavelet.cli.exchange import (
    BlockMomentum,
    Compress,
    ExchangeName,
    MaxNorm,
    Nesterov,
    Period,
    Strategy,
    Warmup,
    make_exchange,
    show_plan,
)
from wavelet.cli.options import (
    Accumulate,
    BatchSize,
    Force,
    JobName,
    Json,
    Refusal,
    Report,
    Rule,
    Seed,
    Threads,
    about,
    first_batches,
    given,
    json_file,
    load_job,
    output_file,
    refusing,
    set_threads,
)
from wavelet.cli.ranks import is_first, num_ranks, seed_rank
from wavelet.cli.saving import Every, Keep, Resume, Save, Saver, check_saving, make_saver
from wavelet.cli.training import NUM_FINAL_LOSSES, Outcome, run
from wavelet.planning.plan import BudgetError
from wavelet.report.numbers import mebibytes, significant
from wavelet.report.outputfile import OutputFile
from wavelet.report.tables import Table, show

if TYPE_CHECKING:
    from wavelet.exchange import Choice
    from wavelet.jobs import Job
    from wavelet.planning.plan import Plan

__all__ = ["train"]


def train(
    context: typer.Context,
    job: JobName,
    *,
    waves: Annotated[str, typer.Option(help="Waves on the device, or auto.")] = "2",
    budget: Annotated[str | None, typer.Option(help="1.25x of one wave's step memory, or 2GiB in all.")] = None,
    update: Annotated[Rule, typer.Option(help="The update rule.")] = Rule.neighbour,
    accumulate: Accumulate = 1,
    resync: Annotated[str, typer.Option(help="Updates between averaging waves: auto, none, or a number.")] = "auto",
    steps: Annotated[int | None, typer.Option(min=1, help="Batches to train.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data.", show_default="1")] = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    threads: Threads = None,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the model.")] = False,
    exchange: ExchangeName = Strategy.allreduce,
    period: Period = None,
    warmup: Warmup = 0,
    compress: Compress = None,
    max_norm: MaxNorm = None,
    block_momentum: BlockMomentum = None,
    nesterov: Nesterov = False,
    plain: Annotated[bool, typer.Option("--plain", help="Train the ordinary loop, to compare.")] = False,
    report: Report = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a Perfetto trace here.")] = None,
    save: Save = None,
    every: Every = None,
    resume: Resume = "never",
    keep: Keep = 2,
    json: Json = None,
    force: Force = False,
) -> None:
    """Train a job in waves, and show its speed, losses and peak memory. Under torchrun: on all ranks together."""
    if not is_first():  # rank 0 writes the files
        json = report = trace = None
    target, page, traced = json_file(json, force), output_file(report, force), output_file(trace, force)
    if len({file.path.resolve() for file in (target, page, traced) if file}) < sum(map(bool, (target, page, traced))):
        raise Refusal("--json, --report and --trace need a file each")
    options: dict[str, Any] = {
        "waves": _waves(waves),
        "update": update.value,
        "accumulate": accumulate,
        "resync": _resync(resync),
    }
    options["budget"] = _budget(budget, options["waves"], pictures=bool(page or traced))
    _check(
        given(context, "waves", "update", "resync", "budget", "report", "trace", "save"), options, plain, steps, epochs
    )
    arguments = {
        "period": period,
        "warmup": warmup,
        "compress": compress,
        "max_norm": max_norm,
        "block_momentum": block_momentum,
        "nesterov": nesterov,
    }
    choice = make_exchange(exchange, given(context, "exchange", *arguments), **arguments)
    at = check_saving(save, resume, given(context, "every", "resume", "keep"))
    set_threads(threads)
    loaded = load_job(job, seed=seed, batch_size=batch_size)
    seed_rank(seed)
    if plain:
        options = {"waves": 1, "update": "plain", "accumulate": accumulate, "resync": None, "budget": None}
    agreement = str(choice or "AllReduce()") if num_ranks() > 1 else None
    loop = _loop(loaded, options, compile, choice)
    saver: Saver | None = None
    if save is not None:
        assert isinstance(loop, WavesLoop)  # --plain does not know --save
        settings = {"compile": compile, **options}
        saver = make_saver(save, loaded, loop, settings, epochs=None if steps else epochs or 1, every=every, keep=keep)
        saver.begin(at, force=force)
    waves_of_warmup = 2 if waves == "auto" else options["waves"]
    with refusing(BudgetError), saver or contextlib.nullcontext():
        outcome = run(loaded, loop, waves_of_warmup, steps, epochs, record=bool(page or traced), saver=saver)
    plan = loop.engine.plan if isinstance(loop, WavesLoop) else None
    if plan is not None:
        options["waves"] = plan.waves
    elif isinstance(loop, WavesLoop):
        options["waves"] = loop.engine.waves
    if target:  # all files before anything is printed, which can fail
        result = {"command": "train", **about(loaded, seed), "compile": compile, **options}
        result |= {"exchange": agreement, **outcome.fields}
        target.write({**result, "plan": plan.to_json() if plan else None})
    if page or traced:
        _draw(loaded, seed, plan, outcome, page, traced)
    _show(loaded, options, outcome, plan, agreement)
    if isinstance(loop, WavesLoop):
        show_plan(loop.engine)
    if outcome.failure:
        raise outcome.failure


def _draw(
    job: Job, seed: int, plan: Plan | None, outcome: Outcome, page: OutputFile | None, traced: OutputFile | None
) -> None:
    if plan is None or not outcome.spans:
        raise Refusal("the run was too short for a report or a trace: give more --steps")
    if traced:
        from wavelet.report.trace import trace_events

        traced.write_text(json_format.dumps(trace_events(outcome.spans, plan.profile, plan.waves)) + "\n")
    if page:
        from wavelet.cli.reports import page_of_run

        (batch,) = first_batches(job, 1)
        page.write_text(page_of_run(job, seed, plan, outcome.spans, batch, outcome.fields["samples_per_second"]))


def _waves(text: str) -> int | str:
    """The engine's `waves` from what was typed."""
    if text == "auto":
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise Refusal(f"--waves {text} makes no sense: give auto or a whole number from 1")


def _budget(text: str | None, waves: int | str, *, pictures: bool) -> int | str | None:
    """The engine's `budget` from what was typed; for pictures one that nobody has to wait for."""
    if text is None:
        return (f"{2 if waves == 'auto' else waves}x") if pictures else None
    from wavelet.planning.budget import Budget

    budget = int(text) if text.isdecimal() else text
    with refusing(ValueError):
        Budget.of(budget)
    return budget


def _resync(text: str) -> int | str | None:
    """The engine's `resync` from what was typed."""
    if text in ("auto", "none"):
        return None if text == "none" else text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise Refusal(f"--resync {text} makes no sense: give auto, none or a whole number from 1")


def _check(typed: list[str], options: dict[str, Any], plain: bool, steps: int | None, epochs: int | None) -> None:
    """Refuse options that contradict each other."""
    if plain and typed:
        raise Refusal(f"--plain trains the ordinary loop, which does not know {' and '.join(typed)}")
    if "--resync" in typed and options["update"] != "neighbour":
        raise Refusal(f"--resync belongs to --update neighbour; under {options['update']} there is nothing to average")
    if steps and epochs:
        raise Refusal("give --steps or --epochs, not both")
    if plain and num_ranks() > 1:
        raise Refusal("--plain trains on one rank, and it was started on several: use wavelet bench --ranks to compare")


def _loop(job: Job, options: dict[str, Any], compile: bool, exchange: Choice | None) -> Loop:
    """The plain loop or the engine.

    Raises:
        Refusal: the engine does not take this job or these options.
    """
    if options["update"] != "plain":
        with refusing(ValueError):
            return WavesLoop(job, **options, compile=compile, exchange=exchange)
    return PlainLoop(job, accumulate=options["accumulate"], compile=compile)


def _show(job: Job, options: dict[str, Any], outcome: Outcome, plan: Plan | None, agreement: str | None) -> None:
    num_waves, fields = options["waves"], outcome.fields
    ranks = f" on {num_ranks()} ranks, {agreement}" if agreement else ""
    how = "plain loop" if options["update"] == "plain" else f"{num_waves} waves, {options['update']}"
    table = Table(f"{job.name}: {how.replace('1 waves', '1 wave')}{ranks}", ("", "value"), numbers=("value",))
    table.row("samples/s", significant(fields["samples_per_second"]))
    if plan is not None:
        table.row("samples/s, predicted", significant(plan.samples_per_second))
        table.row("step memory, promised MiB", mebibytes(plan.peak_step_bytes))
        table.row("step memory of one wave, MiB", mebibytes(plan.one_wave_step_bytes))
    if fields["resumed_from"]:
        table.row("went on from step", str(fields["resumed_from"]))
    table.row("steps", str(fields["steps"]))
    table.row(f"training loss, last {min(NUM_FINAL_LOSSES, fields['steps'])}", significant(fields["training_loss"]))
    table.row("validation loss", significant(fields["validation_loss"]))
    if fields["validation_accuracy"] is not None:
        table.row("validation accuracy", significant(fields["validation_accuracy"]))
    table.row("peak resident MiB", mebibytes(fields["peak_resident_bytes"]))
    show(table)
