"""The plain loop is the ordinary one; the drive trains as many batches as asked and reads losses late."""

import copy

import pytest
import torch
from torch.nn.functional import mse_loss

from wavelet.bench.loops import PlainLoop, WavesLoop, batches, drive
from wavelet.jobs import Job


def make_job(**settings):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    points = torch.randn(24, 3)
    data = [(x, x.sum(1, keepdim=True)) for x in points.split(4)]

    def loss(model, batch):
        return {"loss": mse_loss(model(batch[0]), batch[1])}

    return Job(model, optimizer, loss, data, samples_per_batch=4, **settings)


def test_plain_loop_sums_gradients_then_divides_clips_and_steps_once_an_update():
    job = make_job(clip_grad_norm=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, step_size=1, gamma=0.5)
    object.__setattr__(job, "scheduler", scheduler)
    model = copy.deepcopy(job.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    by_hand = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for first in (0, 2, 4):
        optimizer.zero_grad()
        for batch in job.loader[first : first + 2]:
            job.loss(model, batch)["loss"].backward()
        for parameter in model.parameters():
            parameter.grad /= 2
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        by_hand.step()
    with PlainLoop(job, accumulate=2) as loop:
        assert drive(loop, batches(job.loader, 1), None)[0] == 6
        loop.flush()
    assert torch.equal(job.model.weight, model.weight)
    assert scheduler.get_last_lr() == by_hand.get_last_lr() == [0.0125]


def test_flush_applies_an_incomplete_accumulation():
    job = make_job()
    before = job.model.weight.clone()
    with PlainLoop(job, accumulate=4) as loop:
        drive(loop, batches(job.loader), 3)
        assert torch.equal(job.model.weight, before)
        loop.flush()
    assert not torch.equal(job.model.weight, before)


def test_autocast_reaches_the_forward():
    job = make_job(autocast=torch.bfloat16)
    seen = []
    job.model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with PlainLoop(job) as loop:
        drive(loop, batches(job.loader), 1)
    assert seen == [torch.bfloat16]


def test_waves_loop_with_one_wave_is_the_plain_loop():
    plain, waves = make_job(clip_grad_norm=0.5), make_job(clip_grad_norm=0.5)
    losses = {"plain": [], "waves": []}
    with PlainLoop(plain) as loop:
        drive(loop, batches(plain.loader), 10, on_loss=lambda done, loss: losses["plain"].append(loss))
    with WavesLoop(waves, waves=1, update="neighbour") as loop:
        drive(loop, batches(waves.loader), 10, behind=2, on_loss=lambda done, loss: losses["waves"].append(loss))
    assert losses["plain"] == losses["waves"]
    assert torch.equal(plain.model.weight, waves.model.weight)


class Recorder:
    """A loop that notes when a loss is read."""

    def __init__(self):
        self.events = []

    def step(self, batch):
        self.events.append(f"step {batch}")
        return lambda: self.events.append(f"read {batch}") or float(batch)

    def drain(self):
        self.events.append("drain")


def test_losses_are_read_behind_and_in_order():
    loop, losses = Recorder(), []
    steps, seconds = drive(loop, iter(range(4)), 4, behind=2, on_loss=lambda done, loss: losses.append((done, loss)))
    assert steps == 4
    assert seconds > 0
    assert losses == [(1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0)]
    assert loop.events == ["step 0", "step 1", "step 2", "read 0", "step 3", "read 1", "drain", "read 2", "read 3"]


def test_batches_go_round_and_an_empty_loader_is_an_error():
    source = batches([1, 2])
    assert [next(source) for _ in range(5)] == [1, 2, 1, 2, 1]
    assert list(batches([1, 2], 2)) == [1, 2, 1, 2]
    with pytest.raises(ValueError, match="no batch"):
        next(batches([]))
