"""Ranks that would train differently, or have come apart, are told; and what makes no sense is refused."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import wavelet
from wavelet.exchange import AllReduce

from .. import models
from .ranks import failures, run
from .training import sgd

pytestmark = pytest.mark.distributed


def train_with_a_freeze(rank, size, which):
    model = models.mlp(dropout=0.0, norm=False)
    found = []
    with wavelet.Wavelet(model, sgd(model.parameters()), models.loss, exchange=AllReduce(timeout=8)) as engine:
        for number, batch in enumerate(models.batches(12, seed=rank)):
            if number == 6:
                engine.drain()
                found += [
                    model[1].inner[0].weight.clone() if hasattr(model[1], "inner") else model[1][0].weight.clone()
                ]
                model[1].requires_grad_(False)
                if which == "ranks differ" and rank == 1:
                    model[2].requires_grad_(False)
            engine.step(batch)
    return [*found, model[1][0].weight.clone(), *models.trained_weights(model)]


def test_a_layer_frozen_midway_stays_on_all_ranks():
    first, second = run(train_with_a_freeze, 2, "same")
    models.assert_same(first, second)
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[2], models.trained_weights(models.mlp(dropout=0.0, norm=False))[0])


def test_ranks_that_freeze_different_layers_are_told():
    for kind, text, seconds in failures(2, train_with_a_freeze, "ranks differ"):
        assert kind == "ExchangeError"
        assert "require a gradient" in text
        assert seconds < 60


def differ(rank, size, name):
    model = models.mlp(norm=False) if name != "parameters" or rank == 0 else models.mlp(norm=False, depth=2)
    options = {"accumulate": 1 + rank} if name == "accumulate" else {}
    exchange = AllReduce(bucket_mb=25 + rank) if name == "bucket_mb" else None
    with wavelet.Wavelet(model, sgd(model.parameters()), models.loss, exchange=exchange, **options):
        pass


@pytest.mark.parametrize("name", ["parameters", "accumulate", "bucket_mb"])
def test_ranks_that_would_train_differently_are_refused(name):
    for kind, text, _ in failures(2, differ, name):
        assert kind == "ValueError"
        assert f"rank 1 has {name}=" in text


def drift(rank, size):
    model = models.mlp(dropout=0.0, norm=False)
    exchange = AllReduce(check_every=2, timeout=10)
    with wavelet.Wavelet(model, sgd(model.parameters()), models.loss, exchange=exchange) as engine:
        for number, batch in enumerate(models.batches(12, seed=rank)):
            if number == 5 and rank == 1:
                engine.drain()
                with torch.no_grad():
                    model[0].bias[0] += 1e-3
            engine.step(batch)


def test_check_every_finds_weights_that_differ():
    for kind, text, _ in failures(2, drift):
        assert kind == "ExchangeError"
        assert "the weights of the ranks differ" in text


def test_arguments_that_make_no_sense(tmp_path):
    with pytest.raises(ValueError, match="AllReduce needs"):
        AllReduce()
    model = models.mlp()
    with pytest.raises(ValueError, match="exchange is a str"):
        wavelet.Wavelet(model, sgd(model.parameters()), models.loss, exchange="all")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        for wrong in ({"bucket_mb": 0}, {"compress": "int8"}, {"check_every": 0}, {"timeout": -1}, {"group": 3}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                AllReduce(**wrong)
        with pytest.raises(ValueError, match="must be the shorter one"):
            wavelet.Wavelet(model, sgd(model.parameters()), models.loss, exchange=AllReduce(timeout=400))
        sparse = nn.Sequential(nn.Embedding(10, 8, sparse=True), nn.Linear(8, 4))
        with pytest.raises(ValueError, match="sparse"):
            wavelet.Wavelet(sparse, sgd(sparse.parameters()), models.loss, exchange=AllReduce())
        with wavelet.Wavelet(model, sgd(model.parameters()), models.loss, exchange=AllReduce()) as engine:
            engine.step(models.batches(1)[0])  # one rank is no rank
    finally:
        dist.destroy_process_group()
