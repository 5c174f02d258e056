"""Each update rule equals its serial oracle bitwise, whatever the optimizer, the waves and the accumulation."""

import pytest
import torch

import wavelet

from .. import oracle
from ..models import assert_same, batches, conv, loss, mlp, trained_weights

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "sgd-loop": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
}


def compare(model, make_optimizer, data, *, seed=3, engine_steps=None, **rule):
    """Train the same model both ways and compare losses, weights, buffers and the random state."""
    waves = rule["waves"]
    torch.manual_seed(seed)
    expected = oracle.train(model, make_optimizer, loss, data, **rule)
    torch.manual_seed(seed)
    options = {"update": rule["rule"], "accumulate": rule.get("accumulate", 1), "clip_grad_norm": rule.get("clip")}
    if rule["rule"] == "neighbour":
        options["resync"] = rule.get("resync")
    optimizer = make_optimizer(model.parameters())
    with wavelet.Wavelet(model, optimizer, loss, waves=waves, **options) as engine:
        steps = [engine.step(batch) for batch in data]
    assert [step.loss for step in steps] == expected.losses
    assert_same(trained_weights(model), expected.weights)
    assert_same(list(model.buffers()), expected.buffers)
    assert torch.equal(torch.get_rng_state(), expected.rng)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("waves", [1, 2, 3])
@pytest.mark.parametrize("rule", ["neighbour", "synchronous", "delayed"])
def test_rule_equals_oracle(rule, waves, optimizer):
    compare(mlp(), OPTIMIZERS[optimizer], batches(22), rule=rule, waves=waves)


@pytest.mark.parametrize("accumulate", [2, 3])
@pytest.mark.parametrize("waves", [1, 2, 3])
@pytest.mark.parametrize("rule", ["neighbour", "synchronous", "delayed"])
def test_accumulation_with_an_open_last_round(rule, waves, accumulate):
    compare(mlp(), OPTIMIZERS["adam"], batches(23), rule=rule, waves=waves, accumulate=accumulate)


@pytest.mark.parametrize("rule", ["neighbour", "synchronous", "delayed"])
def test_convolutions_with_clipping(rule):
    compare(conv(), OPTIMIZERS["momentum"], batches(20, image=True), rule=rule, waves=2, clip=0.5)


@pytest.mark.parametrize("waves", [2, 3])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_resync_averages_with_the_predecessor(waves, optimizer):
    compare(mlp(), OPTIMIZERS[optimizer], batches(24), rule="neighbour", waves=waves, resync=3)


@pytest.mark.parametrize("checkpointing", ["reentrant", "plain"])
@pytest.mark.parametrize("rule", ["neighbour", "synchronous", "delayed"])
@pytest.mark.parametrize("waves", [1, 2, 3])
def test_checkpointing_with_dropout(rule, waves, checkpointing):
    model = mlp(checkpointing=checkpointing, norm=False)
    compare(model, OPTIMIZERS["adam"], batches(20), rule=rule, waves=waves)


def test_synchronous_equals_the_plain_loop_with_accumulation():
    data = batches(24)
    plain = mlp()
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    for start in range(0, 24, 4):
        for batch in data[start : start + 4]:
            loss(plain, batch).backward()
        for parameter in plain.parameters():
            parameter.grad /= 4
        optimizer.step()
        optimizer.zero_grad()
    torch.set_num_threads(2)
    model = mlp()
    torch.manual_seed(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with wavelet.Wavelet(model, optimizer, loss, waves=2, accumulate=2, update="synchronous") as engine:
        for batch in data:
            engine.step(batch)
    assert_same(trained_weights(model), trained_weights(plain))


@pytest.mark.parametrize("waves", [2, 3])
def test_neighbour_with_plain_sgd_is_delayed_sgd_at_a_kth_of_the_rate(waves):
    results = []
    for rule, rate in (("neighbour", 0.1), ("delayed", 0.1 / waves)):
        model = mlp(dropout=0.0, norm=False).double()
        data = [(x.double(), y) for x, y in batches(24)]
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with wavelet.Wavelet(model, optimizer, loss, waves=waves, update=rule, resync=None) as engine:
            for batch in data:
                engine.step(batch)
        results.append(trained_weights(model))
    # Not the same sums: after the last batch, neighbour has applied only a part of the last K-1 gradients.
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-2)


@pytest.mark.parametrize("d", [0, 1, 2, 3])
def test_delayed_is_stable_up_to_the_published_rate(d):
    """On ½λx², λ = 1, serial SGD with delay d converges iff η < 2·sin(π/(2(2d+1))): 2, 1, 0.618, 0.445."""
    limit = 2 * torch.sin(torch.tensor(torch.pi / (2 * (2 * d + 1)), dtype=torch.float64)).item()

    def last(rate):
        model = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with wavelet.Wavelet(
            model, optimizer, lambda m, b: m(b).pow(2).sum() / 2, waves=d + 1, update="delayed"
        ) as engine:
            for _ in range(400):
                engine.step(torch.ones(1, 1, dtype=torch.float64))
        return model.weight.abs().item()

    assert last(limit * 0.95) < 0.5
    assert last(limit * 1.05) > 2
