"""Compressed exchanges are those of torch's hooks; PowerSGD draws its random numbers apart from any forward."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

import wavelet
from wavelet.exchange import AllReduce
from wavelet.exchange.compression import LowRank

from .. import models
from .ranks import run
from .training import sgd, wide


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


@pytest.mark.distributed
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


@pytest.mark.distributed
def test_powersgd_is_torchs():
    ours, theirs = run(compressed, 2, "powersgd"), run(ddp, 2, "powersgd")
    models.assert_same(ours[0][-1], ours[1][-1])
    for mine, right in zip(ours[0][-1], theirs[0][-1], strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-6)
    exact = run(compressed, 2, None)[0]
    assert not torch.equal(ours[0][-1][2], exact[-1][2])  # it was compressed in the end
    run(compressed, 2, "powersgd", 2)


def test_every_bucket_draws_once_and_none_before_compression_starts():
    compression = object.__new__(LowRank)
    compression._state = SimpleNamespace(iter=LowRank.START - 1, q_memory_dict={})
    assert not compression.draws(0)
    compression._state.iter = LowRank.START
    assert compression.draws(0)
    compression._state.q_memory_dict[0] = object()
    assert not compression.draws(0)
    assert compression.draws(1)  # the first bucket's numbers are not the second's
