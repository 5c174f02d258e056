"""Engines one after the other, groups, budgets, and collectives of the user's own."""

import pytest
import torch
import torch.distributed as dist

import wavelet
from wavelet.exchange import AllReduce, Alone

from .. import models
from .ranks import run
from .training import sgd

pytestmark = pytest.mark.distributed


def many_things(rank, size):
    """Engines one after the other, a budget, automatic waves, groups, and collectives of the user's own between."""
    found = {}
    data = models.batches(10, seed=rank)

    def train(**options):
        model = models.mlp(dropout=0.0, norm=False)
        with wavelet.Wavelet(model, sgd(model.parameters()), models.loss, **options) as engine:
            for batch in data:
                mine = torch.ones(3)
                dist.all_reduce(mine)
                engine.step(batch)
                assert mine.tolist() == [size] * 3
            engine.flush()
            engine.flush()
            waves = engine.waves
        return models.trained_weights(model), waves

    found["free"] = train()
    found["budget"] = train(budget="1x")
    found["plan waits"] = train(budget="1.5x", update="delayed")
    found["auto"] = train(waves="auto")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (size,))
    found["mesh"] = train(exchange=AllReduce(mesh))
    found["alone"] = train(exchange=Alone())
    alone = [dist.new_group([other]) for other in range(size)]
    found["own group"] = train(exchange=AllReduce(alone[rank]))
    for _ in range(15):
        train()
    return found


def test_budgets_groups_and_own_collectives_change_nothing():
    first, second = run(many_things, 2)
    for name in ("free", "budget", "plan waits", "auto", "mesh"):
        models.assert_same(first[name][0], second[name][0])
    models.assert_same(first["free"][0], first["budget"][0])
    models.assert_same(first["free"][0], first["mesh"][0])
    assert first["auto"][1] == second["auto"][1]
    models.assert_same(first["alone"][0], first["own group"][0])
    assert not torch.equal(first["alone"][0][0], second["alone"][0][0])
