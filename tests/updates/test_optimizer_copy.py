"""Any torch optimizer is copied with what makes it itself: groups, states, attributes, hooks, inner optimizers."""

import collections
import copy
import types
from typing import NamedTuple

import pytest
import torch
from torch import nn

import wavelet
from wavelet.updates import OptimizerCopy

from .. import oracle
from ..models import Serial, assert_same, batches, loss, mlp, trained_weights

RULES = ["neighbour", "synchronous", "delayed"]
each_rule = pytest.mark.parametrize("rule", RULES)


def small():
    return mlp(depth=1, norm=False, dropout=0.0)


def compare(make_optimizer, rule, *, waves=2, build=small, **options):
    """The engine trains as the oracle does, with optimizers made anew; gives the user's model and optimizer."""
    data = batches(14, size=6)
    expected = oracle.train(build(), make_optimizer, loss, data, rule=rule, waves=waves, resync=options.get("resync"))
    model = build()
    optimizer = make_optimizer(model.parameters())
    options.setdefault("resync", None)
    with wavelet.Wavelet(model, optimizer, loss, waves=waves, update=rule, **options) as engine:
        for batch in data:
            engine.step(batch)
    assert_same(trained_weights(model), expected.weights)
    return model, optimizer


def groups(parameters):
    first, *others = parameters
    return [{"params": [first], "lr": 0.2, "weight_decay": 0.1}, {"params": others, "momentum": 0.5}]


TORCHS_OWN = {
    "groups": lambda p: torch.optim.SGD(groups(p), lr=0.05, momentum=0.9),
    "foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "fused": lambda p: torch.optim.AdamW(groups_of_adam(p), lr=0.01, fused=True),
    "amsgrad, maximize": lambda p: torch.optim.Adam(p, lr=0.001, amsgrad=True, maximize=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "lr tensor": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1)),
}


def groups_of_adam(parameters):
    first, *others = parameters
    return [{"params": [first], "lr": 0.02}, {"params": others, "betas": (0.5, 0.9)}]


@pytest.mark.parametrize("name", TORCHS_OWN)
@each_rule
def test_optimizers_of_torch(rule, name):
    compare(TORCHS_OWN[name], rule)


@pytest.mark.parametrize("name", ["adam", "momentum of one element"])
def test_resync_averages_states_that_have_a_shape(name):
    """Not Adam's step; but the moments of a parameter of one element, or of none."""

    def build():
        model = small()
        model[0].weight.data.mul_(0.5)
        return nn.Sequential(model, Scale())

    make = {
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "momentum of one element": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    }[name]
    compare(make, "neighbour", build=build, resync=2)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.scale


def test_an_optimizer_that_was_used_before():
    """Its state and groups are where the waves start."""

    def make(parameters):
        parameters = list(parameters)
        optimizer = torch.optim.Adam(parameters, lr=0.01)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        return optimizer

    data = batches(8, size=6)
    model = small()
    optimizer = make(model.parameters())
    serial = Serial(model, lambda p: used(optimizer, p), rule="neighbour", waves=2)
    with wavelet.Wavelet(model, optimizer, loss, resync=None) as engine:
        for batch in data:
            engine.step(batch)
    for batch in data:
        serial.step(batch)
    assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])


def used(optimizer, parameters):
    other = torch.optim.Adam(parameters, lr=0.5)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return other


# Subclasses.


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


class Lookahead(torch.optim.Optimizer):
    """Wraps an optimizer and shares its groups; every third step pulls towards slow weights kept in its own state."""

    def __init__(self, base):
        self.base = base
        super().__init__(base.param_groups, dict(base.defaults))
        self.param_groups = base.param_groups
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.base.step()
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.detach().clone())
                if self.count % 3 == 0:
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)

    def state_dict(self):
        return {"base": self.base.state_dict(), "slow": super().state_dict()["state"], "count": self.count}


@each_rule
def test_a_wrapper_that_shares_its_groups(rule):
    def make(parameters):
        return Lookahead(torch.optim.SGD(parameters, lr=0.1, momentum=0.9))

    data = batches(12, size=6)
    serial = Serial(small(), make, rule=rule, waves=2)
    model = small()
    optimizer = make(model.parameters())
    with wavelet.Wavelet(model, optimizer, loss, update=rule, resync=None) as engine:
        for n, batch in enumerate(data):
            for _, inner in serial.pairs:
                inner.base.param_groups[0]["lr"] = 0.1 + n / 100
            serial.step(batch)
            optimizer.base.param_groups[0]["lr"] = 0.1 + n / 100
            engine.step(batch)
    assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])


def test_after_a_drain_an_inner_optimizer_has_its_newest_state_too():
    model = small()
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    serial = Serial(small(), lambda p: Lookahead(torch.optim.SGD(p, lr=0.1, momentum=0.9)), rule="delayed", waves=2)
    with wavelet.Wavelet(model, optimizer, loss, update="delayed") as engine:
        for batch in batches(4):
            engine.step(batch)
            serial.step(batch)
    newest = serial.newest[1]
    assert optimizer.count == newest.count
    for mine, theirs in zip(model.parameters(), serial.newest[0], strict=True):
        assert torch.equal(optimizer.state[mine]["slow"], newest.state[theirs]["slow"])
        assert torch.equal(optimizer.base.state[mine]["momentum_buffer"], newest.base.state[theirs]["momentum_buffer"])


class Both(torch.optim.Optimizer):
    """Gives matrices to one optimizer and vectors to another, as users of Muon do."""

    def __init__(self, parameters):
        parameters = list(parameters)
        self.parts = [
            torch.optim.SGD([p for p in parameters if p.dim() > 1], lr=0.1, momentum=0.9),
            torch.optim.Adam([p for p in parameters if p.dim() == 1], lr=0.01),
        ]
        super().__init__(parameters, {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure=None):
        for part in self.parts:
            part.step()


@each_rule
def test_a_list_of_optimizers_inside_one(rule):
    _, optimizer = compare(Both, rule)
    for part in optimizer.parts:
        assert all(part.state[p] for group in part.param_groups for p in group["params"]), "the face has their state"


class Saving(Lookahead):
    """Saves and loads all that it has."""

    def load_state_dict(self, state):
        self.base.load_state_dict(state["base"])
        self.param_groups = self.base.param_groups
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.state.update({parameters[i]: dict(slow) for i, slow in state["slow"].items()})
        self.count = state["count"]


@each_rule
def test_a_wrapper_is_saved_and_resumed(rule):
    data = batches(12, size=6)

    def engine_on(model):
        optimizer = Saving(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        return wavelet.Wavelet(model, optimizer, loss, update=rule, resync=None)

    model, resumed = small(), small()
    with engine_on(model) as engine:
        for number, batch in enumerate(data):
            if number == 5:
                state = engine.state_dict()
            engine.step(batch)
    with engine_on(resumed) as engine:
        engine.load_state_dict(state)
        for batch in data[5:]:
            engine.step(batch)
    assert_same(trained_weights(resumed), trained_weights(model))


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


# Hooks.


@each_rule
def test_step_hooks_run_once_an_update(rule):
    calls = []

    def make(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.05)
        optimizer.register_step_pre_hook(scale_gradients)
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        return optimizer

    compare(make, rule)
    count = 7 if rule == "synchronous" else 14
    assert len(calls) == 2 * count  # the oracle's and the engine's


def scale_gradients(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad.mul_(0.5)


def test_a_step_hook_added_later_runs_too():
    calls = []
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with wavelet.Wavelet(model, optimizer, loss) as engine:
        engine.step(batches(1)[0])
        engine.drain()
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        for batch in batches(3):
            engine.step(batch)
    assert len(calls) == 3


# The copy itself.


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


def test_clipping_counts_the_gradients_of_the_optimizers_parameters_alone():
    """As ``clip_grad_norm_(parameters of the optimizer)`` would: others have no part in the norm."""
    theirs = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    own = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    made = OptimizerCopy(torch.optim.SGD(theirs[:1], lr=1.0), theirs, own)
    made.step([torch.tensor([3.0]), torch.tensor([400.0])], made.applied, 1.0)
    assert own[0].item() == pytest.approx(-1.0, rel=1e-5)
