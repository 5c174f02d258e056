"""Public failures: gradients of shared, unused and frozen weights, and their accumulation."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import wavelet

from .. import oracle
from ..models import assert_same, batches, loss, trained_weights
from .engines import each_rule, make, momentum, small


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
