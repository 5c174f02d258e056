"""Activation checkpointing: forward code that runs again in a wave's backward, beside the caller's forward."""

import random
import time

import numpy
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import wavelet

from ..models import Checkpointed, Serial, assert_same, batches, loss, mlp, trained_weights

RULES = ["neighbour", "synchronous", "delayed"]
each_rule = pytest.mark.parametrize("rule", RULES)
each_variant = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "plain"])


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def autocasting(model, batch):
    with torch.autocast("cpu", torch.bfloat16):
        return loss(model, batch)


class Nested(nn.Module):
    """A checkpoint inside a checkpoint, both with dropout."""

    def __init__(self, *, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.outer = Checkpointed(
            nn.Sequential(
                nn.Dropout(0.3),
                Checkpointed(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.ReLU()), reentrant=reentrant),
                nn.Linear(8, 8),
                nn.Dropout(0.3),
            ),
            reentrant=reentrant,
        )
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.outer(self.first(x)))


def compare(model, rule, *, waves=2, loss_function=loss, plain=None, augment=None):
    """Equal to the rule run serially on ``plain``, by default the same model."""
    data = batches(10, size=6)
    torch.manual_seed(3)
    serial = Serial(plain or model, adam, rule=rule, waves=waves, loss=loss_function)
    expected, drawn = [], []
    for batch in data:
        expected.append(serial.step(batch))
        if augment:
            drawn.append(augment())
    torch.manual_seed(3)
    with wavelet.Wavelet(
        model, adam(model.parameters()), loss_function, waves=waves, update=rule, resync=None
    ) as engine:
        steps, drawn_beside = [], []
        for batch in data:
            steps.append(engine.step(batch))
            if augment:
                drawn_beside.append(augment())
        engine.drain()
        assert [step.loss for step in steps] == expected
        assert drawn_beside == drawn
        assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])
    return serial


@pytest.mark.parametrize("waves", [2, 3])
@each_variant
@each_rule
def test_nested_checkpoints(rule, reentrant, waves):
    compare(Nested(reentrant=reentrant), rule, waves=waves)


@pytest.mark.parametrize("waves", [2, 3])
@each_variant
@each_rule
def test_checkpoints_inside_autocast(rule, reentrant, waves):
    """Recomputation sees the autocast state of its own forward (#43102, #50170, #71169)."""
    compare(Nested(reentrant=reentrant), rule, waves=waves, loss_function=autocasting)


class SharedEnds(nn.Module):
    """One weight before and after a checkpoint; the caller stays between them while the other wave recomputes."""

    def __init__(self, *, reentrant, pause):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.inner = Checkpointed(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), reentrant=reentrant)
        self.pause = nn.Identity()
        self.pause.register_forward_hook(lambda *_: time.sleep(pause))
        self.after = nn.Identity()

    def forward(self, x):
        return self.layer(self.after(self.pause(self.inner(self.layer(x)))))


@each_variant
def test_the_casts_that_a_forward_shares_survive_a_recomputation_beside_it(reentrant):
    """Autocast keeps the cast of a weight until its context ends, in a cache that all threads share and clear."""
    compare(
        SharedEnds(reentrant=reentrant, pause=0.02),
        "neighbour",
        loss_function=autocasting,
        plain=SharedEnds(reentrant=reentrant, pause=0),
    )


@pytest.mark.parametrize("waves", [2, 3])
@each_variant
@each_rule
def test_statistics_count_once(rule, reentrant, waves):
    """Plain PyTorch updates BatchNorm's statistics again in the recomputation; here they are as without checkpoints."""
    model = mlp(depth=2, checkpointing="reentrant" if reentrant else "plain")
    serial = compare(model, rule, waves=waves, plain=mlp(depth=2))
    assert_same(list(model.buffers()), list(serial.model.buffers()))


@each_variant
@each_rule
def test_the_caller_draws_between_steps(rule, reentrant):
    """An augmentation beside a recomputation that has swapped the global random state."""

    def augment():
        time.sleep(0.001)
        return torch.rand(3).tolist(), random.Random(0).random()

    compare(Nested(reentrant=reentrant), rule, augment=augment)


# What cannot be guarded is refused.


class Drawing(nn.Module):
    """Draws inside a checkpoint."""

    def __init__(self, draw, *, reentrant, preserve=True):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.draw, self.options = draw, {"use_reentrant": reentrant, "preserve_rng_state": preserve}

    def part(self, x):
        return torch.relu(self.inner(self.draw(x)))

    def forward(self, x):
        return self.last(checkpoint(self.part, self.first(x), **self.options))


def train(model, count=4):
    with wavelet.Wavelet(model, adam(model.parameters()), loss) as engine:
        for batch in batches(count, size=6):
            engine.step(batch)


@pytest.mark.parametrize(
    "draw", [lambda x: x * random.random(), lambda x: x * float(numpy.random.rand())], ids=["random", "numpy"]
)
@each_variant
def test_numbers_that_a_checkpoint_does_not_replay_are_refused(draw, reentrant):
    with pytest.raises(RuntimeError, match="draws from Python's or NumPy's random numbers"):
        train(Drawing(draw, reentrant=reentrant))


@each_variant
def test_dropout_without_a_preserved_random_state_is_refused(reentrant):
    model = Drawing(lambda x: torch.dropout(x, 0.5, True), reentrant=reentrant, preserve=False)
    with pytest.raises(RuntimeError, match="preserve_rng_state=False draws random numbers"):
        train(model)


@each_variant
@each_rule
def test_no_preserved_random_state_is_fine_without_draws(rule, reentrant):
    compare(Drawing(torch.tanh, reentrant=reentrant, preserve=False), rule)


@each_variant
def test_an_error_inside_a_recomputation_is_the_users_own(reentrant):
    """Raised with its own type, and the caller's forward is not left waiting for the baton."""
    runs = iter(range(1000))

    def draw(x):
        if next(runs) == 5:  # forwards and recomputations alternate at first
            raise KeyError("in a checkpoint")
        return x * 1

    with pytest.raises(KeyError, match="in a checkpoint"):
        train(Drawing(draw, reentrant=reentrant), count=8)


def test_a_checkpoint_that_begins_later_than_the_first_batches():
    """The first batches recompute nothing: the guard must not depend on having seen it there."""

    class Later(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4))
            self.register_buffer("count", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            self.count += 1
            return checkpoint(self.layer, x, use_reentrant=False) if self.count > 4 else self.layer(x)

    compare(Later(), "neighbour", augment=lambda: torch.rand(3).tolist())
