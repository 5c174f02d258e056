"""State in plain attributes of modules: what a forward reads and then changes is refused, all else is let through."""

import copy

import pytest
import torch
from torch import nn

import wavelet

from ..models import batches, loss, mlp


class Recurrent(nn.Module):
    """Adds its last output, which it keeps in a plain attribute, in one of several ways."""

    def __init__(self, kind):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.kind = kind
        self.state = None if kind == "made by the first forward" else self.shaped(torch.zeros(6, 4))

    def shaped(self, tensor):
        return {"tuple": (tensor, 1), "dict": {"h": tensor}}.get(self.kind, tensor)

    def plain(self):
        return {"tuple": lambda s: s[0], "dict": lambda s: s["h"]}.get(self.kind, lambda s: s)(self.state)

    def forward(self, x):
        y = self.layer(x) if self.state is None else self.layer(x) + self.plain()
        if self.kind == "in place":
            self.state.copy_(y.detach())
        elif self.kind == "dropped":
            del self.state
        else:
            self.state = self.shaped(y if self.kind == "with its graph" else y.detach())
        return y


class Outputs(nn.Module):
    """Leaves behind what nobody reads in a forward, and keeps a table that it builds anew for a longer batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.seen = self.penalty = torch.zeros(())
        self.table = torch.ones(2)

    def forward(self, x):
        if len(x) > self.table.shape[0]:
            self.table = torch.ones(len(x))
        y = self.layer(x) * self.table[: len(x), None]
        self.seen = y.detach()
        self.penalty = y.square().mean()
        return y


@pytest.mark.parametrize(
    "kind", ["tensor", "in place", "tuple", "dict", "with its graph", "made by the first forward", "dropped"]
)
def test_state_that_a_forward_reads_and_changes_is_refused(kind):
    """Each replica would have its own: the batches of one wave would never see what the other's left."""
    model = Recurrent(kind)
    with pytest.raises(ValueError, match=r"the forward changes 'state.*register_buffer"):
        with wavelet.Wavelet(model, torch.optim.SGD(model.parameters(), lr=0.1), loss) as engine:
            for batch in batches(4, size=6):
                engine.step(batch)


def test_what_a_forward_only_reads_or_only_writes_is_fine():
    model = nn.Sequential(Outputs(), nn.Linear(4, 4))
    model.scale = torch.ones(3)
    model.table = [torch.ones(3)]
    with wavelet.Wavelet(model, torch.optim.SGD(model.parameters(), lr=0.1), loss) as engine:
        for size in (2, 3, 4, 4, 4, 6):
            engine.step(batches(1, size=size)[0])


def test_with_one_wave_state_is_the_models_own():
    model = Recurrent("made by the first forward")
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    expected = []
    for batch in batches(4, size=6):
        optimizer.zero_grad()
        value = loss(plain, batch)
        value.backward()
        optimizer.step()
        expected.append(value.item())
    with wavelet.Wavelet(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, waves=1) as engine:
        assert [engine.step(batch).loss for batch in batches(4, size=6)] == expected


def test_a_compiled_forward_counts_as_reading_all():
    model = Recurrent("tensor")
    model.compile(backend="eager")
    with wavelet.Wavelet(model, torch.optim.SGD(model.parameters(), lr=0.1), loss) as engine:
        with pytest.raises(ValueError, match="the forward changes 'state'"):
            engine.step(batches(1, size=6)[0])


def test_watching_changes_no_number():
    """The first forwards are watched, later ones are not: the same batch gives the same loss."""
    model = mlp(depth=1)
    model.eval()
    model.unread = torch.ones(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with wavelet.Wavelet(model, optimizer, loss) as engine:
        losses = {engine.step(batches(1)[0]).loss for _ in range(8)}
    assert len(losses) == 1


def test_functions_compiled_inside_the_model_work():
    """The compiler must not trip over the watcher."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)
            self.unread = torch.ones(1)
            self.activate = torch.compile(lambda x: x.relu() * 2, backend="eager", fullgraph=True)

        def forward(self, x):
            return self.activate(self.layer(x))

    model = Inner()
    with wavelet.Wavelet(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, replicate=Inner) as engine:
        for batch in batches(6):
            engine.step(batch)
