"""The process that is one rank of one system once; it speaks as `wavelet.bench.worker` does."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wavelet.bench.hosts import link_sent_bytes
from wavelet.bench.loops import Loop, PlainLoop, ReadLoss, WavesLoop, batches, drive
from wavelet.bench.ranks import RankSystem, sent_by_ring
from wavelet.bench.worker import NUM_SEEDS, last_losses, serve

if TYPE_CHECKING:
    from wavelet.jobs import Job

__all__ = ["RankSpec", "main", "make_ddp", "process_group"]


@dataclass(frozen=True)
class RankSpec:
    """What one rank does.

    Args:
        job: a built-in job or a job file.
        warmup: batches of this rank before the clock starts.
        steps: batches of this rank that are timed.
        rendezvous: a file that does not exist yet, where the ranks meet.
        cores: those that this rank may use, each with a thread.
        link: the interface whose bytes are counted; None: they are computed.
        evaluate: measure the validation loss at the end.
    """

    job: str
    system: RankSystem
    seed: int
    batch_size: int | None
    warmup: int
    steps: int
    rank: int
    ranks: int
    rendezvous: str
    cores: tuple[int, ...]
    link: str | None
    evaluate: bool

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> RankSpec:
        """The spec that `to_json` wrote."""
        fields = json.loads(line)
        return cls(**{**fields, "system": RankSystem(**fields["system"]), "cores": tuple(fields["cores"])})


def main() -> None:
    """Run the spec on standard input."""
    serve(lambda line, send: run(RankSpec.from_json(line), send))


def run(spec: RankSpec, send: Any) -> dict[str, Any]:
    """Train, or compute or exchange alone, as `spec` says.

    Returns:
        ``start`` and ``end`` of the timed part in seconds of a clock that all ranks share, its ``batches`` and
        ``samples``, ``sent_bytes``, ``peak_resident_bytes`` before the evaluation, ``training_loss``,
        ``validation_loss`` and ``validation_accuracy`` (None where there is none).
    """
    from wavelet.devices.allocator import install_from_environment

    install_from_environment()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, spec.cores)
    torch.set_flush_denormal(True)
    torch.set_num_threads(len(spec.cores))
    born = time.monotonic()
    with process_group(spec.rendezvous, spec.rank, spec.ranks):
        return _measure(spec, send, born)


def _measure(spec: RankSpec, send: Any, born: float) -> dict[str, Any]:
    """What `run` gives. DDP ends here, before the process group: as its last owner it would wait for gloo's threads
    with the interpreter's lock in hand, and one of them may be waiting for the lock."""
    from wavelet.report.machine import peak_resident_bytes

    job, loop = _build(spec)
    exchange_alone = spec.system.kind == "all-reduce"
    source: Iterator[Any] = itertools.repeat(None) if exchange_alone else batches(job.loader)
    losses, on_loss = last_losses(send)
    with loop:
        drive(loop, source, 1)
        send("first_step", seconds=time.monotonic() - born)
        drive(loop, source, spec.warmup - 1)
        send("ready")
        if not sys.stdin.readline():
            raise BrokenPipeError
        before = link_sent_bytes(spec.link) if spec.link else 0
        start = time.monotonic()
        steps, _ = drive(loop, source, spec.steps, behind=2 * spec.system.waves, on_loss=on_loss)
        end = time.monotonic()
        sent = link_sent_bytes(spec.link) - before if spec.link else _computed(spec, job)
    peak = peak_resident_bytes()
    wanted = spec.evaluate and spec.rank == 0 and spec.system.trains and job.validation is not None
    validation = job.evaluate() if wanted else None
    return {
        "start": start,
        "end": end,
        "batches": steps,
        "samples": steps * job.samples_per_batch,
        "sent_bytes": sent,
        "peak_resident_bytes": peak,
        "training_loss": None if exchange_alone else sum(losses) / len(losses),
        "validation_loss": validation.loss if validation else None,
        "validation_accuracy": validation.accuracy if validation else None,
    }


class _DDPLoop(PlainLoop):
    """The ordinary loop on DDP. Of several batches for one update only the last is exchanged."""

    def __init__(self, job: Job, model: DistributedDataParallel, accumulate: int) -> None:
        super().__init__(job, model=model, accumulate=accumulate)
        self._ddp = model

    def step(self, batch: Any) -> ReadLoss:
        last = self._pending + 1 == self._accumulate
        with contextlib.nullcontext() if last else self._ddp.no_sync():
            return super().step(batch)


class _AllReduceLoop:
    """No training: sums as many numbers over the ranks as there are gradients, once a batch."""

    def __init__(self, gradients: torch.Tensor) -> None:
        self._gradients = gradients

    def step(self, batch: Any) -> ReadLoss:
        dist.all_reduce(self._gradients)
        return lambda: 0.0

    def drain(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def __enter__(self) -> _AllReduceLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def _build(spec: RankSpec) -> tuple[Job, Loop]:
    """The job, and what is timed."""
    import wavelet.jobs

    system = spec.system
    job = wavelet.jobs.load(spec.job, seed=spec.seed, batch_size=spec.batch_size)
    # Ranks that draw alike would train on neighbouring samples and drop the same activations.
    wavelet.jobs.set_seeds((spec.seed + spec.rank) % NUM_SEEDS)
    if system.kind == "compute":
        return job, PlainLoop(job)
    if system.kind == "all-reduce":
        dtype = torch.bfloat16 if system.precision == "bf16" else torch.float32
        return job, _AllReduceLoop(torch.zeros(_gradient_bytes(job) // 4, dtype=dtype))
    if system.kind == "ddp":
        return job, _DDPLoop(job, make_ddp(job, system), system.accumulate)
    from wavelet.exchange import AllReduce

    exchange = AllReduce(compress="bf16" if system.precision == "bf16" else None)
    return job, WavesLoop(job, waves=system.waves, update=system.update, exchange=exchange)


def make_ddp(job: Job, system: RankSystem) -> DistributedDataParallel:
    """The job's model in DDP, as `system` says."""
    model = DistributedDataParallel(
        job.model,
        bucket_cap_mb=system.bucket_mb,
        static_graph=system.static_graph,
        gradient_as_bucket_view=system.views,
    )
    if system.precision == "bf16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        # By its name DDP refuses the hook without NCCL; gloo sums bfloat16 as well.
        model.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))  # noqa: PLW0108
    return model


def _gradient_bytes(job: Job) -> int:
    """Of one set of gradients in 32 bits."""
    return 4 * sum(parameter.numel() for parameter in job.model.parameters() if parameter.requires_grad)


def _computed(spec: RankSpec, job: Job) -> float:
    """What this rank must have sent in the timed part, where nobody counts."""
    return spec.steps * sent_by_ring(_gradient_bytes(job), spec.ranks, spec.system)


@contextlib.contextmanager
def process_group(rendezvous: str, rank: int, ranks: int) -> Iterator[None]:
    """A gloo process group among the ranks; those that exchange nothing have it too, to share out the data.

    Args:
        rendezvous: a file that does not exist yet, where the ranks meet.
    """
    if sys.platform.startswith("linux"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
