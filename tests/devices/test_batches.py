"""Batches of every kind reach the loss function as they are, with their tensors on the device."""

import collections
import copy
import dataclasses
import types
import typing

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

import wavelet
from wavelet.devices import move

from ..models import Serial, assert_same, batches, mlp, trained_weights

CPU, META = torch.device("cpu"), torch.device("meta")


class Named(typing.NamedTuple):
    x: torch.Tensor
    y: torch.Tensor
    name: str = "train"


@dataclasses.dataclass
class Data:
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    y: torch.Tensor
    length: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: torch.Tensor
    y: torch.Tensor


class OwnList(list):
    """A list with another type."""


KINDS = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "own list": lambda x, y: OwnList([x, y]),
    "named tuple": Named,
    "dict": lambda x, y: {"x": x, "y": y, "name": "a", "nothing": None},
    "ordered dict": lambda x, y: collections.OrderedDict(x=x, y=y),
    "user dict": lambda x, y: collections.UserDict(x=x, y=y),
    "read-only mapping": lambda x, y: types.MappingProxyType({"x": x, "y": y}),
    "dataclass": Data,
    "frozen dataclass": Frozen,
    "frozen dataclass with slots": Slotted,
    "batch encoding": lambda x, y: BatchEncoding({"x": x, "y": y}),
    "nested": lambda x, y: {"x": x, "y": y, "more": [Data(x, y), (x, {"y": y})], "names": ["a", "b"], "n": 3},
}
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def parts(batch):
    """x and y of any of these."""
    if isinstance(batch, (tuple, list)):
        return batch[0], batch[1]
    return (batch["x"], batch["y"]) if hasattr(batch, "keys") else (batch.x, batch.y)


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
    elif hasattr(value, "keys"):
        for key in value:
            yield from tensors_in(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


@each_kind
def test_the_same_object_where_nothing_moves(make):
    batch = make(torch.ones(3, 8), torch.zeros(3))
    assert move(batch, CPU) is batch


@each_kind
def test_every_tensor_moves_and_the_original_stays(make):
    batch = make(torch.ones(3, 8), torch.zeros(3))
    before = list(tensors_in(batch))
    if isinstance(batch, BatchEncoding):
        batch = copy.copy(batch)  # its own to() writes into it
        batch.data = dict(batch.data)
    moved = move(batch, META)
    assert type(moved) is type(batch) or isinstance(batch, types.MappingProxyType)
    assert len(before) == len(list(tensors_in(moved)))
    assert all(tensor.is_meta for tensor in tensors_in(moved))
    assert all(not tensor.is_meta for tensor in before)
    if not isinstance(batch, BatchEncoding):
        assert all(a is b for a, b in zip(tensors_in(batch), before, strict=True))


def test_what_is_no_tensor_stays_itself():
    other = object()
    batch = {"x": torch.ones(1), "s": "text", "b": b"bytes", "n": None, "o": other, "r": range(3), "t": torch.float32}
    moved = move(batch, META)
    assert all(moved[key] is batch[key] for key in batch if key != "x")
    for alone in ("text", None, 3, other):
        assert move(alone, META) is alone


def test_packed_sequences_move():
    batch = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    assert move(batch, CPU) is batch
    assert isinstance(move({"x": batch}, CPU)["x"], PackedSequence)


def test_a_model_output_moves_in_both_of_its_faces():
    """A dataclass that is a mapping too."""
    batch = BaseModelOutput(last_hidden_state=torch.ones(2))
    moved = move(batch, META)
    assert moved.last_hidden_state.is_meta
    assert moved["last_hidden_state"].is_meta
    assert not batch["last_hidden_state"].is_meta


def test_a_dataclass_with_a_field_that_was_never_set():
    @dataclasses.dataclass
    class Lazy:
        x: torch.Tensor
        cache: torch.Tensor = dataclasses.field(init=False)

    batch = Lazy(torch.ones(2))
    assert move(batch, CPU) is batch
    assert move(batch, META).x.is_meta


# Through the engine.


def loss(model, batch):
    x, y = parts(batch)
    return cross_entropy(model(x), y)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@each_kind
def test_an_engine_takes_it(make):
    data = [make(x, y) for x, y in batches(5, size=6)]
    torch.manual_seed(3)
    serial = Serial(mlp(depth=1), momentum, rule="neighbour", waves=2, loss=loss)
    expected = [serial.step(batch) for batch in data]
    torch.manual_seed(3)
    model = mlp(depth=1)
    seen = []

    def looking(model, batch):
        seen.append(batch)
        return loss(model, batch)

    with wavelet.Wavelet(model, momentum(model.parameters()), looking, resync=None) as engine:
        assert [engine.step(batch).loss for batch in data] == expected
    assert all(a is b for a, b in zip(seen, data, strict=True))
    assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])


def test_a_single_tensor_and_none():
    model = nn.Linear(4, 1)
    with wavelet.Wavelet(model, momentum(model.parameters()), lambda m, b: m(b).mean()) as engine:
        engine.step(torch.ones(2, 4))
    with wavelet.Wavelet(model, momentum(model.parameters()), lambda m, b: m.weight.square().sum()) as engine:
        engine.step(None)


def test_packed_sequences_train():
    lstm = nn.LSTM(2, 3)
    batch = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    with wavelet.Wavelet(lstm, momentum(lstm.parameters()), lambda m, b: m(b)[0].data.square().mean()) as engine:
        losses = [engine.step(batch).loss for _ in range(6)]
    assert losses[-1] < losses[0]


def test_a_loader_without_a_length():
    def endless():
        while True:
            yield from batches(3)

    model = mlp(depth=1)
    with wavelet.Wavelet(model, momentum(model.parameters()), loss) as engine:
        for number, batch in enumerate(endless()):
            assert engine.step(batch).number == number
            if number == 6:
                break


class Scored(typing.NamedTuple):
    score: torch.Tensor
    name: str


@dataclasses.dataclass
class Output:
    score: torch.Tensor


def test_the_other_entries_of_a_mapping_are_outputs_without_history():
    def detailed(model, batch):
        x, y = batch
        score = model(x)
        return {
            "loss": cross_entropy(score, y),
            "score": score,
            "list": [score, (score,)],
            "dict": {"score": score},
            "named": Scored(score, "a"),
            "dataclass": Output(score),
            "count": len(x),
        }

    model = mlp(depth=1)
    x, y = batches(1, size=6)[0]
    with wavelet.Wavelet(model, momentum(model.parameters()), detailed) as engine:
        step = engine.step((x, y))
        assert set(step.outputs) == {"score", "list", "dict", "named", "dataclass", "count"}
        assert step.outputs["count"] == 6
        assert type(step.outputs["named"]) is Scored and step.outputs["named"].name == "a"
        assert type(step.outputs["dataclass"]) is Output
        found = list(tensors_in(step.outputs))
        assert len(found) == 6
        assert all(not tensor.requires_grad and tensor.grad_fn is None for tensor in found)
        assert step.loss == cross_entropy(step.outputs["score"], y).item()


def test_a_plain_loss_has_no_outputs():
    model = mlp(depth=1)
    with wavelet.Wavelet(model, momentum(model.parameters()), loss) as engine:
        assert engine.step(batches(1)[0]).outputs == {}


def test_a_batch_is_let_go_after_its_update():
    """Two waves keep two batches, not an epoch."""
    import gc
    import weakref

    model = mlp(depth=1)
    alive = []
    with wavelet.Wavelet(model, momentum(model.parameters()), loss) as engine:
        for x, y in batches(8):
            alive.append(weakref.ref(x))
            engine.step((x, y))
        del x, y
        engine.drain()
        gc.collect()
        assert [ref for ref in alive if ref() is not None] == []


def test_two_engines_one_after_the_other_on_one_model():
    data = batches(8, size=6)
    serial = Serial(mlp(depth=1, dropout=0.0), momentum, rule="delayed", waves=1, loss=loss)
    for batch in data:
        serial.step(batch)
    model = mlp(depth=1, dropout=0.0)
    optimizer = momentum(model.parameters())
    for half in (data[:4], data[4:]):
        with wavelet.Wavelet(model, optimizer, loss, waves=1, update="delayed") as engine:
            for batch in half:
                engine.step(batch)
    torch.testing.assert_close(trained_weights(model), [p.detach() for p in serial.newest[0]])
