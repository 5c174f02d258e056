"""The process that runs one system once: a spec on standard input, events and the result on standard output.

Each line is a JSON object. The worker writes ``first_step`` and ``ready``, waits for a line, trains while it writes
``progress``, and ends with ``result`` or ``failed``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wavelet.bench.loops import Loop, PlainLoop, WavesLoop, batches, drive
from wavelet.bench.systems import System

if TYPE_CHECKING:
    from wavelet.jobs import Job

__all__ = ["NUM_SEEDS", "Spec", "last_losses", "main", "reason", "serve"]

NUM_SEEDS = 2**32
"""Seeds go round at NumPy's limit."""

_SECONDS_BETWEEN_REPORTS = 0.25
_NUM_FINAL_LOSSES = 10


@dataclass(frozen=True)
class Spec:
    """What one worker does.

    Args:
        job: a built-in job or a job file.
        warmup: batches of this process before the clock starts.
        steps: batches of this process that are timed.
        rank: among the processes of its system.
        rendezvous: a file that does not exist yet, where the processes of DDP meet.
        evaluate: measure the validation loss at the end.
    """

    job: str
    system: System
    seed: int
    batch_size: int | None
    warmup: int
    steps: int
    rank: int = 0
    rendezvous: str = ""
    evaluate: bool = True

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Spec:
        """The spec that `to_json` wrote."""
        fields = json.loads(line)
        return cls(**{**fields, "system": System(**fields["system"])})


def main() -> None:
    """Run the spec on standard input."""
    serve(lambda line, send: run(Spec.from_json(line), send))


def serve(work: Callable[[str, Any], dict[str, Any]]) -> None:
    """Give `work` the line on standard input and a function that sends events; send what it returns or raises."""
    # What the job prints must not mix with the events, so standard output becomes standard error.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, **fields}), file=events, flush=True)

    try:
        send("result", **work(sys.stdin.readline(), send))
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(130)
    except Exception as error:
        send("failed", reason=reason(error), traceback=traceback.format_exc())
        os._exit(1)  # threads of a broken process group may not end


def run(spec: Spec, send: Any) -> dict[str, Any]:
    """Train as `spec` says.

    Returns:
        ``start`` and ``end`` of the timed part in seconds of a clock that all processes share, its ``samples``,
        ``peak_resident_bytes`` before the evaluation, ``training_loss`` (mean of the last ten batches),
        ``validation_loss`` and ``validation_accuracy`` (None where there is none).
    """
    import torch

    from wavelet.devices.allocator import install_from_environment

    install_from_environment()  # before any tensor: what is there already stays with the system's allocator
    torch.set_flush_denormal(True)
    torch.set_num_threads(spec.system.threads)
    born = time.monotonic()
    with _ranks(spec):
        return _measure(spec, send, born)


def _measure(spec: Spec, send: Any, born: float) -> dict[str, Any]:
    """What `run` gives. DDP ends here, before the process group: as its last owner it would wait for gloo's threads
    with the interpreter's lock in hand, and one of them may be waiting for the lock."""
    losses, on_loss = last_losses(send)
    job, loop = _build(spec)
    source = batches(job.loader)
    with loop:
        drive(loop, source, 1)
        send("first_step", seconds=time.monotonic() - born)
        drive(loop, source, spec.warmup - 1)
        send("ready")
        if not sys.stdin.readline():
            raise BrokenPipeError
        start = time.monotonic()
        steps, _ = drive(loop, source, spec.steps, behind=2 * spec.system.waves, on_loss=on_loss)
        end = time.monotonic()
    peak = _peak()
    validation = job.evaluate() if spec.evaluate and spec.rank == 0 and job.validation is not None else None
    return {
        "start": start,
        "end": end,
        "samples": steps * job.samples_per_batch,
        "peak_resident_bytes": peak,
        "training_loss": sum(losses) / len(losses),
        "validation_loss": validation.loss if validation else None,
        "validation_accuracy": validation.accuracy if validation else None,
    }


def last_losses(send: Any) -> tuple[deque[float], Callable[[int, float], None]]:
    """The last ten losses, and what to call with each: it also sends ``progress`` now and then."""
    losses: deque[float] = deque(maxlen=_NUM_FINAL_LOSSES)
    reported = time.monotonic()

    def on_loss(done: int, loss: float) -> None:
        nonlocal reported
        losses.append(loss)
        if time.monotonic() - reported >= _SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            send("progress", done=done, loss=loss)

    return losses, on_loss


def reason(error: BaseException) -> str:
    """The first line of what an error says, with its kind; the first two where the first only leads in."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lead = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return f"{type(error).__name__}: {lead}" if lead else type(error).__name__


def _build(spec: Spec) -> tuple[Job, Loop]:
    """The job, and the loop that trains it under the spec's system."""
    import torch

    import wavelet.jobs

    system = spec.system
    job = wavelet.jobs.load(spec.job, seed=spec.seed, batch_size=spec.batch_size)
    if system.kind == "waves":
        return job, WavesLoop(job, waves=system.waves, update=system.update, compile=system.compile)
    if system.kind == "ddp":
        # Ranks that draw alike would train on neighbouring samples and drop the same activations.
        wavelet.jobs.set_seeds((spec.seed + spec.rank) % NUM_SEEDS)
        return job, PlainLoop(job, model=torch.nn.parallel.DistributedDataParallel(job.model))
    return job, PlainLoop(job, compile=system.compile)


@contextlib.contextmanager
def _ranks(spec: Spec) -> Iterator[None]:
    """A gloo process group among the processes of DDP; nothing for other systems."""
    if spec.system.kind != "ddp":
        yield
        return
    import torch.distributed as dist

    if sys.platform.startswith("linux"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    init = f"file://{spec.rendezvous}"
    dist.init_process_group("gloo", init_method=init, rank=spec.rank, world_size=spec.system.processes)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _peak() -> int:
    from wavelet.report.machine import peak_resident_bytes

    return peak_resident_bytes()


if __name__ == "__main__":
    main()
