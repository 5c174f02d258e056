"""Execution is asynchronous and the result is not: injected sleeps change no bit."""

import hashlib
import random
import time

import pytest
import torch

import wavelet

from .models import batches, loss, mlp


class Sleepy(torch.autograd.Function):
    """Identity that sleeps in forward and in backward."""

    @staticmethod
    def forward(ctx, x, delays):
        ctx.delays = delays
        time.sleep(delays())
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.delays())
        return gradient, None


class SleepyBlock(torch.nn.Module):
    def __init__(self, delays):
        super().__init__()
        self.delays = delays

    def forward(self, x):
        return Sleepy.apply(x, self.delays)


def run(seed, rule, *, checkpointing=None, waves=2):
    delays = random.Random(seed)

    def delay():
        return delays.choice([0, 0, 0.001, 0.004]) if seed else 0

    model = mlp(checkpointing=checkpointing, norm=checkpointing is None)
    model = torch.nn.Sequential(model[0], SleepyBlock(delay), *model[1:-1], SleepyBlock(delay), model[-1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: time.sleep(delay()))
    torch.manual_seed(5)
    digest = hashlib.sha256()
    with wavelet.Wavelet(
        model, optimizer, loss, waves=waves, update=rule, resync=2 if rule == "neighbour" else None
    ) as e:
        steps = [e.step(batch) for batch in batches(20)]
        digest.update(torch.rand(1).numpy().tobytes())
    digest.update(repr([step.loss for step in steps]).encode())
    for tensor in [*model.parameters(), *model.buffers()]:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("waves", [2, 3])
@pytest.mark.parametrize("rule", ["neighbour", "synchronous", "delayed"])
def test_ten_runs_with_random_sleeps_have_one_hash(rule, waves):
    assert len({run(seed, rule, waves=waves) for seed in range(10)}) == 1


@pytest.mark.parametrize("checkpointing", ["reentrant", "plain"])
def test_sleeps_beside_recomputation(checkpointing):
    """Recomputation swaps the global random state; masks drawn by the caller meanwhile must not move."""
    assert len({run(seed, "delayed", checkpointing=checkpointing) for seed in range(6)}) == 1
