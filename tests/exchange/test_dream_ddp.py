"""DreamDDP equals the serial oracle of its definition, whichever layers go when."""

import random
import time

import pytest
import torch

import wavelet
from wavelet.exchange import DreamDDP, buckets
from wavelet.exchange.schedule import Schedule, Times

from .. import models
from . import local_oracle
from .ranks import run

pytestmark = pytest.mark.distributed


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def model():
    return models.mlp(dropout=0.0, norm=False)


def data(rank, count):
    return models.batches(count, seed=100 + rank)


def train(rank, size, cases, sleeps=False):
    buckets.LEAST_BYTES = 1  # every layer is one
    pauses = random.Random(rank)

    def loss(net, batch):
        if sleeps:
            time.sleep(pauses.choice([0, 0, 0.01]))
        return models.loss(net, batch)

    found = []
    for options in cases:
        case = dict(options)
        period, optimizer, counts = case.pop("period"), case.pop("optimizer"), case.pop("counts")
        net = model()
        exchange = DreamDDP(period, measure=False)
        with wavelet.Wavelet(net, optimizer(net.parameters()), loss, exchange=exchange, **case) as engine:
            for batch in data(rank, counts[rank]):
                engine.step(batch)
        found.append(models.trained_weights(net))
    return found


def assignment(period, monkeypatch):
    """For each phase the numbers of the parameters that go then."""
    monkeypatch.setattr(buckets, "LEAST_BYTES", 1)
    parameters = list(model().parameters())
    schedule = Schedule(Times.by_size(parameters, period), parameters, [True] * len(parameters), period)
    phases = [sorted(layout.places) for layout in schedule.layouts]
    assert sorted({index for phase in phases for index in phase}) == list(range(len(parameters)))
    if period > 1:
        assert all(len(phase) < len(parameters) for phase in phases)
    return phases


def expected(size, case, monkeypatch):
    case = dict(case)
    period, optimizer, counts, rule = (case.pop(name) for name in ("period", "optimizer", "counts", "update"))
    torch.set_num_threads(max(1, 2 // case["waves"]))
    ranks = [
        local_oracle.Rank(model(), optimizer, models.loss, data(rank, counts[rank]), rule=rule, **case)
        for rank in range(size)
    ]
    return local_oracle.train(ranks, local_oracle.LayerWise(ranks, assignment(period, monkeypatch)))


def cases():
    for period in (1, 3, 4):
        for waves, rule in ((1, "neighbour"), (2, "neighbour"), (2, "synchronous"), (1, "delayed")):
            yield {"period": period, "update": rule, "waves": waves, "optimizer": adam, "counts": [14, 14]}
    for rule in ("neighbour", "synchronous"):
        yield {"period": 3, "update": rule, "waves": 2, "accumulate": 2, "optimizer": sgd, "counts": [15, 15]}
    yield {"period": 3, "update": "neighbour", "waves": 2, "resync": 2, "optimizer": adam, "counts": [14, 14]}
    yield {"period": 3, "update": "neighbour", "waves": 2, "clip": 0.1, "optimizer": sgd, "counts": [14, 14]}
    yield {"period": 3, "update": "neighbour", "waves": 2, "optimizer": sgd, "counts": [14, 5]}
    yield {"period": 3, "update": "neighbour", "waves": 1, "optimizer": adam, "counts": [0, 11]}


@pytest.mark.parametrize("sleeps", [False, True])
def test_two_ranks_are_the_oracle(sleeps, monkeypatch):
    wanted = list(cases())
    ours = [{("clip_grad_norm" if name == "clip" else name): value for name, value in case.items()} for case in wanted]
    first, second = run(train, 2, ours, sleeps)
    for case, mine, theirs in zip(wanted, first, second, strict=True):
        models.assert_same(mine, theirs)
        for right in expected(2, case, monkeypatch):
            models.assert_same(mine, right)
