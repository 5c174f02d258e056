"""The process that is one rank of one system once; it speaks as `wavelet.bench.worker` does."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from systems import SYSTEMS, Setting
from torch import Tensor

import wavelet.jobs
from wavelet.bench.hosts import link_sent_bytes
from wavelet.bench.loops import batches, drive
from wavelet.bench.ranks_worker import process_group
from wavelet.bench.worker import NUM_SEEDS, last_losses, serve
from wavelet.devices.allocator import install_from_environment

__all__ = ["RankSpec", "main", "mean_state"]


@dataclass(frozen=True)
class RankSpec:
    """What one rank does.

    Args:
        job: a built-in job or a job file.
        system: a name in `SYSTEMS`.
        warmup: steps before the clock starts.
        every: timed steps from one validation to the next.
        validations: that follow so many steps each.
        folder: an empty folder that all ranks share, so that what is measured is not sent over the link.
        core: the only one that this rank may use.
        link: the interface whose bytes are counted.
    """

    job: str
    system: str
    setting: Setting
    seed: int
    batch_size: int | None
    warmup: int
    every: int
    validations: int
    folder: str
    core: int
    link: str

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> RankSpec:
        """The spec that `to_json` wrote."""
        fields = json.loads(line)
        return cls(**{**fields, "setting": Setting(**fields["setting"])})


def main() -> None:
    """Run the spec on standard input."""
    serve(lambda line, send: run(RankSpec.from_json(line), send))


def run(spec: RankSpec, send: Any) -> dict[str, Any]:
    """Train in stretches, with a validation after the warm-up and after each stretch.

    Returns:
        ``stretches``: of each, ``start`` and ``end`` in seconds of a clock that all ranks share, and ``sent_bytes``.
        ``losses``: of the validations; None on other ranks than the first. ``samples_per_step``: of this rank.
    """
    install_from_environment()
    os.sched_setaffinity(0, {spec.core})
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    born = time.monotonic()
    setting = spec.setting
    with process_group(f"{spec.folder}/rendezvous", setting.rank, setting.ranks):
        return _train(spec, send, born)


def _train(spec: RankSpec, send: Any, born: float) -> dict[str, Any]:
    """What `run` gives. DDP ends here, before the process group."""
    setting, system = spec.setting, SYSTEMS[spec.system]
    job = wavelet.jobs.load(spec.job, seed=spec.seed, batch_size=spec.batch_size)
    # Ranks that draw alike would train on neighbouring samples and drop the same activations.
    wavelet.jobs.set_seeds((spec.seed + setting.rank) % NUM_SEEDS)
    validation = Validation(job, spec)
    source = batches(job.loader)
    _, on_loss = last_losses(send)
    stretches = []
    with system.make(job, setting) as loop:
        drive(loop, source, 1)
        send("first_step", seconds=time.monotonic() - born)
        drive(loop, source, spec.warmup - 1)
        losses = [validation.loss()]
        send("ready")
        if not sys.stdin.readline():
            raise BrokenPipeError
        for number in range(spec.validations):
            dist.barrier()
            before = link_sent_bytes(spec.link)
            start = time.monotonic()
            report = lambda done, loss, first=number * spec.every: on_loss(first + done, loss)  # noqa: E731
            drive(loop, source, spec.every, behind=2 * system.waves, on_loss=report)
            end = time.monotonic()
            dist.barrier()  # what is still on its way to other ranks belongs to this stretch
            sent = link_sent_bytes(spec.link) - before
            stretches.append({"start": start, "end": end, "sent_bytes": sent})
            losses.append(validation.loss())
    return {"stretches": stretches, "losses": losses, "samples_per_step": job.samples_per_batch}


class Validation:
    """The loss of what a user would keep: the mean of the ranks' weights where they differ, rank 0's where not.

    Weights go through files, not over the link.
    """

    def __init__(self, job: wavelet.Job, spec: RankSpec) -> None:
        self._job = job
        self._rank = spec.setting.rank
        sharing = range(spec.setting.ranks) if SYSTEMS[spec.system].averages else range(1)
        self._files = [Path(spec.folder, f"weights-{rank}") for rank in sharing]
        self._kept = replace(job, model=copy.deepcopy(job.model)) if self._rank == 0 else None

    def loss(self) -> float | None:
        """None on other ranks than the first. The loop must be drained; its weights stay as they are."""
        if self._rank < len(self._files):
            torch.save(self._job.model.state_dict(), self._files[self._rank])
        dist.barrier()
        loss = None
        if self._kept is not None:
            states = [torch.load(file, weights_only=True) for file in self._files]
            self._kept.model.load_state_dict(mean_state(states))
            loss = self._kept.evaluate().loss
        dist.barrier()
        return loss


def mean_state(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of floating-point tensors; of all others the first."""
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if tensor.is_floating_point() else tensor
        for name, tensor in states[0].items()
    }


if __name__ == "__main__":
    main()
