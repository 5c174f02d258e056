"""Micro-batches and flushes in any order, against the rules written once more as one loop without threads."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wavelet

from ..faces import RULES, momentum, small
from ..models import assert_same, batches, loss, trained_weights


class Plain:
    """Each rule with ``accumulate`` and ``flush``: one wave after the other."""

    def __init__(self, rule, waves, accumulate):
        self.rule, self.waves, self.accumulate = rule, waves, accumulate
        self.models = [small() for _ in range(1 if rule == "synchronous" else waves)]
        own = [list(model.parameters()) for model in self.models]
        self.optimizers = [momentum(parameters) for parameters in (own if rule == "neighbour" else own[:1])]
        self.buffers = copy.deepcopy(list(small().buffers()))
        self.sums, self.counts = [None] * waves, [0] * waves
        self.window = []
        self.position = 0
        self.newest = 0

    def step(self, batch):
        wave = self.position % self.waves
        model = self.models[wave % len(self.models)]
        for mine, carried in zip(model.buffers(), self.buffers, strict=True):
            mine.data.copy_(carried)
        parameters = list(model.parameters())
        value = loss(model, batch)
        gradients = torch.autograd.grad(value, parameters)
        self.buffers = [buffer.clone() for buffer in model.buffers()]
        slot = 0 if self.rule == "synchronous" else wave
        old = self.sums[slot]
        self.sums[slot] = list(gradients) if old is None else [a + b for a, b in zip(old, gradients, strict=True)]
        self.counts[slot] += 1
        full = self.waves * self.accumulate if self.rule == "synchronous" else self.accumulate
        if self.counts[slot] == full:
            self.update(slot)
        self.position = (self.position + 1) % (self.waves * self.accumulate)
        return value.item()

    def flush(self):
        for slot in range(self.waves):
            if self.counts[slot]:
                self.update(slot)
        if self.accumulate > 1 or self.rule == "synchronous":
            self.position = 0

    def update(self, slot):
        gradients = [total / self.counts[slot] for total in self.sums[slot]]
        self.sums[slot], self.counts[slot] = None, 0
        parameters = list(self.models[slot].parameters())
        if self.rule == "neighbour":
            self.window = [*self.window, gradients][-self.waves :]
            totals = self.window[0]
            for newer in self.window[1:]:
                totals = [a + b for a, b in zip(totals, newer, strict=True)]
            gradients = [total / self.waves for total in totals]
            optimizer = self.optimizers[slot]
        else:
            optimizer = self.optimizers[0]
            own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            if self.rule == "delayed" and slot != self.newest:
                # The optimizer moves the newest version into this wave's buffer.
                with torch.no_grad():
                    for target, newest in zip(parameters, self.models[self.newest].parameters(), strict=True):
                        target.copy_(newest)
            if self.rule == "delayed":
                for parameter, target in zip(own, parameters, strict=True):
                    optimizer.state[target] = optimizer.state.pop(parameter, {})
                optimizer.param_groups[0]["params"] = parameters
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        self.newest = slot

    @property
    def weights(self):
        return [p.detach() for p in self.models[self.newest].parameters()]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(RULES),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 3]),
    st.lists(st.sampled_from(["step", "step", "step", "flush", "drain"]), min_size=4, max_size=24),
)
def test_any_sequence_of_steps_and_flushes_equals_the_serial_rule(rule, waves, accumulate, program):
    threads = torch.get_num_threads()
    data = iter(batches(len(program), size=6))
    plain = Plain(rule, waves, accumulate)
    torch.manual_seed(3)
    torch.set_num_threads(max(1, threads // waves))
    expected = []
    feed = copy.copy(data)
    for act in program:
        if act == "step":
            expected.append(plain.step(next(feed)))
        elif act == "flush":
            plain.flush()
    plain.flush()
    torch.set_num_threads(threads)
    torch.manual_seed(3)
    model = small()
    torch.manual_seed(3)
    options = {"resync": None} if rule == "neighbour" else {}
    with wavelet.Wavelet(
        model, momentum(model.parameters()), loss, waves=waves, update=rule, accumulate=accumulate, **options
    ) as engine:
        losses = []
        for act in program:
            if act == "step":
                losses.append(engine.step(next(data)).loss)
            else:
                getattr(engine, act)()
    assert losses == expected
    assert_same(trained_weights(model), plain.weights)


@pytest.mark.parametrize("rule", RULES)
def test_a_flush_without_an_open_round_changes_nothing(rule):
    model = small()
    with wavelet.Wavelet(model, momentum(model.parameters()), loss, update=rule) as engine:
        for batch in batches(4):
            engine.step(batch)
        engine.flush()
        weights = trained_weights(model)
        engine.flush()
        assert_same(trained_weights(model), weights)
