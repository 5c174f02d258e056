"""Tensors outside the model that a loss would train: refused with several waves, the caller's own with one."""

import pytest
import torch
from torch import nn

import wavelet

from .models import batches, loss, mlp


def engine_with(loss_function, **options):
    model = mlp(depth=1)
    return wavelet.Wavelet(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_function, **options)


def test_a_parameter_of_the_losss_own_is_refused():
    """Its own optimizer would read a gradient that a wave's thread is writing."""
    scale = nn.Parameter(torch.zeros(2, 3))

    with engine_with(lambda model, batch: loss(model, batch) * torch.exp(-scale).mean()) as engine:
        with pytest.raises(
            ValueError, match=r"a parameter of shape \(2, 3\) that requires a gradient and is not in the model"
        ):
            engine.step(batches(1)[0])
        assert scale.grad is None


def test_with_one_wave_it_is_trained_as_in_a_plain_loop():
    results = []
    for plain in (True, False):
        scale = nn.Parameter(torch.zeros(()))
        own = torch.optim.SGD([scale], lr=0.1)

        def scaled(model, batch, scale=scale):
            return loss(model, batch) * torch.exp(-scale) + scale

        model = mlp(depth=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = None if plain else wavelet.Wavelet(model, optimizer, scaled, waves=1)
        torch.manual_seed(3)
        for batch in batches(6):
            own.zero_grad()
            if engine is None:
                optimizer.zero_grad()
                scaled(model, batch).backward()
                optimizer.step()
            else:
                engine.step(batch)
            own.step()
        results.append(scale.item())
    assert results[0] == results[1] != 0


def test_batches_may_require_gradients():
    with engine_with(loss) as engine:
        for x, y in batches(4):
            engine.step((x.requires_grad_(), y))


def test_a_frozen_teacher_outside_is_fine():
    teacher = mlp(depth=1).requires_grad_(False)

    def distilled(model, batch):
        x, _ = batch
        return (model(x) - teacher(x)).square().mean()

    with engine_with(distilled) as engine:
        for batch in batches(4):
            engine.step(batch)


def test_the_original_model_in_the_loss_is_found_in_the_first_forward():
    model = mlp(depth=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wavelet.Wavelet(model, optimizer, lambda _, batch: loss(model, batch)) as engine:
        with pytest.raises(ValueError, match="the loss was computed with the original model"):
            engine.step(batches(1)[0])
    assert all(parameter.grad is None for parameter in model.parameters())
