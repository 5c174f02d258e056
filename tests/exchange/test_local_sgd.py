"""Ranks that train apart equal the serial oracle of their definitions, for each rule and any number of waves."""

import random
import time

import pytest
import torch

import wavelet
from wavelet.exchange import BMUF, LocalSGD

from .. import models
from . import local_oracle
from .ranks import run

pytestmark = pytest.mark.distributed


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def plain(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def model():
    return models.mlp(dropout=0.0, norm=False)


def data(rank, count):
    return models.batches(count, seed=100 + rank)


KINDS = {
    "mean": lambda: LocalSGD(period=3),
    "schedule": lambda: LocalSGD(period=growing),
    "weighted": lambda: LocalSGD(period=2, weights=[1.0, 3.0]),
    "every update": lambda: LocalSGD(period=1),
    "momentum": lambda: BMUF(period=2),
    "nesterov": lambda: BMUF(period=3, block_momentum=0.75, block_scale=0.5, nesterov=True),
    "no momentum": lambda: BMUF(period=3, block_momentum=0),
}

MIXERS = {
    "mean": lambda ranks: local_oracle.Mean(ranks, 3),
    "schedule": lambda ranks: local_oracle.Mean(ranks, growing),
    "weighted": lambda ranks: local_oracle.Mean(ranks, 2, [1.0, 3.0]),
    "every update": lambda ranks: local_oracle.Mean(ranks, 1),
    "momentum": lambda ranks: local_oracle.BlockMomentum(ranks, 2, 0.5, 1.0, False),
    "nesterov": lambda ranks: local_oracle.BlockMomentum(ranks, 3, 0.75, 0.5, True),
    "no momentum": lambda ranks: local_oracle.BlockMomentum(ranks, 3, 0.0, 1.0, False),
}


def growing(number):
    return 1 + number


def train(rank, size, cases, sleeps=False):
    pauses = random.Random(rank)

    def loss(net, batch):
        if sleeps:
            time.sleep(pauses.choice([0, 0, 0.01]))
        return models.loss(net, batch)

    found = []
    for options in cases:
        case = dict(options)
        kind, optimizer, counts = case.pop("kind"), case.pop("optimizer"), case.pop("counts")
        net = model()
        if rank:
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.add_(1)
        with wavelet.Wavelet(net, optimizer(net.parameters()), loss, exchange=KINDS[kind](), **case) as engine:
            for batch in data(rank, counts[rank]):
                engine.step(batch)
        found.append(models.trained_weights(net))
    return found


def expected(size, case):
    case = dict(case)
    kind, optimizer, counts, rule = (case.pop(name) for name in ("kind", "optimizer", "counts", "update"))
    torch.set_num_threads(max(1, 2 // case["waves"]))
    ranks = [
        local_oracle.Rank(model(), optimizer, models.loss, data(rank, counts[rank]), rule=rule, **case)
        for rank in range(size)
    ]
    return local_oracle.train(ranks, MIXERS[kind](ranks))


def cases():
    for kind in KINDS:
        for waves, rule in ((1, "neighbour"), (2, "neighbour"), (2, "synchronous"), (3, "delayed")):
            yield {"kind": kind, "update": rule, "waves": waves, "optimizer": adam, "counts": [14, 14]}
    for rule in ("neighbour", "synchronous", "delayed"):
        yield {"kind": "mean", "update": rule, "waves": 2, "accumulate": 2, "optimizer": sgd, "counts": [15, 15]}
    yield {"kind": "mean", "update": "neighbour", "waves": 2, "resync": 2, "optimizer": adam, "counts": [14, 14]}
    for kind in ("mean", "weighted", "momentum", "nesterov"):
        yield {"kind": kind, "update": "neighbour", "waves": 2, "optimizer": sgd, "counts": [14, 5]}
        yield {"kind": kind, "update": "neighbour", "waves": 1, "optimizer": adam, "counts": [0, 11]}


def name(case):
    return "-".join(str(value) for name, value in case.items() if name != "optimizer")


@pytest.mark.parametrize("sleeps", [False, True])
def test_two_ranks_are_the_oracle(sleeps):
    wanted = list(cases())
    first, second = run(train, 2, wanted, sleeps)
    for case, mine, theirs in zip(wanted, first, second, strict=True):
        models.assert_same(mine, theirs)
        for right in expected(2, case):
            for weight, oracles in zip(mine, right, strict=True):
                torch.testing.assert_close(
                    weight, oracles, rtol=0, atol=0, msg=lambda text, c=case: f"{name(c)}: {text}"
                )
