"""The engine against the oracle with a model that somebody made."""

import pytest
import torch

import wavelet

from .. import oracle
from ..models import assert_same, batches, loss, mlp, trained_weights

RULES = ["neighbour", "synchronous", "delayed"]


each_rule = pytest.mark.parametrize("rule", RULES)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def compare(build, rule, *, waves=2, make_optimizer=momentum, data=None, loss_function=loss, **options):
    """The engine on ``build()`` trains as the oracle does on another ``build()``; gives the model."""
    data = batches(10, size=6) if data is None else data
    model = build()
    torch.manual_seed(3)
    expected = oracle.train(model, make_optimizer, loss_function, data, rule=rule, waves=waves)
    torch.manual_seed(3)
    optimizer = make_optimizer(model.parameters())
    with wavelet.Wavelet(model, optimizer, loss_function, waves=waves, update=rule, resync=None, **options) as engine:
        steps = [engine.step(batch) for batch in data]
    assert [step.loss for step in steps] == expected.losses
    assert_same(trained_weights(model), expected.weights)
    assert_same(list(model.buffers()), expected.buffers)
    return model


def small():
    return mlp(depth=1, norm=False, dropout=0.0)
