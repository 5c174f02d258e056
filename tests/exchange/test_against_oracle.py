"""R ranks × K waves equal the serial oracle fed the same batches: bitwise on two ranks, to rounding on four."""

import random
import time

import pytest
import torch

import wavelet

from .. import models
from . import oracle
from .ranks import run

pytestmark = pytest.mark.distributed

RULES = ("neighbour", "synchronous", "delayed")


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def model():
    return models.mlp(dropout=0.0, norm=False)


def data(rank, count=12):
    return models.batches(count, seed=100 + rank)


def train(rank, size, cases, sleeps=False):
    """Weights after each case, on this rank."""
    pauses = random.Random(rank)

    def loss(net, batch):
        if sleeps:
            time.sleep(pauses.choice([0, 0, 0.01]))
        return models.loss(net, batch)

    found = []
    for options in cases:
        case = dict(options)
        optimizer, counts = case.pop("optimizer"), case.pop("counts")
        net = model()
        if rank:  # what rank 0 has counts
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.add_(1)
        with wavelet.Wavelet(net, optimizer(net.parameters()), loss, **case) as engine:
            for batch in data(rank, counts[rank]):
                engine.step(batch)
        found.append(models.trained_weights(net))
    return found


def expected(size, case):
    case = dict(case)
    optimizer, counts, rule = case.pop("optimizer"), case.pop("counts"), case.pop("update")
    torch.set_num_threads(max(1, 2 // case["waves"]))
    batches = [data(rank, counts[rank]) for rank in range(size)]
    case.pop("exchange", None)
    clip = case.pop("clip_grad_norm", None)
    return oracle.train(model(), optimizer, models.loss, batches, rule=rule, clip=clip, **case)


def cases(size, *, even=True):
    for number, rule in enumerate(RULES):
        for waves in (1, 2, 3):
            for accumulate in (1, 2):
                counts = [13] * size if even else [13, 9, 0, 4][:size]
                if not even and number % 2:
                    counts.reverse()
                yield {"update": rule, "waves": waves, "accumulate": accumulate, "optimizer": adam, "counts": counts}
    counts = [12] * size if even else [2, 12, 5, 12][:size]
    yield {"update": "neighbour", "waves": 2, "resync": 2, "optimizer": adam, "counts": counts}
    yield {"update": "neighbour", "waves": 2, "clip_grad_norm": 0.1, "optimizer": sgd, "counts": counts}


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("sleeps", [False, True])
def test_two_ranks_are_bitwise_the_oracle(even, sleeps):
    wanted = list(cases(2, even=even))
    first, second = run(train, 2, wanted, sleeps)
    for case, mine, theirs in zip(wanted, first, second, strict=True):
        models.assert_same(mine, theirs)
        models.assert_same(mine, expected(2, case))


@pytest.mark.parametrize("even", [True, False])
def test_four_ranks_agree_bitwise_and_equal_the_oracle_to_rounding(even):
    wanted = list(cases(4, even=even))
    found = run(train, 4, wanted, True)
    for number, case in enumerate(wanted):
        for other in found[1:]:
            models.assert_same(found[0][number], other[number])
        for mine, right in zip(found[0][number], expected(4, case), strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)
