"""Public failures: the optimizer and the schedule."""

import copy

import pytest
import torch

import wavelet

from ..models import assert_same, batches, loss, trained_weights
from .engines import each_rule, small


@each_rule
def test_accelerate_641_clipping_comes_after_unscaling(rule):
    """Clipping the scaled gradient by the plain norm made every update a thousand times too small."""
    moved = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=4096.0)):
        model = small()
        before = trained_weights(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with wavelet.Wavelet(
            model, optimizer, loss, update=rule, waves=1, clip_grad_norm=0.1, grad_scaler=scaler
        ) as engine:
            engine.step(batches(1)[0])
        distance = sum((a - b).square().sum() for a, b in zip(before, trained_weights(model), strict=True)).sqrt()
        moved.append(distance.item())
    assert moved[0] == pytest.approx(0.1, rel=1e-4)
    assert moved[1] == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize(("rule", "updates"), [("neighbour", 6), ("delayed", 6), ("synchronous", 3)])
def test_accelerate_963_a_scheduler_is_stepped_once_an_update(rule, updates):
    """Once a process and micro-batch, a warm-up was over eight times too early."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with wavelet.Wavelet(model, optimizer, loss, update=rule, accumulate=2, scheduler=scheduler) as engine:
        for batch in batches(12, size=6):
            engine.step(batch)
    assert optimizer.param_groups[0]["lr"] == 0.5**updates


def test_post_local_sgd_after_loading_the_groups_are_still_the_users():
    """After load_state_dict the wrapper's groups were others than the optimizer's, so new rates went nowhere."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wavelet.Wavelet(model, optimizer, loss) as engine:
        engine.step(batches(1)[0])
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.param_groups[0]["lr"] = 0.0
        for batch in batches(2):
            engine.step(batch)
        engine.drain()
        before = trained_weights(model)
        for batch in batches(4):
            engine.step(batch)
        engine.drain()
        assert_same(trained_weights(model), before)
