"""A loader's position comes back, whatever the loader is, and reading ahead or again disturbs nothing."""

import itertools
import random

import numpy
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from wavelet.jobs.batches import RandomBatches
from wavelet.jobs.position import LoaderPosition
from wavelet.jobs.seeds import set_seeds


class Jittered(Dataset):
    """Samples that draw from all global generators when they are read."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(1).item(), random.random(), numpy.random.rand()], dtype=torch.float64)


class Endless:
    """No length, another order in each pass, drawn when the pass begins."""

    def __iter__(self):
        order = torch.randperm(7)
        return (order[i] + 10 * torch.rand(1) for i in range(7))


class Stateful:
    """Reads ahead, shuffles with a generator of its own, and knows what was taken."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)
        self.taken, self.order, self.resume = 0, None, None

    def __iter__(self):
        if self.resume is None:
            self.order, self.taken = torch.randperm(7, generator=self.generator), 0
        torch.rand(1)  # as a DataLoader draws its workers' seed
        self.resume = None
        return self.rest()

    def rest(self):
        while self.taken < 7:
            ahead = self.order[self.taken : self.taken + 3]
            self.taken += 1
            yield ahead[0]

    def state_dict(self):
        return {"taken": self.taken, "order": self.order, "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.taken, self.order, self.resume = state["taken"], state["order"], True
        self.generator.set_state(state["generator"])


LOADERS = {
    "list": lambda: [torch.tensor(i) for i in range(5)],
    "shuffled": lambda: DataLoader(Jittered(), batch_size=4, shuffle=True),
    "workers": lambda: DataLoader(Jittered(), batch_size=4, shuffle=True, num_workers=2),
    "with replacement": lambda: DataLoader(
        Jittered(), batch_size=4, sampler=torch.utils.data.RandomSampler(Jittered(), replacement=True)
    ),
    "no length": Endless,
    "random batches": lambda: RandomBatches(30, 4, lambda numbers: numbers),
    "stateful": Stateful,
}


def train_on(position, count=None):
    """What a training sees, which draws from the generators after each batch; and where it ends."""
    seen = []
    for batch in position:
        seen.append((batch.tolist(), torch.rand(1).item(), random.random(), numpy.random.rand()))
        if len(seen) == count:
            break
    return seen


def random_states():
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()


def set_random_states(states):
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("at", [0, 1, 4, 5, 6, 7, 9, 14])
def test_going_on_is_as_not_having_stopped(name, at):
    set_seeds(3)
    expected = [
        (batch.tolist(), torch.rand(1).item(), random.random(), numpy.random.rand())
        for loader in [LOADERS[name]()]
        for _ in range(3)
        for batch in loader
    ]
    set_seeds(3)
    position = LoaderPosition(LOADERS[name](), epochs=3)
    before = train_on(position, at) if at else []
    state, states = position.state_dict(), random_states()
    assert before + train_on(position) == expected  # asking changes nothing

    set_seeds(99)
    resumed = LoaderPosition(LOADERS[name](), epochs=3)
    resumed.load_state_dict(state)
    set_random_states(states)
    assert train_on(resumed) == expected[at:]


def test_a_state_that_was_loaded_can_be_saved_at_once():
    set_seeds(3)
    position = LoaderPosition(LOADERS["shuffled"](), epochs=2)
    train_on(position, 8)
    resumed = LoaderPosition(LOADERS["shuffled"](), epochs=2)
    resumed.load_state_dict(position.state_dict())
    again = LoaderPosition(LOADERS["shuffled"](), epochs=2)
    again.load_state_dict(resumed.state_dict())
    states = random_states()
    expected = train_on(position)
    set_random_states(states)
    assert train_on(again) == expected


def test_at_the_end_nothing_is_left():
    position = LoaderPosition([1, 2], epochs=2)
    assert list(position) == [1, 2, 1, 2]
    resumed = LoaderPosition([1, 2], epochs=2)
    resumed.load_state_dict(position.state_dict())
    assert list(resumed) == []
    longer = LoaderPosition([1, 2], epochs=3)
    longer.load_state_dict(position.state_dict())
    assert list(longer) == [1, 2]


def test_the_number_of_batches_that_are_left():
    position = LoaderPosition([1, 2, 3], epochs=2)
    seen = [position.num_left()]
    for _ in position:
        seen.append(position.num_left())
    assert seen == [6, 5, 4, 3, 2, 1, 0]
    assert position.num_left() == 0
    assert LoaderPosition([1, 2, 3]).num_left() is None
    assert LoaderPosition(DataLoader(Endless()), epochs=2).num_left() is None


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


def test_refusals():
    with pytest.raises(ValueError, match="ends after one pass"):
        LoaderPosition(iter([1]))
    with pytest.raises(ValueError, match="epochs=0 is not possible"):
        LoaderPosition([1], epochs=0)
    with pytest.raises(ValueError, match="no batch"):
        next(LoaderPosition([]))
    position = LoaderPosition([1, 2, 3])
    for _ in range(3):
        next(position)
    shorter = LoaderPosition([1, 2])
    shorter.load_state_dict(position.state_dict())
    with pytest.raises(ValueError, match="ended after 2 of the 3 batches"):
        next(shorter)


def pretend(monkeypatch, rank, size):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda *_: rank)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: size)


@pytest.mark.parametrize(
    ("size", "left"), [(1, [6, 7, 8, 9]), (3, [2, 3, 4, 5, 6, 7, 8, 9]), (2, [3, 4, 5, 6, 7, 8, 9])]
)
def test_with_another_number_of_ranks_the_samples_seen_count(monkeypatch, size, left):
    """Two ranks have seen three batches each; one rank has seen as many after six, three ranks after two."""
    pretend(monkeypatch, 0, 2)
    position = LoaderPosition(range(10), epochs=1)
    for _ in range(3):
        next(position)
    state = position.state_dict()
    pretend(monkeypatch, 0, size)
    resumed = LoaderPosition(range(10), epochs=1)
    resumed.load_state_dict(state)
    assert resumed.num_left() == len(left)
    assert list(resumed) == left


def test_a_loader_with_state_is_gone_through_again_where_its_state_is_of_other_ranks(monkeypatch):
    pretend(monkeypatch, 0, 2)
    position = LoaderPosition(RandomBatches(40, 4, lambda numbers: numbers), epochs=1)
    for _ in range(2):
        next(position)
    state = position.state_dict()
    pretend(monkeypatch, 0, 1)
    resumed = LoaderPosition(RandomBatches(40, 4, lambda numbers: numbers), epochs=1)
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 10 - 4


def test_more_batches_than_a_shorter_pass_has_begin_the_next(monkeypatch):
    pretend(monkeypatch, 0, 4)
    position = LoaderPosition(range(3))
    for _ in range(3):
        next(position)
    state = position.state_dict()
    pretend(monkeypatch, 0, 1)
    resumed = LoaderPosition(range(3))
    resumed.load_state_dict(state)
    assert next(resumed) == 0
    assert resumed.epoch == 1


def test_samplers_know_the_epoch():
    """Or each pass of a DistributedSampler had the order of the first."""
    sampler = DistributedSampler(range(6), num_replicas=1, rank=0, seed=5)
    position = LoaderPosition(DataLoader(range(6), batch_size=2, sampler=sampler), epochs=2)
    seen = torch.cat([next(position) for _ in range(4)]).tolist()
    state = position.state_dict()
    seen += torch.cat(list(position)).tolist()
    expected = []
    for epoch in range(2):
        expected += torch.randperm(6, generator=torch.Generator().manual_seed(5 + epoch)).tolist()
    assert seen == expected
    sampler = DistributedSampler(range(6), num_replicas=1, rank=0, seed=5)
    resumed = LoaderPosition(DataLoader(range(6), batch_size=2, sampler=sampler), epochs=2)
    resumed.load_state_dict(state)
    assert torch.cat(list(resumed)).tolist() == expected[8:]


def test_random_batches_that_are_left_alone_begin_anew():
    """A pass that was begun and dropped, as for a look at the first batch, is not gone on with."""
    loader = RandomBatches(12, 4, lambda numbers: numbers)
    next(iter(loader))
    assert len(list(loader)) == 3
    loader.load_state_dict({"num_batches": 2})
    assert len(list(loader)) == 1
    assert len(list(loader)) == 3
