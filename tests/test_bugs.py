"""Public failures of neighbouring projects, one story a test: what happened there, and what we owe instead.

A bare # is PyTorch's. Failures that have a file of tests of their own are told there: autocast and recomputation in
tests/waves/test_recompute.py, copies in tests/waves/test_replica.py, the compiler in tests/test_compile.py, sparse and
complex gradients in tests/updates/test_gradients.py, Ctrl-C and forked loaders in tests/test_failure.py, resuming in
tests/test_saving.py.
"""

import copy
import os
import sys
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import wavelet

from . import oracle
from .models import Serial, assert_same, batches, loss, mlp, trained_weights

RULES = ["neighbour", "synchronous", "delayed"]
each_rule = pytest.mark.parametrize("rule", RULES)


def small():
    return mlp(depth=1, norm=False, dropout=0.0)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def make(model=None, loss_function=loss, **options):
    model = small() if model is None else model
    options.setdefault("resync", None)
    return model, wavelet.Wavelet(model, momentum(model.parameters()), loss_function, **options)


# Threads and context.


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


# Memory.


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes on exceptions")
def test_composer_2117_out_of_memory_says_what_to_change_and_leaves_whole_weights():
    """Running out of memory in a backward left half an update on some ranks, and the message helped nobody."""

    def hungry(gradient):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    def at_batch_3(model, batch):
        number, batch = batch
        value = loss(model, batch)
        if number == 3:
            value.register_hook(hungry)
        return value

    model, engine = make(loss_function=at_batch_3, update="delayed")
    with pytest.raises(torch.OutOfMemoryError) as error, engine:
        for batch in enumerate(batches(8, size=6)):
            engine.step(batch)
    assert any("waves=1 or smaller batches" in note for note in error.value.__notes__)
    serial = Serial(small(), momentum, rule="delayed", waves=2)
    for batch in batches(3, size=6):
        serial.step(batch)
    assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])


# Data-parallel semantics.


@pytest.mark.parametrize("reentrant", [True, False])
@each_rule
def test_55248_a_shared_weight_inside_and_outside_a_checkpoint(rule, reentrant):
    """A weight used twice, once in a recomputation, was marked ready twice: the wrapper raised or averaged twice."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            x = self.layer(x)
            x = checkpoint(self.layer, x, use_reentrant=reentrant)
            return self.last(self.layer(x))

    data = batches(8, size=6)
    expected = oracle.train(Shared(), momentum, loss, data, rule=rule, waves=2)
    model, engine = make(Shared(), update=rule)
    with engine:
        for batch in data:
            engine.step(batch)
    assert_same(trained_weights(model), expected.weights)


class Sometimes(nn.Module):
    """A branch that only some batches use, and one that none does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.always, self.sometimes, self.never = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        return self.always(x) + (self.sometimes(x) if x[0, 0] > 0 else 0)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@each_rule
def test_22049_parameters_that_some_batches_do_not_use(rule, accumulate):
    """Waiting for gradients that never come hung, or raised. A missing one counts as zero beside one that is there."""
    data = batches(18, size=6)
    expected = oracle.train(Sometimes(), momentum, loss, data, rule=rule, waves=2, accumulate=accumulate)
    model = Sometimes()
    optimizer = momentum(model.parameters())
    before = copy.deepcopy(model.never)
    with wavelet.Wavelet(model, optimizer, loss, update=rule, accumulate=accumulate, resync=None) as engine:
        for batch in data:
            engine.step(batch)
    assert_same(trained_weights(model), expected.weights)
    assert_same(trained_weights(model.never), trained_weights(before))
    assert all(p not in optimizer.state or not optimizer.state[p] for p in model.never.parameters())


@each_rule
def test_fairscale_368_a_weight_frozen_amid_an_accumulation(rule):
    """The wrapper had noted at the start what is trained. Half a sum of gradients must not move a frozen weight."""
    model, engine = make(update=rule, accumulate=2)
    data = batches(8, size=6)
    with engine:
        for batch in data[:6]:
            engine.step(batch)
        engine.drain()
        before = [copy.deepcopy(engine._rule.weights[wave][0].detach()) for wave in range(2)]
        model[0].weight.requires_grad_(False)
        for batch in data[6:]:
            engine.step(batch)
        engine.drain()
        after = [weights[0].detach() for weights in engine._rule.weights]
    if rule == "delayed":  # its buffers take turns: both hold the newest of before
        before = [before[engine._rule.newest]] * 2
    assert_same(after, before)


@pytest.mark.parametrize(("rule", "updates"), [("neighbour", 4), ("delayed", 4), ("synchronous", 2)])
def test_accelerate_1726_accumulation_is_counted_in_updates(rule, updates):
    """no_sync around backward alone had no effect, so every micro-batch made an update."""
    calls = []
    model = small()
    optimizer = momentum(model.parameters())
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    with wavelet.Wavelet(model, optimizer, loss, update=rule, accumulate=3) as engine:
        for batch in batches(12, size=6):
            engine.step(batch)
    assert len(calls) == updates


# Optimizer and schedule.


@each_rule
def test_accelerate_641_clipping_comes_after_unscaling(rule):
    """Clipping the scaled gradient by the plain norm made every update a thousand times too small."""
    moved = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=4096.0)):
        model = small()
        before = trained_weights(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with wavelet.Wavelet(
            model, optimizer, loss, update=rule, waves=1, clip_grad_norm=0.1, grad_scaler=scaler
        ) as engine:
            engine.step(batches(1)[0])
        distance = sum((a - b).square().sum() for a, b in zip(before, trained_weights(model), strict=True)).sqrt()
        moved.append(distance.item())
    assert moved[0] == pytest.approx(0.1, rel=1e-4)
    assert moved[1] == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize(("rule", "updates"), [("neighbour", 6), ("delayed", 6), ("synchronous", 3)])
def test_accelerate_963_a_scheduler_is_stepped_once_an_update(rule, updates):
    """Once a process and micro-batch, a warm-up was over eight times too early."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with wavelet.Wavelet(model, optimizer, loss, update=rule, accumulate=2, scheduler=scheduler) as engine:
        for batch in batches(12, size=6):
            engine.step(batch)
    assert optimizer.param_groups[0]["lr"] == 0.5**updates


def test_post_local_sgd_after_loading_the_groups_are_still_the_users():
    """After load_state_dict the wrapper's groups were others than the optimizer's, so new rates went nowhere."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wavelet.Wavelet(model, optimizer, loss) as engine:
        engine.step(batches(1)[0])
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.param_groups[0]["lr"] = 0.0
        for batch in batches(2):
            engine.step(batch)
        engine.drain()
        before = trained_weights(model)
        for batch in batches(4):
            engine.step(batch)
        engine.drain()
        assert_same(trained_weights(model), before)


# Replicas.


def test_accelerate_1835_a_wrapped_forward_does_not_train_the_original():
    """A decorator around forward kept calling the model it was made for, so the copy's weights never moved."""
    model = small()
    original = model.forward

    def timed(x):
        return original(x)

    model.forward = timed
    with pytest.raises(ValueError, match=r"original.*replicate="):
        with make(model)[1] as engine:
            for batch in batches(4):
                engine.step(batch)


def test_65051_lazy_and_meta_modules_are_named():
    """They failed far from their cause, when a shape or a value was missing."""
    for model, word in ((nn.Sequential(nn.LazyLinear(4)), "lazy"), (nn.Linear(8, 4, device="meta"), "meta")):
        with pytest.raises(ValueError, match=word):
            make(model)
