"""A profile against bytes that are known, and against what it must leave alone."""

import copy
import random

import numpy
import pytest
import torch
from torch import nn

import wavelet
from wavelet.profiling.edges import BlockEdges
from wavelet.profiling.watcher import Watcher

from ..models import assert_same, batches, conv, loss, mlp

WIDTH, SAMPLES = 256, 64
LAYER = 4 * WIDTH * SAMPLES


def sum_of(model, batch):
    return model(batch).sum()


def layers(count):
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Sigmoid()) for _ in range(count)])


def test_bytes_of_a_model_that_can_be_counted():
    """Each layer saves its sigmoid's output; its backward holds two gradients of activations and its weight's."""
    found = wavelet.profile(layers(6), sum_of, torch.randn(SAMPLES, WIDTH), waves=(1,))
    weights = 4 * WIDTH * WIDTH
    assert sum(found.bytes.saved) == pytest.approx(6 * LAYER, rel=0.1)
    assert sum(found.bytes.gradients) == 6 * weights == found.gradient_bytes
    assert found.parameter_bytes == 6 * weights
    assert found.batch_bytes == LAYER
    # Up: the batch and all outputs, one more while the last layer runs; down: at the end all gradients of weights.
    small = 60_000  # of the graph, and a copy of the random state
    assert 8 * LAYER <= max(found.bytes.rising) <= 8 * LAYER + small
    assert 6 * weights <= max(found.bytes.turn, *found.bytes.falling) <= 6 * weights + 8 * LAYER + small
    assert found.smaller.samples == SAMPLES // 2


def test_a_profile_leaves_everything_as_it_was():
    model, batch = conv(), batches(1, image=True)[0]
    optimizer = torch.optim.Adam(model.parameters())
    loss(model, batch).backward()
    optimizer.step()
    before = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    state = copy.deepcopy(optimizer.state_dict())
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    wavelet.profile(model, loss, batch, optimizer=optimizer)
    assert_same([*model.parameters(), *model.buffers()], before)
    assert_same([parameter.grad for parameter in model.parameters()], gradients)
    assert str(optimizer.state_dict()) == str(state)
    drawn = (torch.rand(1).item(), random.random(), numpy.random.rand())
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    assert drawn == (torch.rand(1).item(), random.random(), numpy.random.rand())
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("waves", [(), (0,), ("2",)])
def test_numbers_of_waves_that_make_no_sense(waves):
    with pytest.raises(ValueError, match="give the numbers of waves"):
        wavelet.profile(conv(), loss, batches(1, image=True)[0], waves=waves)


def test_a_batch_that_cannot_be_halved_is_fine():
    assert wavelet.profile(layers(2), sum_of, torch.randn(1, WIDTH), waves=(1,)).smaller is None


class Story(Watcher):
    def __init__(self):
        self.told = []

    def starts(self, block):
        self.told.append(("starts", block))

    def unseen(self, module):
        self.told.append(("unseen", module))

    def rose(self):
        self.told.append(("rose",))

    def left(self, position):
        self.told.append(("left", position))


def test_edges_are_told_of_in_order_and_removed_without_a_trace():
    model = mlp(norm=False, depth=2)
    story = Story()
    edges = BlockEdges(model, (None, "1", "2", "3"))
    with edges.forward(story):
        value = loss(model, batches(1)[0])
    value.backward()
    up = [("starts", 1), ("starts", 2), ("starts", 3), ("starts", 4), ("rose",)]
    assert story.told == [*up, ("left", 1), ("left", 2), ("left", 3)]
    edges.remove()
    assert not any("forward" in vars(module) for module in model.modules())


def test_gradients_that_a_forward_takes_itself_are_not_the_batchs_way_down():
    model = mlp(norm=False, depth=2)
    story = Story()
    edges = BlockEdges(model, (None, "1"))
    x = batches(1)[0][0].requires_grad_(True)
    with edges.forward(story):
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        value = out.mean() + slope.square().mean()
    assert story.told == [("starts", 1), ("starts", 2), ("rose",)]
    value.backward()
    assert ("left", 1) in story.told


def test_more_calls_than_were_profiled_are_told_of():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    story = Story()
    edges = BlockEdges(model, (None, "1"), {"": 1, "0": 1, "1": 1})
    with edges.forward(story):
        model(model(torch.ones(2, 4)))
    assert story.told == [("starts", 1), ("starts", 2), ("unseen", ""), ("unseen", "0"), ("unseen", "1"), ("rose",)]
