"""Public failures: threads, and the context that they lose."""

import os
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from .. import oracle
from ..models import assert_same, batches, loss, trained_weights
from .engines import each_rule, make, momentum


def test_20528_an_outer_no_grad_is_obeyed():
    """Threads started by the framework ignored the caller's no_grad. Ours runs the forward where the caller is."""
    _, engine = make()
    with engine:
        with torch.no_grad(), pytest.raises(ValueError, match="no_grad"):
            engine.step(batches(1)[0])
        assert engine.step(batches(1)[0]).number == 0


@each_rule
def test_82145_no_grad_inside_a_recomputation(rule):
    """What was computed without gradients in forward is recomputed without them, in another thread."""

    class Halting(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

        def part(self, x):
            with torch.no_grad():
                gate = torch.sigmoid(self.first(x))
            assert not gate.requires_grad
            return self.second(x * gate)

        def forward(self, x):
            return checkpoint(self.part, self.first(x), use_reentrant=False)

    data = batches(8, size=6)
    expected = oracle.train(Halting(), momentum, loss, data, rule=rule, waves=2)
    model, engine = make(Halting(), update=rule)
    with engine:
        for batch in data:
            engine.step(batch)
    assert_same(trained_weights(model), expected.weights)


class Precise(torch.autograd.Function):
    """A function with rules of its own for autocast, as libraries of kernels have."""

    seen = []  # noqa: RUF012

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        Precise.seen.append(("forward", torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        Precise.seen.append(("backward", torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return gradient * 2


def test_43102_a_backward_in_a_thread_has_the_autocast_of_its_forward():
    """Autocast is thread-local: a backward in another thread ran without it, or with another dtype."""
    Precise.seen.clear()
    _, engine = make(loss_function=lambda model, batch: Precise.apply(loss(model, batch)), autocast=torch.bfloat16)
    with engine:
        engine.step(batches(1)[0])
    assert Precise.seen == [(part, True, torch.bfloat16) for part in ("forward", "backward")]


@pytest.mark.parametrize("reentrant", [True, False])
def test_96764_a_recomputation_draws_the_masks_of_its_forward(reentrant):
    """Two threads swapped the global random state under each other, so masks in backward were not those in forward."""
    drawn = {}

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

        def part(self, x, number):
            mask = torch.rand(8)
            drawn.setdefault(number, []).append(mask)
            time.sleep(0.001)
            torch.rand(1)
            return self.second(x * mask)

        def forward(self, x, number):
            return checkpoint(self.part, self.first(x), number, use_reentrant=reentrant)

    def numbered(model, batch):
        number, (x, y) = batch
        torch.rand(3)
        time.sleep(0.001)
        return cross_entropy(model(x, number), y)

    _, engine = make(Masked(), numbered, waves=3)
    with engine:
        for batch in enumerate(batches(20, size=4)):
            engine.step(batch)
            torch.rand(2)
    assert len(drawn) == 20
    for masks in drawn.values():
        assert len(masks) == 2 and torch.equal(masks[0], masks[1])


@each_rule
def test_119262_autograd_inside_a_hook_and_inside_a_forward(rule):
    """A thread entered autograd while it held a lock that another, inside autograd, wanted. We hold none."""

    def busy_hook(gradient):
        with torch.enable_grad():
            x = torch.ones(3, requires_grad=True)
            x.square().sum().backward()
        return gradient

    def busy(model, batch):
        x = batch[0].clone().requires_grad_(True)
        torch.autograd.grad(model(x).sum(), x)
        value = loss(model, batch)
        value.register_hook(busy_hook)
        return value

    _, engine = make(loss_function=busy, update=rule, waves=3, timeout=60.0)
    with engine:
        for batch in batches(12, size=6):
            engine.step(batch)


@each_rule
def test_torchgpipe_one_failure_ends_every_wave_and_the_first_error_rises(rule):
    """Peers waited for ever for the one that failed. Two fail here; a serial loop would have met the earlier one."""
    second_failed = threading.Event()

    def failing(model, batch):
        number, batch = batch
        value = loss(model, batch)

        def fail(gradient):
            if number == 4:
                second_failed.set()
                raise KeyError("batch 4")
            second_failed.wait(5)
            time.sleep(0.05)
            raise KeyError("batch 3")

        if number in (3, 4):
            value.register_hook(fail)
        return value

    _, engine = make(loss_function=failing, waves=3, update=rule)
    with pytest.raises(KeyError, match="batch 3"), engine:
        for batch in enumerate(batches(12, size=6)):
            engine.step(batch)


def test_20528_hooks_on_saved_tensors_follow_the_forward():
    """Hooks on saved tensors are thread-local: packed by the caller, they are unpacked in the wave."""
    packed, unpacked = [], []

    def pack(tensor):
        packed.append(threading.current_thread().name)
        return tensor

    def unpack(tensor):
        unpacked.append(threading.current_thread().name)
        return tensor

    _, engine = make()
    with engine:
        for batch in batches(4):
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                engine.step(batch)
    assert len(packed) == len(unpacked) > 0
    assert set(packed) == {"MainThread"}
    assert set(unpacked) == {"wavelet tick-wave", "wavelet tock-wave"}


def test_20528_a_backward_that_draws_is_refused():
    """A hook that adds noise draws in a wave's thread, at a moment that nobody chose: runs would differ."""

    def noisy(model, batch):
        value = loss(model, batch)
        value.register_hook(lambda gradient: gradient * torch.rand(()))
        return value

    with pytest.raises((ValueError, RuntimeError), match="random"):
        with make(loss_function=noisy)[1] as engine:
            for batch in batches(4):
                engine.step(batch)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_130610_a_wave_may_fork_itself():
    """A process that is forked in a backward must not wait for that very backward to end."""

    def fork(gradient):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    def forking(model, batch):
        value = loss(model, batch)
        value.register_hook(fork)
        return value

    with make(loss_function=forking, timeout=20.0)[1] as engine:
        for batch in batches(3):
            engine.step(batch)
