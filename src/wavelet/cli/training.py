"""One training run of the command line: timed, perhaps recorded, and evaluated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wavelet.bench.loops import Loop, WavesLoop, batches, drive
from wavelet.bench.systems import warmup_batches
from wavelet.cli.ranks import is_first, num_ranks
from wavelet.report.machine import peak_resident_bytes
from wavelet.report.numbers import significant
from wavelet.report.progress import Bar

if TYPE_CHECKING:
    from wavelet.cli.saving import Saver
    from wavelet.jobs import Job
    from wavelet.report.timeline import Span

__all__ = ["NUM_FINAL_LOSSES", "Outcome", "run"]

NUM_FINAL_LOSSES = 10
NUM_RECORDED = 24
"""Batches that a report or a trace shows."""


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Args:
        fields: of the JSON.
        spans: of the batches that were recorded.
        failure: what the validation raised, which must not lose the rest.
    """

    fields: dict[str, Any]
    spans: list[Span]
    failure: Exception | None


def run(
    job: Job,
    loop: Loop,
    waves: int,
    steps: int | None,
    epochs: int | None,
    *,
    record: bool,
    saver: Saver | None = None,
) -> Outcome:
    """Train and evaluate. The clock runs from the end of the warm-up, and of the batches that are recorded."""
    source = saver.batches() if saver else batches(job.loader, None if steps else epochs or 1)
    before = saver.num_batches if saver else 0
    left = max(0, steps - before) if steps else None
    total = steps or ((epochs or 1) * len(job.loader) if isinstance(job.loader, Sized) else None)
    losses: list[float] = []
    start = time.perf_counter()

    def on_loss(_: int, loss: float) -> None:
        losses.append(loss)
        rate = len(losses) * job.samples_per_batch / (time.perf_counter() - start)
        bar.update(before + len(losses), f"loss {significant(loss)}  {significant(rate)} samples/s")

    with Bar(job.name, total) as bar, loop:
        warmup = warmup_batches(waves)
        done, seconds = drive(loop, source, warmup if left is None else min(warmup, left), on_loss=on_loss)
        spans: list[Span] = []
        if record and isinstance(loop, WavesLoop):
            spans, recorded = _record(loop, source, None if left is None else left - done, on_loss)
            done += recorded
        rest = None if left is None else left - done
        timed, timed_seconds = drive(loop, source, rest, behind=2 * waves, on_loss=on_loss)
        if saver:
            saver.finish()  # before the flush: a longer run goes on in the open round
        loop.flush()
    if not timed:
        timed, timed_seconds = done, seconds
    peak = peak_resident_bytes()
    validation, failure = None, None
    if job.validation is not None and is_first():
        try:
            validation = job.evaluate()
        except Exception as error:
            failure = error
    final = losses[-NUM_FINAL_LOSSES:]
    samples_per_step = job.samples_per_batch * num_ranks()
    fields = {
        "steps": len(losses),
        "ranks": num_ranks(),
        "samples": len(losses) * samples_per_step,
        "timed_steps": timed,
        "timed_seconds": timed_seconds,
        "samples_per_second": timed * samples_per_step / timed_seconds,
        "training_loss": sum(final) / len(final) if final else None,
        "validation_loss": validation.loss if validation else None,
        "validation_accuracy": validation.accuracy if validation else None,
        "peak_resident_bytes": peak,
        "losses": losses,
        "resumed_from": before or None,
    }
    return Outcome(fields, spans, failure)


def _record(loop: WavesLoop, source: Iterator[Any], left: int | None, on_loss: Any) -> tuple[list[Span], int]:
    """Train some batches and give what the waves did meanwhile; nothing where there is no plan yet."""
    from wavelet.report.timeline import measured_spans

    memory, plan = loop.engine._memory, loop.engine.plan
    if plan is None or left == 0:
        return [], 0
    loop.drain()
    events = memory.record()
    count = NUM_RECORDED if left is None else min(NUM_RECORDED, left)
    done, _ = drive(loop, source, count, behind=2 * plan.waves, on_loss=on_loss)
    memory.stop_recording()
    return measured_spans(events, num_waves=plan.waves, num_blocks=plan.profile.num_blocks), done
