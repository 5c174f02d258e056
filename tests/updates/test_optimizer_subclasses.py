"""Subclasses of optimizers keep their attributes and states in every wave."""

import collections
import copy
import types
from typing import NamedTuple

import pytest
import torch
from torch import nn

import wavelet
from wavelet.updates import OptimizerCopy

from ..models import Serial, assert_same, batches, loss, trained_weights
from .optimizers import compare, each_rule, small


class Warming(torch.optim.SGD):
    """Keeps a count, a history and a slow copy of the weights in attributes, and a function too."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr, momentum=0.9)
        self.calls = 0
        self.history = collections.deque(maxlen=3)
        self.slow = {p: p.detach().clone() for group in self.param_groups for p in group["params"]}
        self.shape = lambda count: 1 / (1 + count)

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        norm = sum(float(p.grad.norm()) for p in self.slow if p.grad is not None)
        self.history.append(norm)
        super().step()
        for p, slow in self.slow.items():
            slow.lerp_(p, self.shape(self.calls) / (1 + sum(self.history)))
            p.lerp_(slow, 0.1)


@each_rule
def test_a_subclass_with_attributes(rule):
    compare(lambda p: Warming(p, lr=0.05), rule)


def test_after_closing_the_users_own_loop_goes_on_with_a_subclass():
    """What the subclass keeps in attributes is as new as the weights."""
    data = batches(8, size=6)
    model = small()
    optimizer = Warming(list(model.parameters()), lr=0.05)
    with wavelet.Wavelet(model, optimizer, loss, waves=1) as engine:
        for batch in data[:5]:
            engine.step(batch)
    serial = Serial(small(), lambda p: Warming(p, lr=0.05), rule="delayed", waves=1)
    for batch in data:
        serial.step(batch)
    assert optimizer.calls == 5
    for batch in data[5:]:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])


class ByAttribute(torch.optim.SGD):
    """Reads a rate from each parameter, as users of per-layer rates do."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(getattr(p, "rate", 1.0))
        super().step()


@each_rule
def test_an_optimizer_that_reads_attributes_of_parameters(rule):
    def build():
        model = small()
        model[0].weight.rate = 0.1
        return model

    def make(parameters):
        parameters = list(parameters)
        parameters[0].rate = 0.1  # the oracle's parameters are plain ones
        return ByAttribute(parameters, lr=0.05, momentum=0.9)

    compare(make, rule, build=build)


class Counting(torch.optim.Optimizer):
    """Like Prodigy, keeps its state in the parameter group: a count, and a scale that grows."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr, "k": 0, "d": 1e-3, "numerator": None})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            norm = sum(p.grad.square().sum() for p in group["params"] if p.grad is not None)
            group["k"] += 1
            group["numerator"] = norm if group["numerator"] is None else group["numerator"] * 0.9 + norm
            group["d"] = max(group["d"], float(group["numerator"]) / (1 + group["k"]))
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"] * group["d"])


@pytest.mark.parametrize("drains", [False, True])
@each_rule
def test_state_in_the_parameter_group_is_the_optimizers_own(rule, drains):
    """A rate that the user changes beside it takes over nothing else; the face shows the newest count and scale."""
    data = batches(12, size=6)
    serial = Serial(small(), Counting, rule=rule, waves=2)
    for n, batch in enumerate(data):
        for _, optimizer in serial.pairs:
            optimizer.param_groups[0]["lr"] = 0.1 + n / 100
        serial.step(batch)
    model = small()
    optimizer = Counting(model.parameters())
    with wavelet.Wavelet(model, optimizer, loss, update=rule, resync=None) as engine:
        for n, batch in enumerate(data):
            optimizer.param_groups[0]["lr"] = 0.1 + n / 100
            engine.step(batch)
            if drains and n % 5 == 0:
                engine.drain()
    assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])
    expected = serial.newest[1].param_groups[0]
    assert {k: v for k, v in optimizer.param_groups[0].items() if k != "params"} == {
        k: v for k, v in expected.items() if k != "params"
    }


class Pair(NamedTuple):
    slow: torch.Tensor
    fast: torch.Tensor


class Shapes(torch.optim.SGD):
    """Keeps state in a set, a named tuple, a mapping of another kind, and second names of torch's own attributes."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr, momentum=0.9)
        self.touched = set()
        self.pair = Pair(torch.zeros(()), torch.zeros(()))
        self.by_number = types.SimpleNamespace()
        self.counts = collections.OrderedDict(steps=torch.zeros(()))
        self.my_state, self.my_groups = self.state, self.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        self.touched.update(p for group in self.my_groups for p in group["params"])
        self.pair = Pair(self.pair.fast, self.pair.fast + 1)
        self.counts["steps"] += 1
        for p in self.touched:
            p.add_(self.my_state[p]["momentum_buffer"], alpha=1e-3 * float(self.pair.slow))


@each_rule
def test_attributes_of_every_kind_are_the_newest_after_a_drain(rule):
    data = batches(9, size=6)
    serial = Serial(small(), lambda p: Shapes(p, lr=0.05), rule=rule, waves=2)
    model = small()
    optimizer = Shapes(model.parameters(), lr=0.05)
    with wavelet.Wavelet(model, optimizer, loss, update=rule, resync=None) as engine:
        for batch in data:
            engine.step(batch)
            serial.step(batch)
            engine.drain()
            serial_weights, newest = serial.newest
            assert optimizer.touched == ({*model.parameters()} if newest.touched else set())
            assert optimizer.my_state is optimizer.state
            assert optimizer.my_groups is optimizer.param_groups
            assert isinstance(optimizer.counts, collections.OrderedDict)
            if rule != "delayed":
                assert (*optimizer.pair, optimizer.counts["steps"]) == (*newest.pair, newest.counts["steps"])
            assert_same([p.detach() for p in model.parameters()], [p.detach() for p in serial_weights])


class Noisy(torch.optim.SGD):
    """Draws noise in its step, as Langevin dynamics do."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(torch.randn_like(p), alpha=0.01)


@each_rule
def test_an_optimizer_that_draws_is_refused(rule):
    """Its draws would fall among the caller's wherever the threads happen to be; a single wave may draw."""
    model = small()
    with pytest.raises((ValueError, RuntimeError), match="random"):
        with wavelet.Wavelet(model, Noisy(model.parameters(), lr=0.1), loss, update=rule) as engine:
            for batch in batches(4):
                engine.step(batch)
    model = small()
    with wavelet.Wavelet(model, Noisy(model.parameters(), lr=0.1), loss, update=rule, waves=1) as engine:
        for batch in batches(4):
            engine.step(batch)


def test_a_copy_shares_nothing_that_it_writes():
    theirs = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    own = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    original = Warming(theirs, lr=0.1)
    for p in theirs:
        p.grad = torch.ones_like(p)
    original.step()
    before = copy.deepcopy(original.state_dict()), list(original.history), [s.clone() for s in original.slow.values()]
    made = OptimizerCopy(original, theirs, own)
    for _ in range(3):
        made.step([torch.full((3,), 2.0), torch.full((2,), 2.0)], made.applied, None)
    assert original.calls == 1
    assert list(original.history) == before[1]
    assert_same(list(original.slow.values()), before[2])
    for index, state in before[0]["state"].items():
        assert torch.equal(original.state[theirs[index]]["momentum_buffer"], state["momentum_buffer"])
    assert all(p.grad is None for p in own), "gradients are given up"
    assert {id(p) for group in made.optimizer.param_groups for p in group["params"]} == {id(p) for p in own}
