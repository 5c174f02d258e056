"""The engine's face and the serial rules under one hand: what a test does to both must give the same."""

import pytest
import torch

import wavelet

from .models import Serial, assert_same, batches, loss, mlp, trained_weights

RULES = ["neighbour", "synchronous", "delayed"]
each_rule = pytest.mark.parametrize("rule", RULES)
each_rule_in_2_and_3_waves = pytest.mark.parametrize(
    ("rule", "waves"), [(rule, waves) for rule in RULES for waves in (2, 3)]
)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


class Face:
    """The engine as the tests' hand sees it: the same names as :class:`Serial` has."""

    def __init__(self, model, make_optimizer, **options):
        self.model = model
        self.pairs = [(list(model.parameters()), make_optimizer(model.parameters()))]
        self.copies = [self.pairs[0][0]]
        self.optimizer = self.pairs[0][1]
        options.setdefault("resync", None)
        self.engine = wavelet.Wavelet(model, self.optimizer, options.pop("loss", loss), **options)

    def step(self, batch):
        return self.engine.step(batch)

    def __enter__(self):
        self.engine.__enter__()
        return self

    def __exit__(self, *error):
        self.engine.__exit__(*error)


def small(**options):
    return mlp(depth=1, **options)


def compare(rule, waves, act, *, make_optimizer=momentum, count=14, drains=(), model=small):
    """``act(n, hand)`` changes things before batch n: the engine must follow as the serial rule does."""
    data = batches(count, size=6)
    torch.manual_seed(3)
    serial = Serial(model(), make_optimizer, rule=rule, waves=waves)
    losses = []
    for n, batch in enumerate(data):
        act(n, serial)
        losses.append(serial.step(batch))
    torch.manual_seed(3)
    with Face(model(), make_optimizer, waves=waves, update=rule) as face:
        steps = []
        for n, batch in enumerate(data):
            if n in drains:
                face.engine.drain()
            act(n, face)
            steps.append(face.step(batch))
        face.engine.drain()
        assert [step.loss for step in steps] == losses
        assert_same(trained_weights(face.model), [p.detach() for p in serial.newest[0]])
        assert_same(list(face.model.buffers()), list(serial.model.buffers()))


def change_groups(hand, **entries):
    for _, optimizer in hand.pairs:
        optimizer.param_groups[0].update(entries)
