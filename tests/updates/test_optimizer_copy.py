"""Any torch optimizer is copied with what makes it itself: groups, states and hooks."""

import copy

import pytest
import torch
from torch import nn

import wavelet
from wavelet.updates import OptimizerCopy

from ..models import Serial, assert_same, batches, loss, trained_weights
from .optimizers import compare, each_rule, small


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


def test_clipping_counts_the_gradients_of_the_optimizers_parameters_alone():
    """As ``clip_grad_norm_(parameters of the optimizer)`` would: others have no part in the norm."""
    theirs = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    own = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    made = OptimizerCopy(torch.optim.SGD(theirs[:1], lr=1.0), theirs, own)
    made.step([torch.tensor([3.0]), torch.tensor([400.0])], made.applied, 1.0)
    assert own[0].item() == pytest.approx(-1.0, rel=1e-5)
