"""What holds over all ranks: missing, frozen, complex and shared gradients, scaling, compression, agreement."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import wavelet
from wavelet.exchange import AllReduce, Alone

from .. import models
from . import oracle
from .ranks import run

pytestmark = pytest.mark.distributed


def sgd(parameters, lr=0.05):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


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


def fail_with(rank, size, function, *arguments):
    """The error that ``function`` raises on this rank, and after how many seconds."""
    start = time.monotonic()
    try:
        function(rank, size, *arguments)
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return None


def failures(size, function, *arguments):
    """Of each rank, what `fail_with` gives.

    A process whose engine has failed ends at once with 1 if other ranks never came to a collective that it started.
    """
    return run(fail_with, size, function, *arguments, codes=(0, 1))


def test_ranks_that_freeze_different_layers_are_told():
    for kind, text, seconds in failures(2, train_with_a_freeze, "ranks differ"):
        assert kind == "ExchangeError"
        assert "require a gradient" in text
        assert seconds < 60


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


def ddp(rank, size, hook):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    model = wide()
    wrapped = nn.parallel.DistributedDataParallel(model)
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=10)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        torchs = getattr(default_hooks, f"{hook}_compress_hook")

        def compress(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            return torchs(state, bucket)  # under its own name DDP takes it with NCCL only

        wrapped.register_comm_hook(None, compress)
    optimizer = sgd(model.parameters())
    after = []
    for batch in models.batches(14, seed=rank):
        optimizer.zero_grad()
        models.loss(wrapped, batch).backward()
        optimizer.step()
        after.append(models.trained_weights(model))
    return after


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


def compressed(rank, size, compress, waves=1):
    model = wide()
    after = []
    engine = wavelet.Wavelet(
        model, sgd(model.parameters()), models.loss, waves=waves, exchange=AllReduce(compress=compress)
    )
    with engine:
        for batch in models.batches(14, seed=rank):
            engine.step(batch)
            engine.drain()
            after.append(models.trained_weights(model))
    return after


@pytest.mark.parametrize("compress", ["bf16", "fp16"])
def test_the_first_compressed_exchange_is_that_of_torchs_hook_and_later_ones_differ_by_the_error_fed_back(compress):
    ours, theirs = run(compressed, 2, compress), run(ddp, 2, compress)
    models.assert_same(ours[0][-1], ours[1][-1])
    models.assert_same(ours[0][0], theirs[0][0])
    assert any(not torch.equal(a, b) for a, b in zip(ours[0][-1], theirs[0][-1], strict=True))
    exact = run(compressed, 2, None)[0][-1]

    def distance(weights):
        return sum((a - b).norm().item() for a, b in zip(weights, exact, strict=True))

    assert distance(ours[0][-1]) < distance(theirs[0][-1])


def test_powersgd_is_torchs():
    ours, theirs = run(compressed, 2, "powersgd"), run(ddp, 2, "powersgd")
    models.assert_same(ours[0][-1], ours[1][-1])
    for mine, right in zip(ours[0][-1], theirs[0][-1], strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-6)
    exact = run(compressed, 2, None)[0]
    assert not torch.equal(ours[0][-1][2], exact[-1][2])  # it was compressed in the end
    run(compressed, 2, "powersgd", 2)


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


def resume(rank, size, compress, update, cut):
    """Weights of an undisturbed run, and of one that was saved after ``cut`` batches and continued."""
    data = models.batches(24, seed=rank)

    def engine():
        model = wide()
        options = {"update": update, "exchange": AllReduce(compress=compress), "accumulate": 2}
        return model, wavelet.Wavelet(model, sgd(model.parameters()), models.loss, **options)

    model, whole = engine()
    with whole:
        for batch in data:
            whole.step(batch)
    undisturbed = models.trained_weights(model)
    _, first = engine()
    with first:
        for batch in data[:cut]:
            first.step(batch)
        state = first.state_dict()
    model, second = engine()
    with second:
        second.load_state_dict(state)
        for batch in data[cut:]:
            second.step(batch)
    return undisturbed, models.trained_weights(model)


@pytest.mark.parametrize("update", ["neighbour", "synchronous", "delayed"])
@pytest.mark.parametrize("compress", [None, "bf16"])
def test_a_run_that_is_continued_is_bitwise_the_same(compress, update):
    for undisturbed, continued in run(resume, 2, compress, update, 9):
        models.assert_same(undisturbed, continued)


def test_powersgd_is_continued_bitwise():
    for undisturbed, continued in run(resume, 2, "powersgd", "neighbour", 23):
        models.assert_same(undisturbed, continued)


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
