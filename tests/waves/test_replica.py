"""A replica is the model in everything that training sees."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations, prune

import wavelet
from wavelet.waves.replica import make_replicas

from .. import oracle
from ..models import assert_same, batches, loss, mlp, trained_weights
from .replicas import compare, each_rule, momentum, small


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8, bias=False)
        self.middle = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.second(self.middle(self.first(x))))


@pytest.mark.parametrize("replicate", [None, Tied], ids=["deepcopy", "replicate="])
@each_rule
def test_tied_weights_stay_tied(rule, replicate):
    model = compare(Tied, rule, replicate=replicate)
    assert model.first.weight is model.second.weight


def test_tied_buffers_stay_tied():
    def build():
        model = mlp(depth=2)
        model[2][1] = model[1][1]
        return model

    compare(build, "neighbour", waves=3)


@each_rule
def test_frozen_weights_stay(rule):
    def build():
        model = mlp(depth=1)
        model[1].requires_grad_(False)
        return model

    compare(build, rule)


class PartlyUsed(nn.Module):
    """One branch a batch, and one parameter never: plain PyTorch leaves what has no gradient alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.branches = nn.ModuleList(nn.Linear(8, 4) for _ in range(3))
        self.never = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.branches[0 if x[0, 0] > 0.8 else 1 if x[0, 0] > 0 else 2](x)


@pytest.mark.parametrize("waves", [2, 3])
@each_rule
def test_unused_parameters_are_not_moved_by_weight_decay(rule, waves):
    model = compare(PartlyUsed, rule, waves=waves, data=batches(14, size=6))
    assert torch.equal(model.never, torch.ones(3))


def test_a_gradient_on_the_model_is_neither_copied_nor_touched():
    model = small()
    loss(model, batches(1)[0]).backward()
    before = [p.grad.clone() for p in model.parameters()]
    replica = make_replicas(model, 1)[0]
    assert all(p.grad is None for p in replica.parameters)
    with wavelet.Wavelet(model, momentum(model.parameters()), loss) as engine:
        for batch in batches(4):
            engine.step(batch)
    assert_same([p.grad for p in model.parameters()], before)


def clamp_gradient(parameter):
    parameter.grad.clamp_(-0.01, 0.01)


class Hooked(nn.Module):
    """Hooks on its tensors; a copy gets them too."""

    def __init__(self):
        super().__init__()
        self.model = small()
        self.model[0].weight.register_hook(lambda gradient: gradient * 3)
        self.model[-1].bias.register_post_accumulate_grad_hook(clamp_gradient)

    def forward(self, x):
        return self.model(x)


class CopiedWithHooks(Hooked):
    """For the oracle, which copies its model by deepcopy."""

    def __deepcopy__(self, memo):
        return CopiedWithHooks()


@each_rule
def test_hooks_on_tensors_act_in_every_wave(rule):
    data = batches(8, size=6)
    expected = oracle.train(CopiedWithHooks(), momentum, loss, data, rule=rule, waves=2)
    model = Hooked()
    with wavelet.Wavelet(model, momentum(model.parameters()), loss, update=rule, resync=None) as engine:
        for batch in data:
            engine.step(batch)
    assert_same(trained_weights(model), expected.weights)


def test_a_hook_on_a_weight_that_was_frozen_later():
    """A frozen tensor takes no hook, but the hook it has counts again once it is unfrozen."""
    model = small()
    model[0].weight.register_hook(lambda gradient: gradient * 0)
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    with wavelet.Wavelet(model, torch.optim.SGD(model.parameters(), lr=0.1), loss) as engine:
        engine.step(batches(1)[0])
        model[0].weight.requires_grad_(True)
        for batch in batches(4):
            engine.step(batch)
    assert torch.equal(model[0].weight, before)


def test_attributes_of_parameters_survive():
    model = small()
    model[0].weight.rate = 0.5
    assert make_replicas(model, 1)[0].parameters[0].rate == 0.5


def test_module_hooks_survive():
    def build():
        model = small()
        model[0].register_forward_hook(lambda module, inputs, output: output * 2)
        model[-1].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
        model[-1].register_full_backward_hook(lambda module, gradients, outputs: (gradients[0] * 2,))
        return model

    compare(build, "neighbour")


def test_the_loss_may_read_what_a_module_left_behind():
    """An auxiliary loss that a layer keeps for the loss function, as mixtures of experts do."""

    class Leaves(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(8, 4)
            self.auxiliary = None

        def forward(self, x):
            y = self.layer(x)
            self.auxiliary = y.pow(2).mean()
            return y

    def with_auxiliary(model, batch):
        x, y = batch
        return cross_entropy(model(x), y) + model.auxiliary

    compare(Leaves, "neighbour", loss_function=with_auxiliary)


def parametrized():
    torch.manual_seed(0)
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 8)), parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 4)
    )


@pytest.mark.parametrize("replicate", [None, parametrized], ids=["deepcopy", "replicate="])
@each_rule
def test_parametrizations(rule, replicate):
    compare(parametrized, rule, replicate=replicate)


def old_spectral_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 4))


@pytest.mark.parametrize("replicate", [None, old_spectral_norm], ids=["deepcopy", "replicate="])
@each_rule
def test_old_spectral_norm(rule, replicate):
    """Its weight is a plain attribute that each forward computes anew; its state is in buffers."""
    compare(old_spectral_norm, rule, replicate=replicate)


def pruned():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    prune.l1_unstructured(model[0], "weight", 0.5)
    return model


def test_pruned_weights_with_replicate():
    data = batches(8, size=6)
    model = pruned()
    with wavelet.Wavelet(
        model, momentum(model.parameters()), loss, update="delayed", waves=1, replicate=pruned
    ) as engine:
        for batch in data:
            engine.step(batch)
    plain = pruned()
    optimizer = momentum(plain.parameters())
    for batch in data:
        optimizer.zero_grad()
        loss(plain, batch).backward()
        optimizer.step()
    assert_same(trained_weights(model), trained_weights(plain))


def old_weight_norm():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 4))


def test_old_weight_norm_needs_replicate():
    """deepcopy fails on it (#28594); with replicate= it trains as the same model without waves."""
    model = old_weight_norm()
    with pytest.raises(ValueError, match=r"cannot be copied .*: pass replicate="):
        wavelet.Wavelet(model, momentum(model.parameters()), loss)
    data = batches(8, size=6)
    optimizer = momentum(model.parameters())
    with wavelet.Wavelet(model, optimizer, loss, update="synchronous", waves=2, replicate=old_weight_norm) as engine:
        for batch in data:
            engine.step(batch)
    plain = old_weight_norm()
    optimizer = momentum(plain.parameters())
    torch.set_num_threads(1)
    for first, second in zip(data[::2], data[1::2], strict=True):
        optimizer.zero_grad()
        loss(plain, first).backward()
        loss(plain, second).backward()
        for parameter in plain.parameters():
            parameter.grad /= 2
        optimizer.step()
    assert_same(trained_weights(model), trained_weights(plain))
