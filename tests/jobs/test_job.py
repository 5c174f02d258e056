"""A job checks what it is given, and measures a model without touching anything."""

import dataclasses
import math
import random

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from wavelet.jobs import Evaluation, Job


def parts():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, squared_error, [torch.randn(4, 3) for _ in range(3)]


def squared_error(model, batch):
    return model(batch).square().mean()


def make(**changes):
    model, optimizer, loss, loader = parts()
    arguments = {"model": model, "optimizer": optimizer, "loss": loss, "loader": loader, "samples_per_batch": 4}
    return Job(**{**arguments, **changes})


def test_samples_per_batch_comes_from_the_loader():
    model, optimizer, loss, _ = parts()
    loader = DataLoader(TensorDataset(torch.randn(12, 3)), batch_size=6)
    assert Job(model, optimizer, loss, loader).samples_per_batch == 6
    assert Job(model, optimizer, loss, loader, samples_per_batch=5).samples_per_batch == 5


def test_samples_per_batch_is_needed_where_the_loader_does_not_say():
    model, optimizer, loss, loader = parts()
    with pytest.raises(ValueError, match="pass samples_per_batch="):
        Job(model, optimizer, loss, loader)


def test_a_job_is_frozen_and_can_be_changed_by_replace():
    job = make()
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.seed = 3
    assert dataclasses.replace(job, seed=3).seed == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 1),
        ("optimizer", torch.optim.SGD),
        ("loss", "mse"),
        ("loader", 7),
        ("metric", 0.5),
        ("validation", 7),
        ("validation", iter([])),
        ("scheduler", "cosine"),
        ("seed", -1),
        ("seed", 2**32),
        ("seed", 1.0),
        ("seed", True),
        ("name", 3),
        ("clip_grad_norm", 0),
        ("clip_grad_norm", -1.0),
        ("clip_grad_norm", math.inf),
        ("clip_grad_norm", math.nan),
        ("clip_grad_norm", "1"),
        ("clip_grad_norm", True),
        ("autocast", torch.float32),
        ("autocast", "bf16"),
        ("samples_per_batch", 0),
        ("samples_per_batch", 2.0),
        ("samples_per_batch", True),
    ],
)
def test_refusals_name_the_argument_and_what_is_allowed(name, value):
    with pytest.raises(ValueError, match=rf"^{name}=.* is not possible: give .*\.$"):
        make(**{name: value})


def test_a_long_value_is_not_quoted():
    with pytest.raises(ValueError, match=r"^scheduler=<list> is not possible"):
        make(scheduler=list(range(1000)))


def test_a_scheduler_of_another_optimizer_is_refused():
    stranger = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(ValueError, match="belongs to another optimizer"):
        make(scheduler=torch.optim.lr_scheduler.StepLR(stranger, 1))


def test_everything_that_is_allowed_is_taken():
    model, optimizer, loss, loader = parts()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    plain = {"samples_per_batch": 4, "seed": 2**32 - 1, "name": "mine", "clip_grad_norm": 1}
    objects = {"validation": loader, "metric": squared_error, "scheduler": scheduler, "autocast": torch.bfloat16}
    job = Job(model, optimizer, loss, loader, **plain, **objects)
    assert {name: getattr(job, name) for name in (*plain, *objects)} == {**plain, **objects}


def test_the_mean_weighs_batches_by_their_samples():
    weight = torch.tensor([[1.0, -2.0, 0.5]])
    model = nn.Linear(3, 1, bias=False)
    model.weight.data.copy_(weight)
    samples = torch.randn(7, 3)
    outputs = samples @ weight.T
    job = make(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        validation=[samples[:3], samples[3:6], samples[6:]],
        metric=lambda model, batch: (model(batch) > 0).float().mean(),
    )
    loss, accuracy = job.evaluate()
    assert loss == pytest.approx(outputs.square().mean().item(), rel=1e-6)
    assert accuracy == pytest.approx((outputs > 0).float().mean().item(), rel=1e-6)


def test_the_first_tensor_counts_the_samples_wherever_it_is():
    batches = [{"scale": torch.tensor(2.0), "x": (torch.zeros(1, 3),), "y": 1.0}, {"x": (torch.zeros(3, 3),), "y": 5.0}]
    job = make(loss=lambda model, batch: torch.tensor(batch["y"]), validation=batches)
    assert job.evaluate() == Evaluation(loss=(1 * 1.0 + 3 * 5.0) / 4, accuracy=None)


def test_batches_without_a_tensor_weigh_alike():
    job = make(loss=lambda model, batch: torch.tensor(batch), validation=[1.0, 2.0, 6.0])
    assert job.evaluate().loss == 3.0


def test_a_mapping_with_the_loss_is_taken():
    job = make(loss=lambda model, batch: {"loss": batch.mean(), "other": 1}, validation=[torch.full((4, 3), 2.0)])
    assert job.evaluate().loss == 2.0


def test_evaluation_leaves_model_gradients_and_random_states_alone():
    def noisy(model, batch):
        assert not torch.is_grad_enabled() and not any(module.training for module in model.modules())
        torch.rand(3), numpy.random.rand(), random.random()
        return squared_error(model, batch)

    model, optimizer, _, loader = parts()
    model.train()
    model[1].eval()
    job = Job(model, optimizer, noisy, loader, samples_per_batch=4, validation=loader)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = (torch.get_rng_state(), numpy.random.get_state()[1].copy(), random.getstate())

    job.evaluate()

    assert [module.training for module in model.modules()] == [True, True, False, True, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (numpy.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]


def test_everything_is_put_back_when_the_loss_raises():
    def failing(model, batch):
        torch.rand(1)
        raise RuntimeError("boom")

    job = make(loss=failing, validation=[torch.randn(4, 3)])
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="boom"):
        job.evaluate()
    assert job.model.training and torch.equal(torch.get_rng_state(), state)


def test_evaluation_uses_the_jobs_precision():
    seen = []

    def loss(model, batch):
        seen.append(model[0](batch).dtype)
        return model(batch).float().mean()

    make(loss=loss, validation=[torch.randn(4, 3)], autocast=torch.bfloat16).evaluate()
    make(loss=loss, validation=[torch.randn(4, 3)]).evaluate()
    assert seen == [torch.bfloat16, torch.float32]


def test_evaluation_needs_validation_data():
    with pytest.raises(ValueError, match="no validation data"):
        make().evaluate()
    with pytest.raises(ValueError, match="yielded no batch"):
        make(validation=Sometimes()).evaluate()


class Sometimes:
    """Something that can be gone through, and has nothing."""

    def __iter__(self):
        return iter(())


@pytest.mark.parametrize("name", ["loader", "validation"])
def test_what_can_be_gone_through_only_once_is_refused(name):
    """Or training would end in the middle, at the second pass."""
    with pytest.raises(ValueError, match=f"{name}=.* is not possible: give a loader or a list"):
        make(**{name: iter([torch.ones(4, 3)])})


def test_an_empty_list_of_validation_batches_is_refused_before_training():
    with pytest.raises(ValueError, match=r"validation=\[\] is not possible: give .* at least one batch"):
        make(validation=[])
