"""The exchange on a real GPU: two ranks that share one, over gloo, and one rank over NCCL, which sums with nobody."""

import pytest
import torch

import wavelet
from wavelet.exchange import AllReduce

from .. import models
from .ranks import run

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.distributed,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def train(rank, size, cases):
    torch.use_deterministic_algorithms(True)
    found = []
    for compress, case in cases:
        exchange = AllReduce(bucket_mb=0.0005, compress=compress)
        model = models.mlp(dropout=0.0, norm=False).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        data = [tuple(part.cuda() for part in batch) for batch in models.batches(14, seed=rank)]
        with wavelet.Wavelet(model, optimizer, models.loss, exchange=exchange, **case) as engine:
            for batch in data:
                engine.step(batch)
        found.append([weight.cpu() for weight in models.trained_weights(model)])
    return found


def test_two_ranks_that_share_a_gpu_agree_bitwise_and_again(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cases = [
        (compress, {"update": rule, "waves": waves})
        for rule in ("neighbour", "synchronous", "delayed")
        for waves in (1, 2)
        for compress in (None, "bf16", "powersgd")
    ]
    first, second = run(train, 2, cases)
    again, _ = run(train, 2, cases)
    for mine, theirs, later in zip(first, second, again, strict=True):
        models.assert_same(mine, theirs)
        models.assert_same(mine, later)


@pytest.mark.parametrize("streams", ["separate", "shared"])
def test_one_rank_over_nccl_is_bitwise_the_engine_alone(monkeypatch, streams):
    """Buckets, streams and waits are those of many ranks; the sum is the rank's own gradient."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    [(alone, exchanged)] = run(train_alone_and_with_nccl, 1, streams)
    models.assert_same(alone, exchanged)


def train_alone_and_with_nccl(rank, size, streams):
    import torch.distributed as dist

    dist.destroy_process_group()
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    case = [(None, {"waves": 2, "streams": streams})]
    [alone] = train(rank, size, case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wavelet.engine.check_exchange", lambda choice, *_: choice)  # one rank would train alone
        [exchanged] = train(rank, size, case)
    return alone, exchanged
