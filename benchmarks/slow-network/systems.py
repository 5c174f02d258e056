"""The systems that are compared, by name: each is one entry of `SYSTEMS`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import TracebackType
from typing import Any

import torch

import wavelet.exchange
from wavelet.bench.loops import Loop, PlainLoop, ReadLoss, WavesLoop
from wavelet.bench.ranks import BY_DEFAULT
from wavelet.bench.ranks_worker import make_ddp
from wavelet.jobs import Job

__all__ = ["SYSTEMS", "Setting", "System"]


@dataclass(frozen=True)
class Setting:
    """What a rank makes its loop with.

    Args:
        period: updates of a wave from one averaging to the next; of systems without waves, steps.
        max_norm: what CELGC clips a local gradient to.
    """

    period: int
    max_norm: float
    rank: int
    ranks: int


@dataclass(frozen=True)
class System:
    """One way to train a job on several ranks.

    Args:
        make: the loop of one rank; torch.distributed is initialised.
        averages: whether it averages weights now and then; between two averagings the ranks' weights differ.
        why_not: why it cannot train a job here, as one clause; None if it can.
        waves: K.
    """

    make: Callable[[Job, Setting], Loop]
    averages: bool
    why_not: Callable[[Job], str | None] = lambda job: None
    waves: int = 1


class AccelerateLoop(PlainLoop):
    """The ordinary loop under Accelerate's LocalSGD, which averages the weights after each `period` steps."""

    def __init__(self, job: Job, setting: Setting) -> None:
        from accelerate import Accelerator
        from accelerate.local_sgd import LocalSGD

        # By these, not by the process group that is there, Accelerate finds out that it is one of several ranks.
        ours = {"RANK": setting.rank, "WORLD_SIZE": setting.ranks, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        os.environ.update({name: str(value) for name, value in ours.items()}, MASTER_ADDR="localhost")
        accelerator = Accelerator(cpu=True)
        model = accelerator.prepare(job.model)
        super().__init__(job, model=model)
        self._averaging = LocalSGD(accelerator, model, local_sgd_steps=setting.period)
        if not self._averaging.enabled:
            raise RuntimeError("Accelerate sees one rank only, and would average nothing")

    def step(self, batch: Any) -> ReadLoss:
        loss = super().step(batch)
        self._averaging.step()
        return loss

    def __enter__(self) -> AccelerateLoop:
        self._averaging.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:  # it averages once more, with ranks that a failure has ended
            self._averaging.__exit__(kind, error, trace)


def _post_local(job: Job, setting: Setting) -> Loop:
    """PyTorch's post-local SGD, local from the first step on."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = make_ddp(job, BY_DEFAULT["fp32"])
    state = PostLocalSGDState(None, None, start_localSGD_iter=0, post_local_gradient_allreduce=False)
    model.register_comm_hook(state, post_localSGD_hook)
    # It averages after the first step past the warm-up; this way that is the last one of a period, as for all others.
    averager = PeriodicModelAverager(period=setting.period, warmup_steps=setting.period - 1)
    return PlainLoop(replace(job, optimizer=PostLocalSGDOptimizer(job.optimizer, averager)), model=model)


def _without_accelerate(job: Job) -> str | None:
    return None if find_spec("accelerate") else "accelerate is not installed (pip install accelerate)"


def _wavelet(name: str, arguments: Callable[[Setting], dict[str, Any]], waves: int, *, sgd_only: bool) -> System:
    """Wavelet with one of its exchanges."""

    def make(job: Job, setting: Setting) -> Loop:
        return WavesLoop(job, waves=waves, exchange=getattr(wavelet.exchange, name)(**arguments(setting)))

    def why_not(job: Job) -> str | None:
        if not hasattr(wavelet.exchange, name):
            return f"this Wavelet has no exchange {name}"
        if sgd_only and not isinstance(job.optimizer, torch.optim.SGD):
            return f"{name} is for SGD, and {job.name} has {type(job.optimizer).__name__}"
        return None

    return System(make, averages=name != "AllReduce", why_not=why_not, waves=waves)


_EXCHANGES: dict[str, tuple[str, Callable[[Setting], dict[str, Any]]]] = {
    "all-reduce": ("AllReduce", lambda setting: {}),
    "local-sgd": ("LocalSGD", lambda setting: {"period": setting.period}),
    "celgc": ("CELGC", lambda setting: {"period": setting.period, "max_norm": setting.max_norm}),
    "bmuf": ("BMUF", lambda setting: {"period": setting.period}),
    "dreamddp": ("DreamDDP", lambda setting: {"period": setting.period}),
}

SYSTEMS: dict[str, System] = {
    "ddp": System(lambda job, setting: PlainLoop(job, model=make_ddp(job, BY_DEFAULT["fp32"])), averages=False),
    "ddp-bf16": System(lambda job, setting: PlainLoop(job, model=make_ddp(job, BY_DEFAULT["bf16"])), averages=False),
    "post-local": System(_post_local, averages=True),
    "accelerate": System(AccelerateLoop, averages=True, why_not=_without_accelerate),
} | {
    f"{own}:{waves}": _wavelet(name, arguments, waves, sgd_only=name == "CELGC")
    for own, (name, arguments) in _EXCHANGES.items()
    for waves in (1, 2)
}
"""The names of Wavelet's end in the number of waves."""
