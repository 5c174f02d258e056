"""What is mixed where ranks train apart: buffers, layers frozen midway, all layers within a period."""

import os
import pickle
import time

import pytest
import torch

import wavelet
from wavelet.exchange import DreamDDP, LocalSGD, buckets

from .. import models
from .ranks import failures, run, started
from .training import model, sgd

pytestmark = pytest.mark.distributed


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


def flushed(rank, size, kind, period, waves, count):
    """Buffers after a flush that comes right at the end of a period, and of ranks that go on from there."""
    net, found = models.mlp(dropout=0.0), []
    with wavelet.Wavelet(net, sgd(net.parameters()), models.loss, waves=waves, exchange=kind(period)) as engine:
        for _ in range(2):
            for batch in models.batches(count[rank], seed=rank):
                engine.step(batch)
            engine.flush()
            found.append([buffer.clone() for buffer in net.buffers() if buffer.is_floating_point()])
    return found


@pytest.mark.parametrize("kind", [LocalSGD, DreamDDP])
@pytest.mark.parametrize("waves", [1, 2, 3])
@pytest.mark.parametrize("count", [(12, 12), (0, 12)])
def test_after_a_flush_buffers_are_alike_too(kind, waves, count):
    first, second = run(flushed, 2, kind, 12 // waves // 2, waves, count)
    for mine, theirs in zip(first, second, strict=True):
        models.assert_same(mine, theirs)


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
