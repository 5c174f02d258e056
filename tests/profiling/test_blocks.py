"""The chain of blocks: cut where modules are called once, never inside loops, shared modules or checkpoints."""

import pytest
import torch
from torch import nn

from wavelet.profiling.calls import Call, CallRecorder
from wavelet.profiling.chain_blocks import BLOCKS, find_blocks, order_blocks

from ..models import Checkpointed

CPU = torch.device("cpu")
WIDTH, SAMPLES = 64, 256
LAYER = WIDTH * SAMPLES * 4  # bytes that a Linear's output takes


def forward_of(model, **options):
    x = torch.ones(SAMPLES, WIDTH)
    model(x).sum().backward()
    model.zero_grad()
    recorder = CallRecorder(model, CPU)
    with recorder.recording():
        value = model(x).sum()
        recorder.rose()
        value.backward()
    model.zero_grad()
    assert not any("forward" in vars(module) for module in model.modules()), "the model is as it was"
    return recorder.tree()


def layers(count):
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid()) for _ in range(count)])


def test_calls_form_a_tree_with_bytes():
    tree = forward_of(layers(2))
    (whole,) = tree.children
    first, second = whole.children
    assert (whole.name, first.name, second.name) == ("", "0", "1")
    assert [child.name for child in second.children] == ["1.0", "1.1"]
    assert second.ended - second.started == LAYER, "the sigmoid's output; its input is given back"
    assert first.is_only


def test_big_containers_are_opened_and_small_parts_are_put_together():
    model = nn.Sequential(layers(2 * BLOCKS), nn.Flatten(), *[nn.Identity() for _ in range(5)])
    blocks = find_blocks(forward_of(model))
    names = [block.module for block in blocks]
    assert BLOCKS <= len(names) <= 2 * BLOCKS + 1
    assert names[0] is None
    assert all(name.startswith("0.") for name in names[1:-1]), "what comes behind holds nothing"
    assert max(block.saved for block in blocks) <= 2 * LAYER


def test_all_bytes_are_counted_once():
    tree = forward_of(layers(5))
    assert sum(block.saved for block in find_blocks(tree)) == tree.ended


class Looped(nn.Module):
    """Runs its first part three times, and the second once."""

    def __init__(self):
        super().__init__()
        self.again, self.once = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for _ in range(3):
            x = self.again(x).sigmoid()
        return self.once(x).sigmoid()


def test_a_module_that_is_used_several_times_belongs_to_the_block_before_it():
    blocks = find_blocks(forward_of(nn.Sequential(nn.Sigmoid(), Looped())))
    assert [block.module for block in blocks][-1] == "1.once"
    assert "1.again" not in [block.module for block in blocks]
    assert max(block.saved for block in blocks) >= 3 * LAYER


def test_what_a_checkpoint_runs_again_starts_no_block():
    model = nn.Sequential(layers(1), Checkpointed(layers(3), reentrant=False), layers(1))
    names = [block.module for block in find_blocks(forward_of(model))]
    assert not [name for name in names if name and name.startswith("1.inner")]
    assert "2" in names


def test_a_model_of_one_module_is_one_block():
    (block,) = find_blocks(forward_of(nn.Linear(WIDTH, WIDTH)))
    assert block.module is None


def test_a_forward_that_holds_nothing_is_one_block():
    assert [block.module for block in find_blocks(Call("", 0))] == [None]


def test_blocks_that_the_user_names_come_in_the_order_of_their_calls():
    tree = forward_of(layers(3))
    assert order_blocks(tree, ["2", "0.1", "1"]) == ["0.1", "1", "2"]
    with pytest.raises(ValueError, match=r"'9', which this batch did not call exactly once"):
        order_blocks(tree, ["9"])
    with pytest.raises(ValueError, match=r"'1\.again'"):
        order_blocks(forward_of(nn.Sequential(nn.Sigmoid(), Looped())), ["1.again"])


def test_calls_are_counted():
    counts = forward_of(nn.Sequential(nn.Sigmoid(), Looped())).counts()
    assert counts == {"": 1, "0": 1, "1": 1, "1.again": 3, "1.once": 1}
