"""What holds where ranks train apart: reference values, warm-up, buffers, resuming, refusals, a rank that dies."""

import os
import pickle
import time
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn

import wavelet
from wavelet.exchange import (
    BMUF,
    CELGC,
    AllReduce,
    BiasedLocalSGD,
    DreamDDP,
    HighLossSampler,
    LocalSGD,
    buckets,
    pr_sgd_period,
)

from .. import models
from .ranks import failures, run, started

pytestmark = pytest.mark.distributed


def sgd(parameters, lr=0.05, momentum=0.9):
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)


def model():
    return models.mlp(dropout=0.0, norm=False)


class Point(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))


def quadratic(rank, size, choices, steps):
    """½h(w − c)² on each rank, h = (1, .5, 2, 1.5), c = (0, 1, 2, 3), rate 0.1, under each exchange.

    The weight before each update, after the last one, and after the flush.
    """
    h, c = (1, 0.5, 2, 1.5)[rank], float(rank)
    found = []
    for kind, arguments in choices:
        net, seen = Point(), []

        def loss(net, batch, seen=seen):
            seen.append(net.w.item())
            return 0.5 * h * (net.w - c) ** 2

        plain = torch.optim.SGD(net.parameters(), lr=0.1)
        with wavelet.Wavelet(net, plain, loss, waves=1, exchange=kind(**arguments)) as engine:
            for _ in range(steps):
                engine.step(torch.zeros(1))
            engine.drain()
            last = net.w.item()
        found.append((seen, last, net.w.item()))
    return found


def test_on_quadratics_weights_end_where_the_formulas_say():
    points = {1: 1.8, 2: 1.78378, 4: 1.75260, 10: 1.67225}
    choices = [(LocalSGD, {"period": period}) for period in points]
    found = run(quadratic, 4, [*choices, (DreamDDP, {"period": 1, "measure": False})], 140)
    for *local, dream in found:
        for (_, _, w), point in zip(local, points.values(), strict=True):
            assert w == pytest.approx(point, abs=1e-5)
        assert dream[2] == pytest.approx(1.772737, abs=1e-6)  # the mean, delayed by one update
    assert len({ranks[-1][1] for ranks in found}) == 4  # before the flush they are apart


def test_a_step_of_celgc_never_exceeds_its_bound_and_without_one_it_is_local_sgd():
    bounded, unbounded = {"period": 4, "max_norm": 0.01}, {"period": 4, "max_norm": float("inf")}
    found = run(quadratic, 2, [(CELGC, bounded), (CELGC, unbounded), (LocalSGD, {"period": 4})], 12)
    moved = set()
    for (seen, _, _), without, local in found:
        for number in range(3):
            moved |= {abs(b - a) for a, b in pairwise(seen[4 * number : 4 * number + 4])}
        assert without == local
    assert max(moved) <= 0.01
    assert max(moved) == pytest.approx(0.01, rel=1e-4)


def trained(rank, size, options, counts=(12, 12), sizes=(12, 12), norm=False, make=sgd):
    net = models.mlp(dropout=0.0, norm=norm)
    kind, arguments = options["exchange"]
    more = {name: value for name, value in options.items() if name != "exchange"}
    exchange = kind(**arguments)
    with wavelet.Wavelet(net, make(net.parameters()), models.loss, exchange=exchange, **more) as engine:
        for batch in models.batches(counts[rank], size=sizes[rank], seed=100 + rank):
            engine.step(batch)
    return models.trained_weights(net)


def one_then_three(number):
    return 3 if number else 1


def post_local_sgd(rank, size, warmup):
    """By torch's own optimizer, averager and hook; its first mean comes after the first local step."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    torch.set_num_threads(2)
    net = model()
    ddp = nn.parallel.DistributedDataParallel(net)
    subgroup = dist.new_group([rank], use_local_synchronization=True)
    state = hook.PostLocalSGDState(None, subgroup, start_localSGD_iter=warmup, post_local_gradient_allreduce=False)
    ddp.register_comm_hook(state, hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=3, warmup_steps=warmup)
    optimizer = PostLocalSGDOptimizer(sgd(net.parameters()), averager)
    for batch in models.batches(12, seed=100 + rank):
        optimizer.zero_grad()
        models.loss(ddp, batch).backward()
        optimizer.step()
    return models.trained_weights(net)


def test_with_a_warm_up_it_is_torchs_post_local_sgd():
    # Warm-up of 5, then means after updates 6, 9 and 12: the last of them is where both stop.
    options = {"exchange": (LocalSGD, {"period": one_then_three, "warmup": 5}), "waves": 1}
    ours, theirs = run(trained, 2, options), run(post_local_sgd, 2, 5)
    models.assert_same(ours[0], ours[1])
    models.assert_same(theirs[0], theirs[1])
    for mine, right in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("counts", [(12, 12), (12, 3)])
@pytest.mark.parametrize("update", ["neighbour", "synchronous", "delayed"])
def test_a_warm_up_that_does_not_end_is_all_reduce(update, counts):
    local = {"exchange": (LocalSGD, {"period": 3, "warmup": 100}), "waves": 2, "update": update}
    reduced = {"exchange": (AllReduce, {}), "waves": 2, "update": update}
    ours, theirs = run(trained, 2, local, counts), run(trained, 2, reduced, counts)
    models.assert_same(ours[0], ours[1])
    models.assert_same(ours[0], theirs[0])


def test_ranks_may_run_out_of_data_in_the_warm_up():
    options = {"exchange": (LocalSGD, {"period": 3, "warmup": 4}), "waves": 2}
    first, second = run(trained, 2, options, (14, 3))
    models.assert_same(first, second)


def test_ranks_that_count_by_samples_equal_those_that_are_given_the_numbers():
    by_samples = {"exchange": (LocalSGD, {"period": 3, "weights": "samples"}), "waves": 2}
    given = {"exchange": (LocalSGD, {"period": 3, "weights": [3.0 * 8, 3.0 * 24]}), "waves": 2}
    ours, theirs = run(trained, 2, by_samples, (12, 12), (8, 24)), run(trained, 2, given, (12, 12), (8, 24))
    models.assert_same(ours[0], ours[1])
    models.assert_same(ours[0], theirs[0])


def test_equal_intervals_are_local_sgd_and_others_are_no_deadlock():
    equal = {"exchange": (BiasedLocalSGD, {"period": 3, "periods": [3, 3]}), "waves": 2}
    local = {"exchange": (LocalSGD, {"period": 3}), "waves": 2}
    models.assert_same(run(trained, 2, equal)[0], run(trained, 2, local)[0])
    unlike = {"exchange": (BiasedLocalSGD, {"period": 4, "periods": [1, 4]}), "waves": 2}
    first, second = run(trained, 2, unlike, (4, 13))
    models.assert_same(first, second)


def slow(rank, size):
    """How many batches each rank had handed in at each mean, where rank 1 is slow."""
    net, exchange, seen = model(), BiasedLocalSGD(period=12), []

    def loss(net, batch):
        time.sleep(0.04 if rank else 0.01)
        return models.loss(net, batch)

    with wavelet.Wavelet(net, sgd(net.parameters()), loss, waves=1, exchange=exchange) as engine:
        for number, batch in enumerate(models.batches(60 if rank == 0 else 36, seed=rank)):
            before = engine._exchange._period[0]
            engine.step(batch)
            if engine._exchange._period[0] > before:
                seen.append(number + 1)
        state = engine.state_dict()["exchange"]["clock"]
    return seen, state["own"]


def test_a_slow_rank_makes_fewer_updates():
    (fast, own), (slower, less) = run(slow, 2)
    assert fast[:3] == slower[:3] == [10, 20, 30]
    assert own == 12
    assert 1 <= less < 12
    assert fast[3] - fast[2] == 12
    assert slower[3] - slower[2] == less


def normed(rank, size, kind, period, flush):
    """Float and integer buffers that each rank has in the end, and those of a loop that trains alone."""
    net = models.mlp(dropout=0.0)
    # Rates of zero: buffers depend on data alone.
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    data = models.batches(4, seed=rank)
    with wavelet.Wavelet(net, optimizer, models.loss, waves=1, exchange=kind(period)) as engine:
        for batch in data:
            engine.step(batch)
        if flush:
            engine.flush()
        else:
            engine.step(models.batches(1, seed=9)[0])  # lets in what the fourth update has mixed
            engine.drain()
        found = [buffer.clone() for buffer in net.buffers()]
    alone = models.mlp(dropout=0.0)
    for batch in data:
        models.loss(alone, batch)
    return found, [buffer.clone() for buffer in alone.buffers()]


@pytest.mark.parametrize("kind", [LocalSGD, DreamDDP])
@pytest.mark.parametrize("flush", [True, False])
def test_float_buffers_become_their_mean_and_integers_stay(kind, flush):
    (first, one), (second, two) = run(normed, 2, kind, 4 if kind is LocalSGD or not flush else 3, flush)
    models.assert_same(first, second)
    if flush:
        for found, mine, theirs in zip(first, one, two, strict=True):
            right = (mine + theirs) / 2 if found.is_floating_point() else mine
            torch.testing.assert_close(found, right)
    assert first[2].dtype == torch.int64
    assert first[2] == 4 if flush else 5


def resume(rank, size, kind, arguments, options, cut):
    data = models.batches(24, seed=rank)
    buckets.LEAST_BYTES = 1

    def engine():
        net = models.mlp(dropout=0.1)
        return net, wavelet.Wavelet(net, sgd(net.parameters()), models.loss, exchange=kind(**arguments), **options)

    torch.manual_seed(rank)
    net, whole = engine()
    with whole:
        for batch in data:
            whole.step(batch)
    undisturbed = [*models.trained_weights(net), *net.buffers()]
    torch.manual_seed(rank)
    _, first = engine()
    with first:
        for batch in data[:cut]:
            first.step(batch)
        state = first.state_dict()
    net, second = engine()
    with second:
        second.load_state_dict(state)
        for batch in data[cut:]:
            second.step(batch)
    return undisturbed, [*models.trained_weights(net), *net.buffers()]


@pytest.mark.parametrize(
    ("kind", "arguments", "options"),
    [
        (LocalSGD, {"period": 4, "weights": "samples"}, {}),
        (LocalSGD, {"period": 3, "warmup": 7}, {"update": "synchronous"}),
        (LocalSGD, {"period": 3, "warmup": 2}, {"update": "delayed"}),
        (BMUF, {"period": 3, "nesterov": True}, {"accumulate": 2}),
        (BiasedLocalSGD, {"period": 4, "periods": [4, 4]}, {"waves": 1}),
        (DreamDDP, {"period": 4, "measure": False}, {}),
        (DreamDDP, {"period": 3, "measure": False}, {"accumulate": 2}),
    ],
)
def test_a_run_that_is_continued_in_mid_period_is_bitwise_the_same(kind, arguments, options):
    for undisturbed, continued in run(resume, 2, kind, arguments, options, 9):
        models.assert_same(undisturbed, continued)


def checkpointed(rank, size, folder):
    """Saved and loaded by `Checkpoints`, in mid-period: the ranks' weights differ then."""
    data = models.batches(16, seed=rank)

    def engine():
        net = model()
        return net, wavelet.Wavelet(net, sgd(net.parameters()), models.loss, exchange=LocalSGD(5))

    net, whole = engine()
    with whole, wavelet.Checkpoints(folder) as checkpoints:
        for number, batch in enumerate(data):
            if number == 7:
                checkpoints.save(number, engine=whole)
            whole.step(batch)
    undisturbed = models.trained_weights(net)
    net, second = engine()
    with second, wavelet.Checkpoints(folder) as checkpoints:
        checkpoints.load(engine=second)
        second.drain()
        middle = models.trained_weights(net)
        for batch in data[7:]:
            second.step(batch)
    return undisturbed, models.trained_weights(net), middle


def test_a_checkpoint_in_mid_period_has_the_weights_of_each_rank(tmp_path):
    found = run(checkpointed, 2, str(tmp_path))
    for undisturbed, continued, _ in found:
        models.assert_same(undisturbed, continued)
    assert not torch.equal(found[0][2][0], found[1][2][0])


def agree(rank, size):
    """Weights H updates after all rates have become zero, without a flush."""
    buckets.LEAST_BYTES = 1
    net = model()
    optimizer = sgd(net.parameters())
    with wavelet.Wavelet(net, optimizer, models.loss, waves=1, exchange=DreamDDP(4, measure=False)) as engine:
        found = []
        for number, batch in enumerate(models.batches(9, seed=rank)):
            if number == 5:
                engine.drain()
                found.append(models.trained_weights(net))
                optimizer.param_groups[0]["lr"] = 0.0
            engine.step(batch)
        engine.drain()
        found.append(models.trained_weights(net))
    return found


def test_without_local_steps_all_layers_agree_after_a_period():
    first, second = run(agree, 2)
    assert not any(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    models.assert_same(first[1], second[1])


def measured(rank, size):
    """A model of several layers, planned from what was measured: the plan, and what the ranks end with."""
    buckets.LEAST_BYTES = 1
    net = model()
    with wavelet.Wavelet(net, sgd(net.parameters()), models.loss, exchange=DreamDDP(3)) as engine:
        for batch in models.batches(40, seed=rank):
            engine.step(batch)
        exchange = engine._exchange
        schedule = exchange.schedule(max(exchange._times), tuple(exchange._trained))
        plan, learned = schedule.plan, max(exchange._times)
    return plan, learned, models.trained_weights(net)


def test_a_measured_plan_is_the_same_on_all_ranks():
    (first, learned, mine), (second, _, theirs) = run(measured, 2)
    assert first == second
    assert learned >= 2
    assert sum(first.backward_seconds) < 1.0  # seconds now, not bytes
    models.assert_same(mine, theirs)


def frozen(rank, size, kind, period, alike):
    net = model()
    with wavelet.Wavelet(net, sgd(net.parameters()), models.loss, exchange=kind(period, timeout=8)) as engine:
        for number, batch in enumerate(models.batches(16, seed=rank)):
            if number == 0:
                net[0].requires_grad_(False)
            if number == 6:
                engine.drain()
                net[1].requires_grad_(False)
                net[0].requires_grad_(alike or rank == 0)
            engine.step(batch)
    return models.trained_weights(net)


@pytest.mark.parametrize("kind", [LocalSGD, DreamDDP])
def test_layers_frozen_and_freed_midway_are_the_same_in_the_end(kind):
    first, second = run(frozen, 2, kind, 3, True)
    models.assert_same(first, second)
    for kind_of_error, text, _ in failures(2, frozen, kind, 3, False):
        assert kind_of_error == "ExchangeError"
        assert "freeze the same ones on all ranks" in text


def die(rank, size, kind):
    net, start = model(), time.monotonic()
    try:
        with wavelet.Wavelet(net, sgd(net.parameters()), models.loss, exchange=kind(5, timeout=8)) as engine:
            for number, batch in enumerate(models.batches(60, seed=rank)):
                if rank == 1 and number == 13:
                    os._exit(0)  # as kill -9 would
                engine.step(batch)
    except wavelet.ExchangeError as error:
        return error.suspect, time.monotonic() - start
    return None


@pytest.mark.parametrize("kind", [LocalSGD, DreamDDP])
def test_a_rank_that_dies_in_mid_period_is_named(kind):
    with started(die, 2, kind) as (folder, processes):
        processes[0].communicate(timeout=60)
        suspect, seconds = pickle.loads((folder / "result0").read_bytes())
    assert suspect == 1
    assert seconds < 30


def test_what_has_no_meaning_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="LocalSGD needs"):
        LocalSGD(4)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        for kind, wrong in (
            (LocalSGD, {"period": 0}),
            (LocalSGD, {"period": 2, "warmup": -1}),
            (LocalSGD, {"period": 2, "weights": "bytes"}),
            (LocalSGD, {"period": 2, "weights": [1.0, -1.0]}),
            (CELGC, {"period": 2, "max_norm": 0}),
            (BMUF, {"period": 2, "block_momentum": 1.0}),
            (BMUF, {"period": 2, "block_scale": 0}),
            (BiasedLocalSGD, {"period": 2, "periods": [1, 3]}),
            (BiasedLocalSGD, {"period": 2, "weights": [1.0]}),
            (DreamDDP, {"period": 1.5}),
            (DreamDDP, {"period": 2, "measure": "yes"}),
        ):
            with pytest.raises(ValueError, match=list(wrong)[-1]):
                kind(**wrong)
        net = model()
        plain = torch.optim.SGD(net.parameters(), lr=0.1)
        heavy = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        adam = torch.optim.Adam(net.parameters())
        for optimizer, exchange, more, text in (
            (adam, CELGC(period=2, max_norm=1.0), {}, "CELGC bounds steps of plain SGD, and the optimizer is Adam"),
            (heavy, CELGC(period=2, max_norm=1.0), {}, "momentum=0.9"),
            (plain, CELGC(period=2, max_norm=1.0), {"clip_grad_norm": 1.0}, "leave clip_grad_norm out"),
            (plain, DreamDDP(2), {"update": "delayed"}, "DreamDDP .* update='delayed'"),
            (plain, LocalSGD(2, weights=[1.0, 2.0]), {}, "weights has 2 numbers for 1 ranks"),
            (plain, BiasedLocalSGD(2, periods=[2, 1]), {}, "periods has 2 numbers for 1 ranks"),
        ):
            with pytest.raises(ValueError, match=text):
                wavelet.Wavelet(net, optimizer, models.loss, exchange=exchange, **more)
        with wavelet.Wavelet(net, plain, models.loss, exchange=DreamDDP(2)) as engine:
            engine.step(models.batches(1)[0])  # one rank is no rank
    finally:
        dist.destroy_process_group()


def test_the_period_of_parallel_restarted_sgd():
    assert pr_sgd_period(10_000, 1) == 10
    assert pr_sgd_period(16**4, 16) == 2
    assert pr_sgd_period(10, 64) == 1


def scored(rank, size):
    sampler = HighLossSampler(8, 2, candidates=4)
    if rank == 0:
        sampler.record(torch.arange(6), torch.tensor([1.0, 9.0, 3.0, 2.0, 5.0, 4.0]))
    else:
        sampler.record(torch.arange(4, 8), torch.tensor([7.0, 2.0, 6.0, 0.5]))
    sampler.share()
    return sampler.state_dict()["scores"].tolist(), sorted(sampler)


def test_high_losses_are_shared_and_come_first():
    for scores, chosen in run(scored, 2):
        assert scores == [1.0, 9.0, 3.0, 2.0, 5.0, 2.0, 6.0, 0.5]
        assert chosen == [1, 6]  # all eight are candidates


def test_candidates_are_drawn_and_what_nobody_knows_comes_first():
    sampler = HighLossSampler(100, 5, seed=3)
    sampler.record(torch.arange(90), torch.zeros(90))
    candidates = torch.randperm(100, generator=torch.Generator().manual_seed(3))[:20].tolist()
    chosen = list(sampler)
    unknown = [index for index in candidates if index >= 90]
    assert len(chosen) == len(sampler) == 5
    assert set(unknown[:5]) <= set(chosen) <= set(candidates)
    state = sampler.state_dict()
    after = list(sampler)
    sampler.load_state_dict(state)
    assert list(sampler) == after != chosen
    with pytest.raises(ValueError, match="quota=11"):
        HighLossSampler(10, 11)
    with pytest.raises(ValueError, match="one loss for each sample"):
        sampler.record(torch.arange(3), torch.zeros(4))
