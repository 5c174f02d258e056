"""Runs that are saved and continued in mid-period."""

import pytest
import torch

import wavelet
from wavelet.exchange import BMUF, AllReduce, Alone, BiasedLocalSGD, DreamDDP, LocalSGD, buckets

from .. import models
from .ranks import run
from .training import model, sgd

pytestmark = pytest.mark.distributed


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


def continued_otherwise(rank, size, flush):
    """A state of `LocalSGD`, in mid-period or after a flush: what engines with other exchanges say to it."""
    data = models.batches(7, seed=rank)
    net = model()
    with wavelet.Wavelet(net, sgd(net.parameters()), models.loss, exchange=LocalSGD(5)) as engine:
        for batch in data:
            engine.step(batch)
        if flush:
            engine.flush()
        state = engine.state_dict()
    said = []
    for exchange in (LocalSGD(4), DreamDDP(5), AllReduce(), Alone()):
        net = model()
        try:
            with wavelet.Wavelet(net, sgd(net.parameters()), models.loss, exchange=exchange) as engine:
                engine.load_state_dict(state)
                for batch in data:
                    engine.step(batch)
            said.append(models.trained_weights(net))
        except (ValueError, wavelet.ExchangeError) as error:  # of this rank, or heard from the other one
            said.append(str(error))
    return said


def test_in_mid_period_nothing_else_can_go_on_and_after_a_flush_other_strategies():
    for period, dream, reduced, alone in run(continued_otherwise, 2, False):
        for name, text in (("LocalSGD(period=4)", period), ("DreamDDP(period=5)", dream), ("Alone()", alone)):
            assert f"in mid-period with exchange=LocalSGD(period=5), and this engine has {name}" in text
        assert "each rank has an optimizer state of its own, and this engine has AllReduce()" in reduced
    first, second = run(continued_otherwise, 2, True)
    for mine, theirs in zip(first[:2], second[:2], strict=True):
        models.assert_same(mine, theirs)
    assert "each rank has an optimizer state of its own" in first[2]
    assert not torch.equal(first[3][0], second[3][0])


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
