"""Saving at any batch and continuing elsewhere is bitwise the same as never having stopped."""

import random

import numpy
import pytest
import torch

import wavelet

from .models import assert_same, batches, loss, mlp, trained_weights
from .processes import completed

RULES = ["neighbour", "synchronous", "delayed"]


def make(rule, *, waves=2, accumulate=2, scheduler=True, **options):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if scheduler else None
    if rule == "neighbour":
        options.setdefault("resync", 2)
    engine = wavelet.Wavelet(
        model, optimizer, loss, waves=waves, update=rule, accumulate=accumulate, scheduler=schedule, **options
    )
    return model, engine


def final(model, engine, data):
    losses = [engine.step(batch).loss for batch in data]
    engine.close()
    draws = (random.random(), numpy.random.rand(), torch.rand(1).item())
    return losses, trained_weights(model), [b.clone() for b in model.buffers()], draws


def seed_all():
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 5, 8, 12])
@pytest.mark.parametrize("rule", RULES)
def test_continuing_is_bitwise_the_same(rule, at, tmp_path):
    data = batches(15)
    seed_all()
    model, engine = make(rule)
    expected = final(model, engine, data)

    seed_all()
    model, engine = make(rule)
    losses = [engine.step(batch).loss for batch in data[:at]]
    torch.save(engine.state_dict(), tmp_path / "state.pt")
    saved_and_went_on = final(model, engine, data[at:])
    assert losses + saved_and_went_on[0] == expected[0]
    assert_same(saved_and_went_on[1], expected[1])

    seed_all()
    model, engine = make(rule)
    engine.step(data[-1])
    engine.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    resumed = final(model, engine, data[at:])
    assert losses + resumed[0] == expected[0]
    assert_same(resumed[1], expected[1])
    assert_same(resumed[2], expected[2])
    assert resumed[3] == expected[3]


def go_on(rule, path, out):
    torch.set_num_threads(2)
    model, engine = make(rule)
    engine.load_state_dict(torch.load(path, weights_only=True))
    torch.save(final(model, engine, batches(15)[7:]), out)


@pytest.mark.parametrize("rule", RULES)
def test_in_a_fresh_process(rule, tmp_path):
    seed_all()
    model, engine = make(rule)
    for batch in batches(15)[:7]:
        engine.step(batch)
    path, out = tmp_path / "state.pt", tmp_path / "out.pt"
    torch.save(engine.state_dict(), path)
    expected = final(model, engine, batches(15)[7:])
    completed(go_on, rule, path, out).check_returncode()
    losses, weights, buffers, draws = torch.load(out)
    assert losses == expected[0]
    assert_same(weights, expected[1])
    assert_same(buffers, expected[2])
    assert draws == expected[3]


def test_the_state_is_a_clone():
    _, engine = make("neighbour")
    for batch in batches(3):
        engine.step(batch)
    state = engine.state_dict()
    before = [t.clone() for t in state["weights"][0]]
    for batch in batches(4):
        engine.step(batch)
    engine.close()
    assert_same(state["weights"][0], before)


def test_rates_that_the_user_set_are_saved():
    _, engine = make("neighbour", scheduler=False, accumulate=1)
    engine.step(batches(1)[0])
    engine._face.optimizer.param_groups[0]["lr"] = 0.5
    state = engine.state_dict()
    engine.close()
    _, other = make("neighbour", scheduler=False, accumulate=1)
    other.load_state_dict(state)
    assert other._face.optimizer.param_groups[0]["lr"] == 0.5
    other.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"waves": 3}, "waves=2, this engine has waves=3"),
        ({"accumulate": 1}, "accumulate=2, this engine has accumulate=1"),
        ({"scheduler": False}, "with a scheduler"),
    ],
)
def test_a_state_of_another_engine_is_refused(change, message):
    _, engine = make("delayed")
    state = engine.state_dict()
    engine.close()
    _, other = make("delayed", **change)
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(state)
    other.close()


def test_a_state_of_another_model_or_of_none_is_refused():
    _, engine = make("delayed", scheduler=False)
    state = engine.state_dict()
    model = mlp(depth=2)
    other = wavelet.Wavelet(model, torch.optim.Adam(model.parameters()), loss, update="delayed", accumulate=2)
    with pytest.raises(ValueError, match="other parameters"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="version"):
        other.load_state_dict({"model": {}})
    engine.close()
    other.close()


class Masters(torch.optim.Optimizer):
    """Keeps float32 moments beside bfloat16 weights, which torch's own loading would round."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            moment = self.state[p].setdefault("moment", torch.zeros_like(p, dtype=torch.float32))
            moment.mul_(0.9).add_(p.grad.float())
            p.add_(moment, alpha=-0.1)


@pytest.mark.parametrize("rule", RULES)
def test_states_keep_their_type(rule):
    def build():
        model = mlp(depth=1, norm=False, dropout=0.0).bfloat16()
        return model, wavelet.Wavelet(model, Masters(model.parameters()), in_bfloat16, update=rule)

    def in_bfloat16(model, batch):
        x, y = batch
        return loss(model, (x.bfloat16(), y))

    data = batches(12)
    model, engine = build()
    for batch in data[:5]:
        engine.step(batch)
    state = engine.state_dict()
    losses = [engine.step(batch).loss for batch in data[5:]]
    engine.close()
    expected = trained_weights(model)
    model, engine = build()
    engine.load_state_dict(state)
    assert [engine.step(batch).loss for batch in data[5:]] == losses
    engine.close()
    assert_same(trained_weights(model), expected)
