"""A replica that would use the original, or share what it writes, is found and refused."""

import copy
import functools
import gc
import random
import threading
import weakref

import numpy
import pytest
import torch
from torch import nn

import wavelet
from wavelet.waves.replica import make_replicas

from ..models import Serial, assert_same, batches, loss, mlp, trained_weights
from .replicas import compare, momentum, small


def test_a_forward_patched_with_the_originals_method_is_found():
    model = small()

    def replicate():
        fresh = small()
        fresh[0].forward = model[0].forward
        return fresh

    with pytest.raises(ValueError, match="'0' calls the original's forward: pass replicate="):
        wavelet.Wavelet(model, momentum(model.parameters()), loss, replicate=replicate)


@pytest.mark.parametrize(
    "bind", [lambda layer: layer.forward, lambda layer: functools.partial(type(layer).forward, layer)]
)
def test_a_bound_forward_in_the_instance_is_bound_to_the_copy(bind):
    def build():
        model = small()
        model[0].forward = bind(model[0])
        return model

    compare(build, "neighbour")


def check_refused(model, *, drain=False):
    with wavelet.Wavelet(model, momentum(model.parameters()), loss) as engine:
        with pytest.raises(ValueError, match=r"original.*replicate="):
            for batch in batches(4):
                engine.step(batch)
                if drain:
                    engine.drain()


@pytest.mark.parametrize("drain", [False, True], ids=["running", "drained after each batch"])
def test_a_forward_that_closes_over_the_original_is_found(drain):
    model = small()
    original = model[0].forward
    model[0].forward = lambda x: original(x) * 2
    check_refused(model, drain=drain)


def test_a_forward_that_closes_over_the_original_is_found_after_a_single_batch():
    model = small()
    original = model[0].forward
    model[0].forward = lambda x: original(x) * 2
    with pytest.raises(ValueError, match=r"original.*replicate="):
        with wavelet.Wavelet(model, momentum(model.parameters()), loss) as engine:
            engine.step(batches(1)[0])


def test_replicas_share_no_storage_with_each_other():
    model = mlp(depth=1)
    replicas = [make_replicas(model, 1)[0] for _ in range(2)]
    tensors = [t for m in [model, *(r.model for r in replicas)] for t in [*m.parameters(), *m.buffers()]]
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)


@pytest.mark.parametrize(
    "generator",
    [torch.Generator(), random.Random(0), numpy.random.default_rng(0), numpy.random.RandomState(0)],
    ids=lambda value: type(value).__name__,
)
def test_a_generator_in_the_model_is_refused(generator):
    """A replica would have a copy of it, and draw the same again."""
    model = small()
    model.generator = generator
    with pytest.raises(ValueError, match="'generator' is a random generator of the model's own"):
        wavelet.Wavelet(model, momentum(model.parameters()), loss)


class Auxiliary(nn.Module):
    """A hook collects features for the loss, through self or through the module that it is called with."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.features = nn.Linear(8, 8), nn.Linear(8, 4), []

        def inner(module, inputs, output, *, me=self):
            me.features.append(output)

        hooks = {"closure": lambda m, i, o: self.features.append(o), "default": inner, "method": self.collect}
        self.first.register_forward_hook(hooks[kind])

    def collect(self, module, inputs, output):
        self.features.append(output)

    def forward(self, x):
        self.features.clear()
        return self.second(self.first(x))


def with_features(model, batch):
    return loss(model, batch) + sum(feature.square().mean() for feature in model.features)


@pytest.mark.parametrize("waves", [1, 2])
@pytest.mark.parametrize("kind", ["closure", "default"])
def test_a_hook_that_holds_the_original_is_refused(kind, waves):
    """A copy's forward would fill the original's list, and the loss would miss what it sums."""
    model = Auxiliary(kind)
    with pytest.raises(ValueError, match=r"a hook of 'first' is a function that holds the original model.*replicate="):
        wavelet.Wavelet(model, momentum(model.parameters()), with_features, waves=waves)


def test_a_hook_that_is_a_method_is_copied():
    compare(lambda: Auxiliary("method"), "neighbour", loss_function=with_features)


def test_replicate_makes_hooks_of_its_own():
    def build():
        return Auxiliary("closure")

    model = build()
    with wavelet.Wavelet(
        model, momentum(model.parameters()), with_features, update="delayed", replicate=build
    ) as engine:
        losses = [engine.step(batch).loss for batch in batches(4)]
    serial = Serial(Auxiliary("method"), momentum, rule="delayed", waves=2, loss=with_features)
    assert losses == [serial.step(batch) for batch in batches(4)]


def test_a_lock_in_the_model_works_with_replicate():
    def build():
        model = small()
        model.lock = threading.Lock()
        return model

    model = build()
    with wavelet.Wavelet(model, momentum(model.parameters()), loss, update="synchronous", replicate=build) as engine:
        for batch in batches(4):
            engine.step(batch)
    serial = Serial(small(), momentum, rule="synchronous", waves=2)
    for batch in batches(4):
        serial.step(batch)
    assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])


def test_a_model_that_was_run_before():
    """Gradients, statistics and lazily built state of earlier batches are no obstacle."""

    def build():
        model = mlp(depth=1)
        loss(model, batches(1, seed=8)[0]).backward()
        model.zero_grad()
        return model

    compare(build, "delayed")


def test_replicas_are_freed_with_the_engine():
    model = small()
    engine = wavelet.Wavelet(model, momentum(model.parameters()), loss)
    for batch in batches(4):
        engine.step(batch)
    engine.close()
    replicas = [weakref.ref(wave.replica.model) for wave in engine._waves.waves]
    del engine
    gc.collect()
    assert [replica() for replica in replicas] == [None, None]
    assert copy.deepcopy(model)(torch.ones(1, 8)).shape == (1, 4)
