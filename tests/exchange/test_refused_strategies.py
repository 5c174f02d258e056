"""Strategies that make no sense, and the helper for periods."""

import pytest
import torch
import torch.distributed as dist

import wavelet
from wavelet.exchange import BMUF, CELGC, BiasedLocalSGD, DreamDDP, LocalSGD, pr_sgd_period

from .. import models
from .training import model


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
