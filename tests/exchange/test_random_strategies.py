"""Random strategies, rules, models and numbers of batches: after each flush all ranks are alike, whatever happens."""

import random
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

import wavelet
from wavelet.exchange import BMUF, CELGC, BiasedLocalSGD, DreamDDP, LocalSGD

from .ranks import run

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]


class Odd(nn.Module):
    """Tied, empty, scalar, complex, transposed and unused parameters, and buffers."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(8) if kind % 2 else nn.Identity()
        if kind % 3 == 1:
            self.second.weight = self.first.weight
        self.empty, self.scale = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.tensor(1.0))
        self.turn = nn.Parameter(torch.randn(8, dtype=torch.cfloat)) if kind % 4 == 2 else None
        self.transposed, self.unused = nn.Parameter(torch.randn(6, 8).t()), nn.Linear(2, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x))) * self.scale
        x = x + self.second(x)
        if self.turn is not None:
            x = x + (x * self.turn).abs() * 0.1
        return self.last(x @ self.transposed)


def strategy(draw, size):
    """One, and the name of an optimizer that it takes."""
    period, warmup = draw.choice([1, 2, 3, 5, 40]), draw.choice([0, 0, 1, 3])
    shorter = [period, 1, max(1, period // 2)][:size]
    return draw.choice([
        lambda: LocalSGD(period, warmup=warmup),
        lambda: LocalSGD(period, warmup=warmup, weights="samples"),
        lambda: LocalSGD(period, weights=[1.0, 2.0, 0.5][:size]),
        lambda: LocalSGD(lambda number: 1 + number % 3),
        lambda: BMUF(period, warmup=warmup),
        lambda: BMUF(period, nesterov=True, block_momentum=0.3),
        lambda: CELGC(period, max_norm=0.1, warmup=warmup),
        lambda: BiasedLocalSGD(period, periods=shorter, warmup=warmup),
        lambda: DreamDDP(period, measure=False),
    ])()  # fmt: skip


def everyones(model, size):
    """Weights and float buffers of all ranks."""
    tensors = [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
    mine = [tensor.detach().clone() for tensor in tensors]
    found = [None] * size
    dist.all_gather_object(found, mine)
    return found


def train(rank, size, seed, sleeps):
    """What all ranks have after each flush, and what was drawn."""
    draw, own, pauses = random.Random(seed), random.Random(100 * seed + rank), random.Random(rank)
    torch.manual_seed(seed)
    exchange = strategy(draw, size)
    rules = ["neighbour", "synchronous", *([] if isinstance(exchange, DreamDDP) else ["delayed"])]
    options = {"waves": draw.choice([1, 2, 3]), "update": draw.choice(rules), "accumulate": draw.choice([1, 1, 2, 3])}
    model = Odd(draw.randrange(12))
    if isinstance(exchange, CELGC) or draw.random() < 0.5:
        momentum = 0.0 if isinstance(exchange, CELGC) else 0.9
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

    def loss(net, batch):
        if sleeps and pauses.random() < 0.2:
            time.sleep(0.01)
        return net(batch).square().mean()

    found = []
    with wavelet.Wavelet(model, optimizer, loss, exchange=exchange, **options) as engine:
        for _ in range(draw.choice([1, 2, 4])):
            counts = [draw.choice([0, 1, 2, 5, 7, 13]) for _ in range(size)]
            for _ in range(counts[rank]):
                samples = own.choice([2, 4, 6])
                engine.step(torch.tensor([[own.gauss(0, 1) for _ in range(8)] for _ in range(samples)]))
                if own.random() < 0.1:
                    engine.drain()
                if own.random() < 0.1:
                    engine.state_dict()
            engine.flush()
            found.append(everyones(model, size))
    return found, f"seed {seed}: {exchange}, {options}"


def train_all(rank, size, seeds):
    """For each seed, twice: in peace, and with sleeps."""
    return [(train(rank, size, seed, False), train(rank, size, seed, True)) for seed in seeds]


@pytest.mark.parametrize(("size", "seeds"), [(2, range(24)), (3, range(100, 112))])
def test_after_each_flush_all_ranks_are_alike_whatever_the_timing(size, seeds):
    for (quiet, what), (disturbed, _) in run(train_all, size, seeds, timeout=380)[0]:
        for ranks, again in zip(quiet, disturbed, strict=True):
            for other in (*ranks[1:], *again):
                assert all(torch.equal(a, b) for a, b in zip(ranks[0], other, strict=True)), what
