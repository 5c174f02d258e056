"""The exchange of ranks on a GPU, without one: two ranks, each on the stand-in, with a transport that behaves as NCCL.

NCCL's collectives are launches on a stream of the communicator's own: they start after what the current stream had
launched, the host goes on at once, and ``wait`` lets the current stream wait for them. What is summed travels by gloo,
so the numbers are those of two ranks.
"""

import contextlib
import types

import pytest
import torch
import torch.distributed as dist

import wavelet
from wavelet.exchange import BMUF, AllReduce, DreamDDP, LocalSGD, buckets

from .. import models
from ..devices import cuda_stand_in
from ..devices.cuda_stand_in import Event, Stream
from . import oracle
from .ranks import run

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]

RULES = ("neighbour", "synchronous", "delayed")


def on_host(tensor):
    """In these tests headers alone are of this type, and stay on the host."""
    return tensor.dtype == torch.float64


class Future:
    """Of a collective, or of what follows one: done for the host at once, for a stream only after `wait`."""

    def __init__(self, machine, event, finish, value):
        self._machine, self._event, self._finish, self._value = machine, event, finish, value

    def done(self):
        return True

    def wait(self):
        self._machine.current.wait_event(self._event)
        self._finish()
        return self._value

    def value(self):
        return self._value

    def add_done_callback(self, callback):
        callback(self)

    def then(self, callback):
        """``callback`` launches on a stream of its own, as torch lets it."""
        with self._machine.on(Stream(self._machine)):
            self.wait()
            value, event = callback(self), Event(self._machine)
            event.record(self._machine.current)
        return Future(self._machine, event, self._finish, value)


class Work:
    def __init__(self, machine, tensor, event, real):
        self._machine, self._tensor, self._event, self._real = machine, tensor, event, real

    def wait(self):
        self._machine.current.wait_event(self._event)
        self._real.wait()

    def get_future(self):
        return Future(self._machine, self._event, self._real.wait, [self._tensor])


class Communicator:
    """One order of collectives, on one stream."""

    def __init__(self, machine):
        self.machine, self.stream = machine, Stream(machine)
        self.sizes = []  # of what was summed, in that order
        self.by = []  # the stream that each followed

    def all_reduce(self, tensor, group=None, async_op=False):
        real = dist.all_reduce(tensor, group=group, async_op=True)
        if on_host(tensor):
            return real
        assert async_op, "the host must not wait for a GPU"
        self.by.append(self.machine.current)
        self.sizes.append(tensor.numel())
        self.stream.wait_stream(self.machine.current)
        with self.machine.on(self.stream):
            storage = tensor.untyped_storage()
            self.machine.launch("nccl::all_reduce", [storage], [storage], [])
            event = Event(self.machine)
            event.record(self.stream)
        return Work(self.machine, tensor, event, real)


class Distributed:
    def __init__(self, communicator):
        self.all_reduce = communicator.all_reduce

    def __getattr__(self, name):
        return getattr(dist, name)


@contextlib.contextmanager
def gpu():
    """Inside, this process has a GPU that is none, and NCCL."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    import wavelet.exchange.channel
    import wavelet.exchange.ordered

    with pytest.MonkeyPatch.context() as patch:
        machine = cuda_stand_in.install(patch)
        communicator = Communicator(machine)
        for module in (wavelet.exchange.channel, wavelet.exchange.ordered, default_hooks, powerSGD_hook):
            patch.setattr(module, "dist", Distributed(communicator))
        patch.setattr(torch.Tensor, "is_cpu", property(on_host))
        with machine.on(machine.default):
            yield machine, communicator


def net():
    return models.mlp(dropout=0.0, norm=False)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def data(rank, count=11):
    return models.batches(count, seed=100 + rank)


def train(rank, size, cases, on_gpu=True):
    """For each case the weights, what was not ordered, and the order of the collectives on this rank."""
    return [_train(rank, on_gpu, **case) for case in cases]


def _train(
    rank,
    on_gpu,
    *,
    kind=AllReduce,
    exchange=None,
    counts=(11, 11),
    scale=None,
    states=False,
    streams="separate",
    **options,
):
    """``scale``: of fp16 losses, with gradients that are infinite on rank 1 now and then. ``states``: taken midway."""
    if scale:
        options["grad_scaler"] = torch.amp.GradScaler("cpu", init_scale=scale)
    numbers = iter(range(100))

    def loss(model, batch):
        spoilt = scale and rank == 1 and next(numbers) in (3, 4, 7)
        return models.loss(model, batch) * (float("inf") if spoilt else 1.0)

    model = net()
    with gpu() if on_gpu else contextlib.nullcontext((None, None)) as (machine, communicator):
        if not on_gpu:
            torch.set_num_threads(options["waves"])  # one a wave, as on the stand-in
        buckets.LEAST_BYTES = 64
        choice = kind(**({"bucket_mb": 0.0005} if kind is AllReduce else {}), **(exchange or {}))
        optimizer = adam(model.parameters())
        with wavelet.Wavelet(model, optimizer, loss, exchange=choice, streams=streams, **options) as engine:
            for number, batch in enumerate(data(rank, counts[rank])):
                if states and number in (4, 5):
                    engine.state_dict()
                engine.step(batch)
        weights = models.trained_weights(model)
    if not on_gpu:
        return types.SimpleNamespace(weights=weights)
    faults, launching = sorted(set(machine.faults)), len(set(communicator.by))
    return types.SimpleNamespace(weights=weights, faults=faults, order=communicator.sizes, launching=launching)


def check(cases):
    """On the stand-in all is ordered, ranks agree in the order, and results are bitwise those of the CPU device."""
    first, second = run(train, 2, cases, timeout=200)
    on_cpu, _ = run(train, 2, cases, False, timeout=200)
    for case, mine, theirs, right in zip(cases, first, second, on_cpu, strict=True):
        assert mine.faults == theirs.faults == [], case
        assert mine.order == theirs.order and len(mine.order) > 10, case
        models.assert_same(mine.weights, theirs.weights)
        models.assert_same(mine.weights, right.weights)
    return first


def test_all_that_an_exchange_touches_is_ordered_and_the_result_is_the_oracles():
    cases = [
        {"update": rule, "waves": waves, "accumulate": accumulate, "streams": streams, "resync": None}
        for rule in RULES
        for waves, accumulate, streams in [(1, 1, "separate"), (2, 1, "separate"), (2, 2, "separate"), (2, 1, "shared")]
    ]
    found = check(cases)
    torch.set_num_threads(1)
    for case, mine in zip(cases, found, strict=True):
        options = {name: case[name] for name in ("waves", "accumulate")}
        right = oracle.train(net(), adam, models.loss, [data(0), data(1)], rule=case["update"], **options)
        models.assert_same(mine.weights, right)
        if case["update"] != "synchronous":
            wanted = case["waves"] if case["streams"] == "separate" else 1
            assert mine.launching == wanted, f"the buckets of each wave follow its own stream: {case}"


def test_options_and_uneven_data_are_ordered_too():
    options = [
        {"scale": 16.0},
        {"scale": 16.0, "exchange": {"compress": "fp16"}},
        {"exchange": {"compress": "bf16"}, "states": True},
        {"exchange": {"compress": "fp16"}, "accumulate": 2},
        {"exchange": {"check_every": 1}},
        {"counts": (11, 6)},
        {"counts": (5, 11), "accumulate": 2, "exchange": {"check_every": 2}},
        {"clip_grad_norm": 0.1, "states": True},
    ]
    check([
        {"update": RULES[(place + turn) % 3], "waves": 1 + (place + turn) % 2, **more}
        for place, more in enumerate(options)
        for turn in range(3)
    ])  # fmt: skip


def test_powersgd_is_ordered_too():
    check([
        {"update": rule, "waves": waves, "counts": (14, 14), "exchange": {"compress": "powersgd"}}
        for rule, waves in [("neighbour", 2), ("delayed", 1)]
    ])  # fmt: skip


def test_strategies_are_ordered_too():
    kinds = [
        (LocalSGD, {"period": 2}),
        (LocalSGD, {"period": 2, "warmup": 3, "weights": "samples"}),
        (BMUF, {"period": 2, "nesterov": True}),
        (DreamDDP, {"period": 3, "measure": False}),
    ]
    cases = [
        {"kind": kind, "exchange": exchange, "update": rule, "waves": waves}
        for kind, exchange in kinds
        for rule, waves in [("neighbour", 1), ("neighbour", 2), ("synchronous", 2), ("delayed", 2)]
        if (kind, rule) != (DreamDDP, "delayed")
    ]
    check([*cases, {**cases[1], "counts": (5, 11)}, {**cases[-2], "counts": (11, 4)}])


def train_without_waiting(rank, size):
    """With nothing that lets an update's stream wait for the sums."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wavelet.exchange.flight.Flight.order", lambda self: None)
        return _train(rank, True, update="neighbour", waves=2).faults


def test_an_update_that_does_not_wait_for_the_sums_is_found():
    for faults in run(train_without_waiting, 2):
        assert any("still touches" in fault for fault in faults)


def train_without_holding(rank, size):
    """With nothing that holds what is under way, where the wave's stream does not wait either."""
    with gpu() as (machine, communicator):
        wave, other = Stream(machine), Stream(machine)
        with machine.on(wave):
            for _ in range(50):  # gloo's thread may hold the memory a while, so that it is not given again at once
                communicator.all_reduce(torch.ones(3) * 2, async_op=True)._real.wait()
                torch.ones(3)
        with machine.on(other):
            torch.ones(3)
        return machine.faults


def test_memory_that_is_given_up_while_it_is_summed_is_found():
    for faults in run(train_without_holding, 2):
        assert faults and all("takes memory that" in fault for fault in faults)
