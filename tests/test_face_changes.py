"""Changes of the face in any order, and weights that are written after a drain."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wavelet

from .faces import RULES, Face, change_groups, compare, each_rule, each_rule_in_2_and_3_waves, momentum, small
from .models import Serial, batches, loss, trained_weights

# Anything, in any order.


def set_rate(hand, n, value):
    change_groups(hand, lr=value)


def freeze(hand, n, index):
    parameter = list(hand.model.parameters())[index]
    parameter.requires_grad_(not parameter.requires_grad)


def switch(hand, n, training):
    hand.model.train(training)


def write(hand, n, index):
    """Another value from the newest, in one tensor of all copies."""
    if isinstance(hand, Face):
        hand.engine.drain()
        hand.copies[0][index].data.mul_(0.5).add_(0.3)
    else:
        value = hand.newest[0][index].detach() * 0.5 + 0.3
        for weights in hand.copies:
            weights[index].data.copy_(value)


def drain(hand, n, _):
    if isinstance(hand, Face):
        hand.engine.drain()


def save(hand, n, _):
    if isinstance(hand, Face):
        hand.engine.load_state_dict(hand.engine.state_dict())


def reload(hand, n, rate):
    for _, optimizer in hand.pairs:
        saved = copy.deepcopy(optimizer.state_dict())
        saved["state"] = {}
        saved["param_groups"][0]["lr"] = rate
        optimizer.load_state_dict(saved)


rates = st.sampled_from([0.0, 0.01, 0.05, 0.1])
indices = st.integers(1, 7)  # never all frozen: the first weight is left alone
acts = st.one_of(
    st.tuples(st.just(set_rate), rates),
    st.tuples(st.just(freeze), indices),
    st.tuples(st.just(switch), st.booleans()),
    st.tuples(st.just(write), indices),
    st.tuples(st.just(drain), st.none()),
    st.tuples(st.just(save), st.none()),
    st.tuples(st.just(reload), rates),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(RULES), st.sampled_from([2, 3]), st.lists(st.lists(acts, max_size=2), min_size=3, max_size=12))
def test_any_sequence_of_changes_equals_the_serial_rule(rule, waves, program):
    def act(n, hand):
        for function, value in program[n]:
            function(hand, n, value)

    compare(rule, waves, act, count=len(program))


# Weights written after a drain.


def halve_by_load_state_dict(parameters, index, model):
    name = [name for name, _ in model.named_parameters()][index]
    model.load_state_dict({name: parameters[index].detach() / 2}, strict=False)


def halve_by_copy(parameters, index, model):
    with torch.no_grad():
        parameters[index].copy_(parameters[index] / 2)


def halve_by_data(parameters, index, model):
    parameters[index].data.div_(2)


def halve_by_new_data(parameters, index, model):
    parameters[index].data = parameters[index].data / 2


@pytest.mark.parametrize(
    "halve", [halve_by_load_state_dict, halve_by_copy, halve_by_data, halve_by_new_data], ids=lambda f: f.__name__
)
@each_rule_in_2_and_3_waves
def test_one_tensor_written_after_a_drain_reaches_every_wave(rule, waves, halve):
    """All waves see the new value of that tensor, and no other tensor of theirs moves."""

    def act(n, hand):
        if n == 7:
            value = hand.newest[0][2].detach() / 2 if isinstance(hand, Serial) else None
            if value is None:
                hand.engine.drain()
                halve(hand.copies[0], 2, hand.model)
            else:
                for weights in hand.copies:
                    with torch.no_grad():
                        weights[2].copy_(value)

    compare(rule, waves, act)


@each_rule
def test_a_sign_changed_in_a_double_is_seen(rule):
    def double():
        return small(dropout=0.0, norm=False).double()

    data = [(x.double(), y) for x, y in batches(8, size=6)]
    results = []
    for drained in (True, False):
        model = double()
        optimizer = momentum(model.parameters())
        with wavelet.Wavelet(model, optimizer, loss, update=rule, resync=None) as engine:
            for batch in data[:4]:
                engine.step(batch)
            engine.drain()
            with torch.no_grad():
                model[0].weight.neg_()
            if not drained:
                model[0].weight.data[0, 0] *= 1 + 1e-12  # a change that nobody could miss
            for batch in data[4:]:
                engine.step(batch)
        results.append(trained_weights(model))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
