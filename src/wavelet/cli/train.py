"""`wavelet train`: trains a job in waves, or with the ordinary loop.

The fields of its JSON: what was asked (``job``, ``seed``, ``samples_per_batch``, ``threads``, ``compile``, ``waves``,
``update``, which is ``plain`` for the ordinary loop, ``accumulate``, ``resync``); ``steps`` and ``samples`` trained;
``timed_steps`` and ``timed_seconds``, without the warm-up, and ``samples_per_second`` over them; ``losses`` of all
steps, ``training_loss`` (mean of the last ten), ``validation_loss`` and ``validation_accuracy``, null for none;
``peak_resident_bytes`` before the validation; ``machine`` and ``versions``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sized
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavelet.bench.loops import Loop, PlainLoop, WavesLoop, batches, drive
from wavelet.bench.systems import warmup_batches
from wavelet.cli.options import (
    BatchSize,
    Force,
    JobName,
    Json,
    Refusal,
    Rule,
    Seed,
    given,
    json_file,
    load_job,
    refusing,
)
from wavelet.report.machine import machine, peak_resident_bytes, versions
from wavelet.report.numbers import mebibytes, significant
from wavelet.report.progress import Bar
from wavelet.report.tables import Table, show

if TYPE_CHECKING:
    from wavelet.jobs import Job

__all__ = ["train"]

_NUM_FINAL_LOSSES = 10


def train(
    context: typer.Context,
    job: JobName,
    *,
    waves: Annotated[int, typer.Option(min=1, help="Waves on the device.")] = 2,
    update: Annotated[Rule, typer.Option(help="The update rule.")] = Rule.neighbour,
    accumulate: Annotated[int, typer.Option(min=1, help="Batches for one update.")] = 1,
    resync: Annotated[str, typer.Option(help="Updates between averaging waves: auto, none, or a number.")] = "auto",
    steps: Annotated[int | None, typer.Option(min=1, help="Batches to train.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the data.", show_default="1")] = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Intra-op threads.", show_default="all cores")] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the model.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Train the ordinary loop, to compare.")] = False,
    json: Json = None,
    force: Force = False,
) -> None:  # fmt: skip
    """Train a job in waves, and show its speed, losses and peak memory."""
    target = json_file(json, force)
    options = {"waves": waves, "update": update.value, "accumulate": accumulate, "resync": _resync(resync)}
    _check(given(context, "waves", "update", "resync"), options, plain, steps, epochs)
    _set_threads(threads)
    loaded = load_job(job, seed=seed, batch_size=batch_size)
    if plain:
        options = {"waves": 1, "update": "plain", "accumulate": accumulate, "resync": None}
    loop = _loop(loaded, options, compile)
    outcome, failure = _run(loaded, loop, waves, steps, epochs)
    if target:  # before anything is printed, which can fail
        about = {"command": "train", "machine": machine(), "versions": versions(), "job": loaded.name, "seed": seed}
        sizes = {"samples_per_batch": loaded.samples_per_batch, "threads": _num_threads(), "compile": compile}
        target.write({**about, **sizes, **options, **outcome})
    _show(loaded, options, outcome)
    if failure:
        raise failure


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
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        raise Refusal("wavelet train works on one rank, and it was started on several")


def _set_threads(threads: int | None) -> None:
    import torch

    torch.set_flush_denormal(True)
    if threads:
        torch.set_num_threads(threads)


def _num_threads() -> int:
    import torch

    return torch.get_num_threads()


def _loop(job: Job, options: dict[str, Any], compile: bool) -> Loop:
    """The plain loop or the engine.

    Raises:
        Refusal: the engine does not take this job or these options.
    """
    if options["update"] != "plain":
        with refusing(ValueError):
            return WavesLoop(job, **options, compile=compile)
    return PlainLoop(job, accumulate=options["accumulate"], compile=compile)


def _run(
    job: Job, loop: Loop, waves: int, steps: int | None, epochs: int | None
) -> tuple[dict[str, Any], Exception | None]:
    """Train and evaluate; gives the fields of the result, and what the validation raised, which must not lose them.

    The clock runs from the end of the warm-up.
    """
    source = batches(job.loader, None if steps else epochs or 1)
    total = steps or ((epochs or 1) * len(job.loader) if isinstance(job.loader, Sized) else None)
    losses: list[float] = []
    start = time.perf_counter()

    def on_loss(_: int, loss: float) -> None:
        losses.append(loss)
        rate = len(losses) * job.samples_per_batch / (time.perf_counter() - start)
        bar.update(len(losses), f"loss {significant(loss)}  {significant(rate)} samples/s")

    with Bar(job.name, total) as bar, loop:
        warmup = warmup_batches(waves)
        done, seconds = drive(loop, source, min(warmup, steps or warmup), on_loss=on_loss)
        left = steps - done if steps else None
        timed, timed_seconds = drive(loop, source, left, behind=2 * waves, on_loss=on_loss)
        loop.flush()
    if not timed:
        timed, timed_seconds = done, seconds
    peak = peak_resident_bytes()
    validation, failure = None, None
    if job.validation is not None:
        try:
            validation = job.evaluate()
        except Exception as error:
            failure = error
    final = losses[-_NUM_FINAL_LOSSES:]
    fields = {
        "steps": len(losses),
        "samples": len(losses) * job.samples_per_batch,
        "timed_steps": timed,
        "timed_seconds": timed_seconds,
        "samples_per_second": timed * job.samples_per_batch / timed_seconds,
        "training_loss": sum(final) / len(final),
        "validation_loss": validation.loss if validation else None,
        "validation_accuracy": validation.accuracy if validation else None,
        "peak_resident_bytes": peak,
        "losses": losses,
    }
    return fields, failure


def _show(job: Job, options: dict[str, Any], outcome: dict[str, Any]) -> None:
    num_waves = options["waves"]
    how = "plain loop" if options["update"] == "plain" else f"{num_waves} waves, {options['update']}"
    table = Table(f"{job.name}: {how.replace('1 waves', '1 wave')}", ("", "value"), numbers=("value",))
    table.row("samples/s", significant(outcome["samples_per_second"]))
    table.row("steps", str(outcome["steps"]))
    table.row(f"training loss, last {min(_NUM_FINAL_LOSSES, outcome['steps'])}", significant(outcome["training_loss"]))
    table.row("validation loss", significant(outcome["validation_loss"]))
    if outcome["validation_accuracy"] is not None:
        table.row("validation accuracy", significant(outcome["validation_accuracy"]))
    table.row("peak resident MiB", mebibytes(outcome["peak_resident_bytes"]))
    show(table)
