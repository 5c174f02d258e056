"""Optimizers that hold optimizers: each wave has inner ones of its own."""

import torch

import wavelet

from ..models import Serial, assert_same, batches, loss, trained_weights
from .optimizers import compare, each_rule, small


class Lookahead(torch.optim.Optimizer):
    """Wraps an optimizer and shares its groups; every third step pulls towards slow weights kept in its own state."""

    def __init__(self, base):
        self.base = base
        super().__init__(base.param_groups, dict(base.defaults))
        self.param_groups = base.param_groups
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.base.step()
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.detach().clone())
                if self.count % 3 == 0:
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)

    def state_dict(self):
        return {"base": self.base.state_dict(), "slow": super().state_dict()["state"], "count": self.count}


@each_rule
def test_a_wrapper_that_shares_its_groups(rule):
    def make(parameters):
        return Lookahead(torch.optim.SGD(parameters, lr=0.1, momentum=0.9))

    data = batches(12, size=6)
    serial = Serial(small(), make, rule=rule, waves=2)
    model = small()
    optimizer = make(model.parameters())
    with wavelet.Wavelet(model, optimizer, loss, update=rule, resync=None) as engine:
        for n, batch in enumerate(data):
            for _, inner in serial.pairs:
                inner.base.param_groups[0]["lr"] = 0.1 + n / 100
            serial.step(batch)
            optimizer.base.param_groups[0]["lr"] = 0.1 + n / 100
            engine.step(batch)
    assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])


def test_after_a_drain_an_inner_optimizer_has_its_newest_state_too():
    model = small()
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    serial = Serial(small(), lambda p: Lookahead(torch.optim.SGD(p, lr=0.1, momentum=0.9)), rule="delayed", waves=2)
    with wavelet.Wavelet(model, optimizer, loss, update="delayed") as engine:
        for batch in batches(4):
            engine.step(batch)
            serial.step(batch)
    newest = serial.newest[1]
    assert optimizer.count == newest.count
    for mine, theirs in zip(model.parameters(), serial.newest[0], strict=True):
        assert torch.equal(optimizer.state[mine]["slow"], newest.state[theirs]["slow"])
        assert torch.equal(optimizer.base.state[mine]["momentum_buffer"], newest.base.state[theirs]["momentum_buffer"])


class Both(torch.optim.Optimizer):
    """Gives matrices to one optimizer and vectors to another, as users of Muon do."""

    def __init__(self, parameters):
        parameters = list(parameters)
        self.parts = [
            torch.optim.SGD([p for p in parameters if p.dim() > 1], lr=0.1, momentum=0.9),
            torch.optim.Adam([p for p in parameters if p.dim() == 1], lr=0.01),
        ]
        super().__init__(parameters, {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure=None):
        for part in self.parts:
            part.step()


@each_rule
def test_a_list_of_optimizers_inside_one(rule):
    _, optimizer = compare(Both, rule)
    for part in optimizer.parts:
        assert all(part.state[p] for group in part.param_groups for p in group["params"]), "the face has their state"


class Saving(Lookahead):
    """Saves and loads all that it has."""

    def load_state_dict(self, state):
        self.base.load_state_dict(state["base"])
        self.param_groups = self.base.param_groups
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.state.update({parameters[i]: dict(slow) for i, slow in state["slow"].items()})
        self.count = state["count"]


@each_rule
def test_a_wrapper_is_saved_and_resumed(rule):
    data = batches(12, size=6)

    def engine_on(model):
        optimizer = Saving(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        return wavelet.Wavelet(model, optimizer, loss, update=rule, resync=None)

    model, resumed = small(), small()
    with engine_on(model) as engine:
        for number, batch in enumerate(data):
            if number == 5:
                state = engine.state_dict()
            engine.step(batch)
    with engine_on(resumed) as engine:
        engine.load_state_dict(state)
        for batch in data[5:]:
            engine.step(batch)
    assert_same(trained_weights(resumed), trained_weights(model))
