"""The promise of memory with several ranks: what their exchange holds is planned for too."""

import functools
import gc
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import wavelet
from wavelet.exchange import BMUF, AllReduce, Alone, DreamDDP, LocalSGD

from .. import models
from .ranks import run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


def wide():
    """Gradients of 9 MiB, far more than activations: the exchange is most of what is held."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 512), *(part for _ in range(9) for part in (nn.ReLU(), nn.Linear(512, 512)))]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(512, 4))


def held_bytes():
    """Of all tensors that Python can see."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    return sum({s.data_ptr(): s.nbytes() for s in (tensor.untyped_storage() for tensor in tensors)}.values())


def measure(rank, size, cases):
    """For each case: promised and measured bytes, at rest and in all, and what was planned for the exchange."""
    return [_measure(rank, *case) for case in cases]


def _measure(rank, update, kind, arguments):
    from memory.worker import _peak_of

    before = held_bytes()
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = models.batches(30, seed=rank)
    before += sum(part.nbytes for batch in data for part in batch)
    engine = wavelet.Wavelet(model, optimizer, models.loss, update=update, budget="1.5x", exchange=kind(**arguments))

    def train(batches):
        for batch in batches:
            engine.step(batch)
        engine.drain()

    with engine:
        train(data[:24])
        held = held_bytes() - before
        # What was there before and is replaced meanwhile would count twice.
        replaced = [g for kept in engine._rule.kept().get("window", []) for g in kept]
        if arguments.get("compress") == "powersgd":
            replaced += engine._exchange.state_dict()["compression"]["error_dict"].values()
        twice = sum(tensor.nbytes for tensor in replaced if tensor is not None)
        del replaced
        peak = _peak_of(functools.partial(train, data[24:]))
        plan = engine.plan
    return {
        "promised_at_rest": plan.resting_bytes,
        "at_rest": held,
        "promised": plan.resting_bytes + plan.peak_step_bytes,
        "in_all": held - twice + peak,
        "exchange": plan.profile.exchange_bytes,
    }


CASES = [
    ("neighbour", AllReduce, {}),
    ("neighbour", AllReduce, {"compress": "bf16"}),
    ("neighbour", AllReduce, {"compress": "powersgd"}),
    ("synchronous", AllReduce, {}),
    ("synchronous", AllReduce, {"compress": "bf16"}),
    ("delayed", AllReduce, {}),
    ("delayed", AllReduce, {"compress": "fp16"}),
    ("neighbour", LocalSGD, {"period": 2}),
    ("neighbour", BMUF, {"period": 2, "nesterov": True}),
    ("delayed", BMUF, {"period": 3}),
    ("neighbour", DreamDDP, {"period": 3}),
]


def test_two_ranks_hold_no_more_than_was_promised():
    pytest.importorskip("memray")
    for case, found in zip(CASES, run(measure, 2, CASES)[0], strict=True):
        assert found["at_rest"] <= found["promised_at_rest"], case
        assert found["in_all"] <= found["promised"], case
        assert found["in_all"] > found["promised"] / 3, "or nothing was measured"
        if case[2].get("compress") in ("bf16", "fp16") or case[1] is BMUF:
            alone = found["promised_at_rest"] - found["exchange"]
            assert found["at_rest"] > alone, "the errors that are fed back, or W and Δ, are held"


def run_with_a_plan(rank, size):
    """What an engine of several ranks says to plans."""

    def make(**options):
        model = models.conv()
        return wavelet.Wavelet(model, torch.optim.SGD(model.parameters(), lr=0.05), models.loss, **options)

    plans, said = {}, {}
    for name, exchange in (("alone", Alone()), ("ranks", AllReduce()), ("bf16", AllReduce(compress="bf16"))):
        with make(budget="1.5x", exchange=exchange) as engine:
            for batch in models.batches(8, seed=rank, image=True):
                engine.step(batch)
        plans[name] = engine.plan
    for name, compress in (("alone", None), ("ranks", None), ("ranks", "bf16"), ("bf16", "bf16"), ("bf16", None)):
        try:
            engine = make(plan=plans[name], exchange=AllReduce(compress=compress))
        except ValueError as error:
            said[name, compress] = str(error)
        else:
            engine.close()
    return said


def test_a_plan_that_does_not_count_the_exchange_is_refused():
    for said in run(run_with_a_plan, 2):
        assert set(said) == {("alone", None), ("ranks", "bf16")}
        for text in said.values():
            assert "does not count what the exchange of these ranks holds: give budget=" in text
