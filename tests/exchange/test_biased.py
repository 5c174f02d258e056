"""Ranks of different speed, and the samples that a slow one takes."""

import time

import pytest
import torch

import wavelet
from wavelet.exchange import BiasedLocalSGD, HighLossSampler, LocalSGD

from .. import models
from .ranks import run
from .training import model, sgd, trained

pytestmark = pytest.mark.distributed


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
