"""Measuring on copies: what a step costs, and how many waves are best; the user's objects stay as they are."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wavelet.devices import make_device, map_tensors, tensors_in
from wavelet.devices.random_state import RandomState
from wavelet.exchange import Alone
from wavelet.memory.request import block_names
from wavelet.planning.plan import WORTH_A_WAVE, make_plan
from wavelet.profiling.profile import Profile, Smaller, Timing
from wavelet.updates import OptimizerCopy
from wavelet.waves.replica import check_model, make_replicas

if TYPE_CHECKING:
    from wavelet.engine import Wavelet
    from wavelet.forward import LossFunction

__all__ = ["choose_waves", "compare", "first_samples", "profile"]

SECONDS_TO_COMPARE = 1.0
ROUNDS = 3
NUM_TIMED = 4
"""Batches of which a profile takes the seconds."""
NUM_BESIDE = 6
"""Batches a wave by which it learns how waves slow each other down."""

Make = Callable[..., "Wavelet"]


def profile(
    model: nn.Module,
    loss: LossFunction,
    batch: Any,
    *,
    optimizer: Optimizer | None = None,
    waves: Sequence[int] = (1, 2),
    autocast: torch.dtype | None = None,
    compile: bool = False,
    replicate: Callable[[], nn.Module] | None = None,
    blocks: Sequence[str | nn.Module] | None = None,
) -> Profile:
    """What one step of ``model`` with ``batch`` costs, block by block: in bytes, and in seconds among K waves.

    Runs about 45 steps on copies of the model; the model, its optimizer and random state stay as they are.

    Args:
        model: on one device, CPU or CUDA.
        loss: as for `wavelet.Wavelet`.
        batch: of the largest size that will be trained.
        optimizer: whose step is part of the turn; plain SGD if left out, which keeps no state.
        waves: the numbers of waves to measure; 1 is what others are compared with.
        autocast: as for `wavelet.Wavelet`.
        compile: as for `wavelet.Wavelet`.
        replicate: as for `wavelet.Wavelet`.
        blocks: as for `wavelet.Wavelet`.

    Raises:
        ValueError: an argument makes no sense.
    """
    if not isinstance(waves, Sequence) or not waves or any(type(count) is not int or count < 1 for count in waves):
        raise ValueError(f"waves={waves!r} makes no sense: give the numbers of waves to measure, such as (1, 2).")

    def make(model: nn.Module, optimizer: Optimizer, count: int) -> Wavelet:
        from wavelet.engine import Wavelet

        options: dict[str, Any] = {"autocast": autocast, "compile": compile, "replicate": replicate, "blocks": names}
        return Wavelet(model, optimizer, loss, waves=count, budget=f"{count}x", exchange=Alone(), **options)

    names = block_names(model, blocks)
    profiles: dict[int, Profile] = {}
    with _untouched(model):
        for count in sorted(set(waves)):
            profiles[count] = _profile_with(make, model, optimizer, replicate, batch, count)
        smaller = _smaller(make, model, optimizer, replicate, batch, profiles[min(profiles)].samples)
    return _together(profiles, smaller)


def choose_waves(engine: Wavelet, batch: Any) -> int:
    """One or two waves for an engine that has not decided: by measuring both on copies with its first batch."""
    options, request = engine._options, engine._options.request
    model, optimizer, replicate = engine._face.model, engine._face.optimizer, options.replicate
    settings = engine._settings

    def make(model: nn.Module, optimizer: Optimizer, count: int, **more: Any) -> Wavelet:
        from wavelet.engine import Wavelet

        return Wavelet(
            model, optimizer, options.loss, waves=count, update=engine.update, accumulate=engine.accumulate,
            resync=None, clip_grad_norm=settings.clip_grad_norm, autocast=options.autocast,
            grad_scaler=copy.deepcopy(options.grad_scaler), compile=options.compile, streams=options.streams,
            replicate=replicate, timeout=options.timeout, exchange=Alone(), **more,
        )  # fmt: skip

    with _untouched(model):
        if request is None:
            rates = compare({1: _maker(make, 1), 2: _maker(make, 2)}, model, optimizer, replicate, [batch])
            return 2 if rates[2] > WORTH_A_WAVE * rates[1] else 1

        def budgeted(model: nn.Module, optimizer: Optimizer, count: int) -> Wavelet:
            return make(model, optimizer, count, budget=f"{count}x", blocks=request.blocks)

        profiles = {count: _profile_with(budgeted, model, optimizer, replicate, batch, count) for count in (1, 2)}
    assert request.budget is not None
    whole = _together(profiles, None)
    return make_plan(whole, request.budget, update=engine.update, accumulate=engine.accumulate).waves


def compare(
    systems: dict[Any, Callable[[nn.Module, Optimizer], Any]],
    model: nn.Module,
    optimizer: Optimizer,
    replicate: Callable[[], nn.Module] | None,
    batches: Sequence[Any],
    seconds: float = SECONDS_TO_COMPARE,
    on_round: Callable[[], None] = lambda: None,
) -> dict[Any, float]:
    """Batches a second of each system, in turn on copies: the median of some rounds.

    Args:
        systems: each makes, from a model and an optimizer, something with ``step(batch)`` and ``drain()`` that is left
            as a context manager.
        model: copied for each system.
        optimizer: copied too.
        replicate: for models that cannot be copied.
        batches: gone through again and again.
        seconds: of one round of one system.
        on_round: called after each.
    """
    rates: dict[Any, list[float]] = {name: [] for name in systems}
    for _ in range(ROUNDS):
        for name, make in systems.items():
            with make(*_copies(model, optimizer, replicate)) as loop:
                rates[name].append(_rate(loop, batches, seconds))
            on_round()
    return {name: sorted(found)[ROUNDS // 2] for name, found in rates.items()}


def _maker(make: Make, count: int) -> Callable[[nn.Module, Optimizer], Any]:
    return lambda model, optimizer: make(model, optimizer, count)


def _rate(loop: Any, batches: Sequence[Any], seconds: float) -> float:
    source = itertools.cycle(batches)
    for batch in itertools.islice(source, 8):  # lazy state, caches, the first batches alone
        loop.step(batch)
    loop.drain()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds or count < 4:
        loop.step(next(source))
        count += 1
    loop.drain()
    return count / (time.perf_counter() - start)


def _profile_with(
    make: Make, model: nn.Module, optimizer: Optimizer | None, replicate: Any, batch: Any, count: int
) -> Profile:
    with make(*_copies(model, optimizer, replicate), count) as engine:
        study = engine._memory.study
        study.num_timed, study.last = NUM_TIMED, study.last + NUM_TIMED
        while engine.plan is None:
            engine.step(batch)
        for budget in (f"{count}x", "1x") if count > 1 else ():
            engine.drain()
            engine._memory.replan(budget)
            events = engine._memory.record(every_edge=False)
            for _ in range(NUM_BESIDE * count):
                engine.step(batch)
            engine.drain()
            study.time(events, freely=budget != "1x", tightly=budget == "1x")
        found: Profile = study.profile()
        return found


def _smaller(
    make: Make, model: nn.Module, optimizer: Optimizer | None, replicate: Any, batch: Any, samples: int
) -> Smaller | None:
    """What half a batch holds; None for a batch that cannot be halved."""
    half = samples // 2
    smaller = first_samples(batch, half, samples)
    if smaller is None:
        return None
    try:
        with make(*_copies(model, optimizer, replicate), 1) as engine:
            while engine.plan is None:
                engine.step(smaller)
            return Smaller(half, engine.plan.profile.peak)
    except Exception:  # a model may be made for one size
        return None


def first_samples(batch: Any, count: int, samples: int) -> Any:
    """The first ``count`` of the ``samples`` in a batch; None where that is none, or a tensor is not cut by samples."""
    if not count or any(tensor.dim() == 0 or len(tensor) != samples for tensor in tensors_in(batch)):
        return None
    return map_tensors(batch, lambda item: item[:count] if isinstance(item, Tensor) else item)


def _together(profiles: dict[int, Profile], smaller: Smaller | None) -> Profile:
    """One profile with the timings of all; the bytes are the largest, where the blocks are the same."""
    first = profiles[min(profiles)]
    timings: dict[int, Timing] = {}
    bytes_ = first.bytes
    for count, found in profiles.items():
        if found.blocks == first.blocks:
            timings[count] = found.timings[count]
            bytes_ = bytes_.most(found.bytes)
    return replace(first, timings=timings, bytes=bytes_, smaller=smaller)


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Random state and the caller's threads are afterwards as before."""
    state = RandomState(make_device(check_model(model, num_waves=1), 1))
    try:
        yield
    finally:
        state.restore()


def _copies(
    model: nn.Module, optimizer: Optimizer | None, replicate: Callable[[], nn.Module] | None
) -> tuple[nn.Module, Optimizer]:
    fresh = make_replicas(model, 1, replicate)[0].model
    own = list(fresh.parameters())
    if optimizer is None:
        return fresh, torch.optim.SGD(own, lr=1e-9)
    return fresh, OptimizerCopy(optimizer, list(model.parameters()), own).optimizer
