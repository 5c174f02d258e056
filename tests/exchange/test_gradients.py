"""What holds over all ranks for gradients: missing, frozen, complex, shared and infinite ones."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import wavelet
from wavelet.exchange import AllReduce

from .. import models
from . import oracle
from .ranks import run
from .training import sgd

pytestmark = pytest.mark.distributed


class Branches(nn.Module):
    """``left`` is used by batches whose first label is even, ``right`` by others, ``never`` by none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 16)
        self.left, self.right, self.never = nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x, side):
        return (self.left if side == 0 else self.right)(torch.relu(self.first(x)))


def branch_loss(model, batch):
    x, y, side = batch
    return cross_entropy(model(x, side), y)


def sided(rank, count=8):
    """Rank 0 always goes left; rank 1 goes right in the odd batches, so ``right`` is used on one rank only."""
    plain = models.batches(count, seed=50 + rank)
    return [(x, y, rank * (number % 2)) for number, (x, y) in enumerate(plain)]


def train_branches(rank, size, waves):
    model = Branches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    with wavelet.Wavelet(model, optimizer, branch_loss, waves=waves) as engine:
        for batch in sided(rank):
            engine.step(batch)
    return models.trained_weights(model)


@pytest.mark.parametrize("waves", [1, 2])
def test_a_parameter_unused_on_one_rank_counts_as_zero_there_and_one_unused_on_all_stays(waves):
    first, second = run(train_branches, 2, waves)
    torch.set_num_threads(2 // waves)
    right = oracle.train(
        Branches(), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1), branch_loss, [sided(0), sided(1)],
        rule="neighbour", waves=waves,
    )  # fmt: skip
    models.assert_same(first, second)
    models.assert_same(first, right)
    models.assert_same(first[-2:], list(Branches().never.parameters()))  # not even its weight decay


class Rotation(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.turn = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        z = torch.view_as_complex(x.view(-1, 4, 2)) @ self.turn
        return self.last(torch.view_as_real(z).reshape(-1, 8)) * self.scale


class Shared(nn.Module):
    """One layer used three times, inside checkpoints that may be re-entrant: its gradient comes in parts."""

    def __init__(self, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        inner = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.layers = nn.ModuleList([models.Checkpointed(inner, reentrant=reentrant) for _ in range(3)])

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def make(name):
    return {
        "complex": Rotation,
        "reentrant": lambda: Shared(True),
        "checkpoint": lambda: Shared(False),
        "conv": lambda: _conv().to(memory_format=torch.channels_last),
        "double": _mixed,
    }[name]()


def _conv():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 4))


def _mixed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), _Widen(), nn.Linear(16, 4).double())


class _Widen(nn.Module):
    def forward(self, x):
        return x.double()


def batches_for(name, rank):
    return models.batches(8, seed=20 + rank, image=name == "conv")


def train_kind(rank, size, name, bucket_mb):
    model = make(name)
    exchange = AllReduce(bucket_mb=bucket_mb)
    with wavelet.Wavelet(model, sgd(model.parameters(), 0.02), models.loss, exchange=exchange) as engine:
        for batch in batches_for(name, rank):
            engine.step(batch)
    return models.trained_weights(model)


@pytest.mark.parametrize("name", ["complex", "reentrant", "checkpoint", "conv", "double"])
def test_models_of_many_kinds_equal_the_oracle_with_buckets_of_any_size(name):
    torch.set_num_threads(1)
    batches = [batches_for(name, rank) for rank in range(2)]
    right = oracle.train(make(name), lambda p: sgd(p, 0.02), models.loss, batches, rule="neighbour", waves=2)
    for bucket_mb in (25, 1e-4):
        first, second = run(train_kind, 2, name, bucket_mb)
        models.assert_same(first, second)
        models.assert_same(first, right)


def train_scaled(rank, size):
    model = models.mlp(dropout=0.0, norm=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    data = models.batches(8, seed=rank)
    if rank == 1:
        data[3][0][0, 0] = float("inf")  # on this rank alone
    with wavelet.Wavelet(model, sgd(model.parameters()), models.loss, grad_scaler=scaler) as engine:
        for batch in data:
            engine.step(batch)
    return models.trained_weights(model), scaler.get_scale()


def test_a_gradient_that_is_infinite_on_one_rank_is_skipped_on_all():
    (first, scale), (second, others) = run(train_scaled, 2)
    assert scale == others == 2.0**9
    models.assert_same(first, second)
    assert all(bool(weight.isfinite().all()) for weight in first)
