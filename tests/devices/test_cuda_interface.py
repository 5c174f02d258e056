"""The CUDA device without a GPU, on the stand-in: all that waves share is ordered, and results are the CPU's."""

import subprocess
import sys

import pytest
import torch

import wavelet
from wavelet.devices import make_device
from wavelet.devices.cuda import Cuda
from wavelet.planning import Interlock
from wavelet.waves.gates import Passage
from wavelet.waves.turns import Turns

from ..models import Serial, assert_same, batches, loss, mlp, trained_weights
from . import stand_in

RULES = ["neighbour", "synchronous", "delayed"]


@pytest.fixture
def machine(monkeypatch):
    return stand_in.install(monkeypatch)


# The stand-in finds what it is made to find.


def test_the_stand_in_finds_a_read_that_nothing_orders(machine):
    first, second = machine.cuda.Stream(), machine.cuda.Stream()
    with machine.on(first):
        tensor = torch.ones(3) * 2
    with machine.on(second):
        _ = tensor + 1
    assert len(machine.faults) == 1 and "reads what stream 1 still touches" in machine.faults[0]


def test_the_stand_in_finds_a_write_and_memory_taken_too_early(machine):
    first, second = machine.cuda.Stream(), machine.cuda.Stream()
    with machine.on(first):
        tensor = torch.ones(3) * 2
    second.wait_stream(first)
    with machine.on(second):
        _ = tensor + 1
    assert machine.faults == []
    with machine.on(first):
        tensor.mul_(2)
    assert "writes what stream 2 still touches" in machine.faults.pop()
    second.wait_stream(first)
    with machine.on(second):
        _ = tensor + 1
    del tensor
    with machine.on(first):
        torch.ones(3)
    assert "takes memory that stream 2 still touches" in machine.faults.pop()


def test_the_stand_in_accepts_what_events_order(machine):
    first, second = machine.cuda.Stream(), machine.cuda.Stream()
    with machine.on(first):
        tensor = torch.ones(3) * 2
    event = machine.cuda.Event()
    event.record(first)
    second.wait_event(event)
    with machine.on(second):
        _ = tensor + 1
    event.record(second)
    event.synchronize()
    with machine.on(first):
        tensor.mul_(2)
        del tensor
        torch.ones(3)
    assert machine.faults == []


# The engine on it.


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def train(machine, model, *, make_optimizer=momentum, data=None, loss_function=loss, each=lambda *_: None, **options):
    """Train watched; gives what was not ordered."""
    with machine.on(machine.default):
        optimizer = make_optimizer(model.parameters())
        with wavelet.Wavelet(model, optimizer, loss_function, **options) as engine:
            for number, batch in enumerate(batches(10, size=6) if data is None else data):
                each(number, engine, engine.step(batch))
        _ = [p + 1 for p in model.parameters()]
    return sorted(set(machine.faults))


@pytest.mark.parametrize("waves", [1, 2, 3])
@pytest.mark.parametrize("streams", ["separate", "shared"])
@pytest.mark.parametrize("rule", RULES)
def test_every_read_of_another_waves_tensors_is_ordered(machine, rule, streams, waves):
    """Kept gradients, the predecessor's weights, the sum of a round, buffers; and freed memory is taken in order."""
    torch.manual_seed(3)
    expected = Serial(mlp(), adam, rule=rule, waves=waves)
    for batch in batches(6, size=6):
        expected.step(batch)
    torch.manual_seed(3)
    model = mlp()
    data = batches(6, size=6)
    assert (
        train(machine, model, make_optimizer=adam, data=data, update=rule, waves=waves, streams=streams, resync=None)
        == []
    )
    assert_same(trained_weights(model), [p.detach() for p in expected.newest[0]])
    used = [stream for stream in machine.streams[1:] if machine.num_launches[stream] > 100]
    assert len(used) == (waves if streams == "separate" else 1), "each wave launches on its own stream"


@pytest.mark.parametrize("options", [
    {"update": "neighbour", "resync": 1},
    {"update": "neighbour", "resync": 2, "accumulate": 2},
    {"update": "synchronous", "accumulate": 2},
    {"update": "delayed", "accumulate": 2},
    {"update": "delayed", "clip_grad_norm": 0.5},
    {"update": "neighbour", "autocast": torch.bfloat16},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("waves", [2, 3])
def test_options_are_ordered_too(machine, waves, options):
    assert train(machine, mlp(depth=1), waves=waves, streams="separate", **options) == []


@pytest.mark.parametrize("budget", ["1x", "1.5x"])
@pytest.mark.parametrize("waves", [2, 3])
def test_a_budget_is_ordered_too_and_changes_no_bit(machine, waves, budget):
    data = batches(20, size=6)
    models = []
    for more in ({}, {"budget": budget}):
        torch.manual_seed(3)
        models.append(mlp())
        assert train(machine, models[-1], data=data, waves=waves, streams="separate", **more) == []
    assert_same(*map(trained_weights, models))


def test_a_gate_orders_the_rising_waves_launches_behind_the_position_it_waited_for(machine):
    """The interlock's edge on the device: what the falling wave launched before it left the block comes first."""
    device, turns = Cuda(torch.device("cpu"), 2, "separate"), Turns(10.0)
    interlock = Interlock(((0,), (1,)))
    falling = Passage(0, 0, interlock, (), turns, device)
    falling.rose()
    rising = Passage(1, 1, interlock, (falling,), turns, device)
    mine, its = device._streams[1], device._streams[0]
    rising.starts(1)
    its.clock[its.name] += 1  # a launch of the falling wave, in the block that it is about to leave
    falling.left(1)
    its.clock[its.name] += 1  # and one of the block after
    assert mine.clock[its.name] == 0
    rising.starts(2)
    assert mine.clock[its.name] == 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("waves", [2, 3])
def test_gradients_that_are_not_finite(machine, rule, waves):
    count = iter(range(100))

    def spoilt(model, batch):
        return loss(model, batch) * (float("inf") if next(count) in (3, 4, 7) else 1.0)

    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    faults = train(
        machine, mlp(depth=1), loss_function=spoilt, waves=waves, update=rule, streams="separate", grad_scaler=scaler
    )
    assert faults == []


@pytest.mark.parametrize("rule", RULES)
def test_unused_parameters(machine, rule):
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = torch.nn.ModuleList(torch.nn.Linear(8, 4) for _ in range(2))

        def forward(self, x):
            return self.branches[int(x[0, 0] > 0)](x)

    assert train(machine, Branches(), waves=3, update=rule, streams="separate") == []


@pytest.mark.parametrize("rule", RULES)
def test_drains_and_what_the_user_does_after_them(machine, rule):
    def each(number, engine, step):
        if number in (3, 6):
            engine.drain()
            assert step.loss > 0
            with torch.no_grad():
                model[0].weight.mul_(0.5)
                engine._face.model(batches(1)[0][0])
        if number == 8:
            engine.flush()

    model = mlp(depth=1)
    assert train(machine, model, each=each, update=rule, streams="separate") == []


@pytest.mark.parametrize("rule", RULES)
def test_a_state_taken_while_waves_run(machine, rule):
    """It is cloned on the caller's stream, which nothing has ordered after the waves' last launches."""

    def each(number, engine, step):
        if number in (4, 5):
            engine.state_dict()

    assert train(machine, mlp(depth=1), each=each, update=rule, streams="separate", accumulate=2) == []


@pytest.mark.parametrize("rule", RULES)
def test_an_optimizer_loaded_while_waves_run(machine, rule):
    def each(number, engine, step):
        if number in (4, 5):
            engine._face.optimizer.load_state_dict(saved)

    model = mlp(depth=1)
    other = mlp(depth=1)
    optimizer = momentum(other.parameters())
    loss(other, batches(1)[0]).backward()
    optimizer.step()
    saved = optimizer.state_dict()
    assert train(machine, model, each=each, update=rule, streams="separate") == []


def test_a_loss_read_at_once(machine):
    losses = []
    assert train(machine, mlp(depth=1), each=lambda n, e, step: losses.append(step.loss), streams="separate") == []
    assert len(losses) == 10


def test_outputs_may_be_read_by_the_caller(machine):
    """Metrics are computed on the caller's stream, between steps."""

    def detailed(model, batch):
        score = model(batch[0])
        return {"loss": torch.nn.functional.cross_entropy(score, batch[1]), "score": score}

    def each(number, engine, step):
        step.outputs["score"].argmax(1)

    assert train(machine, mlp(depth=1), loss_function=detailed, each=each, streams="separate") == []


@pytest.mark.parametrize("finished", [False, True])
def test_batches_are_held_until_the_device_is_done_with_them(machine, finished):
    """At most two a wave where the device is behind, none once it is known to be done."""
    machine.events_finish = finished
    held = []

    def each(number, engine, step):
        step.wait()
        held.append(max(len(kept) for kept in engine._device._kept))

    assert train(machine, mlp(depth=1), each=each, streams="separate") == []
    assert max(held) == (0 if finished else 2)


def test_autograd_stays_in_the_calling_thread(machine):
    """A device has one autograd thread, which all waves and an inner backward in a forward would share and wait for."""
    seen = {}

    def looking(model, batch):
        seen["forward"] = torch._C._is_multithreading_enabled()
        value = loss(model, batch)
        value.register_hook(lambda gradient: seen.update(backward=torch._C._is_multithreading_enabled()))
        return value

    train(machine, mlp(depth=1), loss_function=looking)
    assert seen == {"forward": False, "backward": False}
    assert torch._C._is_multithreading_enabled(), "given back to the caller"


# The choice of streams.


@pytest.mark.parametrize(
    ("streams", "backend", "mode", "advised"),
    [
        ("auto", "native", "shared", False),
        ("auto", "cudaMallocAsync", "separate", False),
        ("separate", "native", "separate", True),
        ("separate", "cudaMallocAsync", "separate", False),
        ("shared", "native", "shared", False),
        ("shared", "cudaMallocAsync", "shared", False),
    ],
)
def test_the_choice_of_streams(machine, streams, backend, mode, advised):
    machine.backend = backend
    device = Cuda(torch.device("cpu"), 3, streams)
    assert device.stream_mode == mode
    assert len(machine.streams) - 1 == (3 if mode == "separate" else 1)
    advice = device.advice()
    assert (advice is not None) == advised
    if advised:
        assert "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync" in advice and "streams='shared'" in advice


def test_a_model_on_a_gpu_gets_the_cuda_device(machine):
    assert isinstance(make_device(torch.device("cuda", 0), 2, "shared"), Cuda)


# The CPU path.


WITHOUT_CUDA = """
import sys, types, torch
from torch import nn

def forbidden(name):
    def call(*args, **kwargs):
        caller = sys._getframe(1).f_code.co_filename
        if "wavelet" in caller:
            raise AssertionError(f"torch.cuda.{{name}} is called by {{caller}}")
        return originals[name](*args, **kwargs)
    return call

originals = {{name: value for name, value in vars(torch.cuda).items() if isinstance(value, types.FunctionType)}}
for name in originals:
    setattr(torch.cuda, name, forbidden(name))
sys.path.insert(0, {root!r})
import wavelet
from tests.models import mlp, loss, batches
for checkpointing in (None, "plain"):
    for rule in ("neighbour", "synchronous", "delayed"):
        model = mlp(depth=1, checkpointing=checkpointing)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with wavelet.Wavelet(model, optimizer, loss, update=rule, clip_grad_norm=1.0) as engine:
            for batch in batches(4):
                engine.step(batch)
            engine.load_state_dict(engine.state_dict())
assert "wavelet.devices.cuda" not in sys.modules
assert not torch.cuda.is_initialized()
print("trained")
"""


def test_the_cpu_path_never_touches_cuda(pytestconfig):
    code = WITHOUT_CUDA.format(root=str(pytestconfig.rootpath))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
