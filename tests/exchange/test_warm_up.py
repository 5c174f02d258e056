"""Local SGD that begins with all-reduce, and ranks that count by samples or make fewer updates."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from wavelet.exchange import AllReduce, LocalSGD

from .. import models
from .ranks import run
from .training import model, sgd, trained

pytestmark = pytest.mark.distributed


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
