"""The engine against the oracle with an optimizer that somebody made."""

import pytest

import wavelet

from .. import oracle
from ..models import assert_same, batches, loss, mlp, trained_weights

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
