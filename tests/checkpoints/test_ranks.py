"""Checkpoints of several ranks: each gets its own back, what they share is written once, and all agree on what is."""

import copy
import errno
import os
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.utils.data import DataLoader, DistributedSampler

import wavelet
from wavelet.exchange import Alone
from wavelet.jobs.seeds import set_seeds

from ..exchange.ranks import run
from ..models import assert_same, batches, loss, mlp, trained_weights
from ..test_saving import final
from .folders import Numbered, fill, names, steps_in

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]

RULES = ["neighbour", "synchronous", "delayed"]
AT = 5  # batches, of rounds of four


def build(rule, rank, seed=0, exchange=None):
    """An engine in rounds of four, and a loader of the rank's own samples with noise from its own generator."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    engine = wavelet.Wavelet(
        model, optimizer, loss, update=rule, accumulate=2, scheduler=scheduler, exchange=exchange, timeout=100
    )
    sampler = DistributedSampler(Numbered()) if torch.distributed.is_initialized() else None
    loader = DataLoader(Numbered(), batch_size=4, sampler=sampler, shuffle=None if sampler else True)
    set_seeds(seed + rank)
    return model, engine, wavelet.LoaderPosition(loader, epochs=3)


def summary(model, engine, position):
    losses, weights, buffers, draws = final(model, engine, position)
    return losses, weights, buffers, draws


def never_stopped(rank, size, rule):
    return summary(*build(rule, rank))


def until_saved(rank, size, rule, folder):
    """Save behind AT batches; what the engine's state was then, and what it had before."""
    _, engine, position = build(rule, rank)
    losses = []
    with wavelet.Checkpoints(folder) as checkpoints:
        for number in range(1, AT + 1):
            losses.append(engine.step(next(position)).loss)
            if number >= AT - 1:
                checkpoints.save(number, engine=engine, position=position, rank_0_says=rank)
        state = copy.deepcopy(engine.state_dict())
    engine.close()
    return losses, state


def go_on(rank, size, rule, folder):
    model, engine, position = build(rule, rank, seed=77)
    with wavelet.Checkpoints(folder) as checkpoints:
        loaded = checkpoints.load(engine=engine, position=position)
    return summary(model, engine, position), loaded


def all_rules(rank, size, function, *arguments):
    """For each rule in turn, so that processes start once."""
    return {rule: function(rank, size, rule, *(a / rule for a in arguments)) for rule in RULES}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of what two ranks saved under each rule, and their states."""
    folder = tmp_path_factory.mktemp("of two")
    return folder, run(all_rules, 2, until_saved, folder)


def test_each_rank_goes_on_bitwise(saved):
    """In an open round, in the middle of a pass, in other processes, with other samples and dropout on each rank."""
    folder, before = saved
    expected, resumed = run(all_rules, 2, never_stopped), run(all_rules, 2, go_on, folder)
    for rank in range(2):
        for rule in RULES:
            (losses, weights, buffers, draws), loaded = resumed[rank][rule]
            assert loaded == (AT, {"rank_0_says": 0}, 2)
            assert before[rank][rule][0] + losses == expected[rank][rule][0]
            assert_same(weights, expected[rank][rule][1])
            assert_same(buffers, expected[rank][rule][2])
            assert draws == expected[rank][rule][3]
    for rule in RULES:  # or the test shows nothing
        assert resumed[0][rule][0][0] != resumed[1][rule][0][0]
        assert not torch.equal(resumed[0][rule][0][2][0], resumed[1][rule][0][2][0])


@pytest.mark.parametrize("rule", RULES)
def test_one_rank_takes_what_two_have_saved(rule, saved):
    folder, before = saved
    state = before[0][rule][1]
    _, engine, position = build(rule, 0, seed=55)
    with pytest.warns(UserWarning, match="was saved by 2 ranks in an open round: its gradients are dropped"):
        loaded = wavelet.Checkpoints(folder / rule).load(engine=engine, position=position)
    assert (loaded.step, loaded.num_ranks) == (AT, 2)
    assert torch.equal(torch.get_rng_state(), state["random"]["torch"])
    found = engine.state_dict()
    for name in ("weights", "optimizers", "scheduler", "applied", "num_batches"):
        assert_equal(found[name], state[name])
    assert_equal(found["buffers"], state["buffers"])
    assert_equal(found["kept"].get("window"), state["kept"].get("window"))
    assert found["position"] == 0
    assert not any(found["kept"]["num_folded"])
    # Two ranks saw AT batches of 4 samples each, of the 40: one has 10 batches a pass.
    assert len(list(position)) == 3 * 10 - 2 * AT
    engine.step(batches(1)[0])
    engine.close()


def assert_equal(one, other):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_equal(one[name], other[name])
    elif isinstance(one, (list, tuple)):
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other


def load_twice(rank, size, folder):
    """What two ranks have after loading what one saved; and after doing so again."""
    found = []
    for seed in (55, 66):
        model, engine, position = build("neighbour", rank, seed=seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with wavelet.Checkpoints(folder) as checkpoints:
                checkpoints.load(engine=engine, position=position)
        state = engine.state_dict()
        left = len(list(position))
        step = engine.step(batches(1)[0]).loss
        engine.close()
        found.append((state, left, step, trained_weights(model), [str(each.message) for each in caught]))
    return found


def test_two_ranks_take_what_one_has_saved(tmp_path):
    _, engine, position = build("neighbour", 0)
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        for _ in range(6):
            engine.step(next(position))
        state = copy.deepcopy(engine.state_dict())
        checkpoints.save(6, engine=engine, position=position)
    engine.close()
    ranks = run(load_twice, 2, tmp_path)
    for rank, found in enumerate(ranks):
        for again, left, _, _, caught in found:
            for name in ("weights", "optimizers", "buffers"):
                assert_equal(again[name], state[name])
            assert left == 3 * 5 - 3  # six batches of one rank are three of two
            assert len(caught) == (rank == 0)  # of the gradients that are dropped, said once
        first, second = (each[0]["random"] for each in found)
        assert_equal(first, second)
    assert_equal(ranks[0][0][0]["random"], state["random"])
    drawn = ranks[1][0][0]["random"]
    assert not torch.equal(drawn["torch"], state["random"]["torch"])
    assert drawn["python"] != state["random"]["python"]
    assert_same(ranks[0][0][3], ranks[1][0][3])


def random_state_loaded(rank, size, folder):
    """What a rank draws from after loading."""
    _, engine, _ = build("neighbour", rank, seed=55)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with wavelet.Checkpoints(folder) as checkpoints:
            checkpoints.load(engine=engine)
    state = engine.state_dict()["random"]
    engine.close()
    return state


def test_a_rank_that_was_there_keeps_its_random_state(saved):
    """Three ranks after two: the third's comes from the first's, and is another."""
    folder, before = saved
    found = run(random_state_loaded, 3, folder / "neighbour")
    for rank in range(2):
        assert_equal(found[rank], before[rank]["neighbour"][1]["random"])
    for rank in range(2):
        assert not torch.equal(found[2]["torch"], found[rank]["torch"])
        assert not torch.equal(found[2]["numpy"][1], found[rank]["numpy"][1])


def alone(rank, size, folder):
    """Ranks whose engines do not exchange have nothing in common, and all of it comes back to its rank."""
    _, engine, position = build("neighbour", rank, exchange=Alone())
    with wavelet.Checkpoints(folder) as checkpoints:
        for _ in range(AT):
            engine.step(next(position))
        checkpoints.save(AT, engine=engine, position=position)
        expected = summary(engine._face.model, engine, position)
        model, engine, position = build("neighbour", rank, seed=77, exchange=Alone())
        checkpoints.load(engine=engine, position=position)
        found = summary(model, engine, position)
    return expected, found


def test_ranks_that_train_alone(tmp_path):
    results = run(alone, 2, tmp_path)
    for expected, (losses, weights, buffers, draws) in results:
        assert losses == expected[0]
        assert_same(weights, expected[1])
        assert_same(buffers, expected[2])
        assert draws == expected[3]
    assert not torch.equal(results[0][1][1][0], results[1][1][1][0])


def test_what_the_ranks_share_is_written_once_and_by_both(saved):
    folder, before = saved
    path = folder / "neighbour" / names(AT)[0]
    entries = FileSystemReader(path).read_metadata().state_dict_metadata
    shared = [key for key in entries if key.startswith("shared/engine")]
    state = before[0]["neighbour"][1]
    num_weights = sum(len(wave) for wave in state["weights"])
    assert sum(key.startswith("shared/engine/weights/") for key in shared) == num_weights
    assert not any("/weights/" in key or "/optimizers/" in key for key in entries if key.startswith("rank"))
    sizes = [(path / f"__{rank}_0.distcp").stat().st_size for rank in range(2)]
    assert max(sizes) < 1.2 * min(sizes)


class Refusing(nn.Module):
    """A part that cannot be saved or loaded on one rank."""

    def __init__(self, rank, on):
        super().__init__()
        self.refuses = rank == on

    def state_dict(self):
        if self.refuses:
            raise KeyError("mine")
        return {}

    def load_state_dict(self, state):
        if self.refuses:
            raise KeyError("mine")


def raised(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def troubles(rank, size, folder):
    """What each rank sees of errors, most of which only one of them has."""
    seen = {}
    checkpoints = wavelet.Checkpoints(folder / "run")
    checkpoints.save(1, number=1)
    checkpoints.wait()
    seen["steps differ"] = raised(checkpoints.save, 2 + rank, number=1)
    seen["parts differ"] = raised(checkpoints.save, 2, **{f"number{rank}": 1})
    seen["one cannot be saved"] = raised(checkpoints.save, 2, part=Refusing(rank, on=1))
    checkpoints.save(2, part=Refusing(rank, on=None))
    seen["one cannot be loaded"] = raised(checkpoints.load, part=Refusing(rank, on=1))
    create = FileSystem.create_stream

    def full(self, path, mode):
        if rank == 1 and "w" in mode:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(self, path, mode)

    FileSystem.create_stream = full
    checkpoints.save(3, number=3)
    seen["a full disk"] = raised(checkpoints.wait)
    FileSystem.create_stream = create
    seen["steps"] = steps_in(folder / "run")
    checkpoints.save(4, tensor=torch.full((3,), float(rank)))
    seen["latest"] = checkpoints.latest()
    if rank == 0:
        (folder / "run" / names(4)[0] / "__1_0.distcp").unlink()
    torch.distributed.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen["torn"] = checkpoints.load(None if rank == 0 else 4, part=Refusing(rank, on=None)).step
    seen["warnings"] = [str(each.message) for each in caught]
    (folder / f"file{rank}").write_text("")
    other = wavelet.Checkpoints(folder / "file0" / "run" if rank == 0 else folder / "run")
    seen["no folder"] = raised(other.save, 1, number=1)
    other.close()
    checkpoints.close()
    checkpoints.close()
    seen["closed"] = raised(checkpoints.save, 5, number=1)
    return seen


def test_what_goes_wrong_on_one_rank_is_known_to_all(tmp_path):
    first, second = run(troubles, 2, tmp_path)
    for seen in (first, second):
        for name in ("steps differ", "parts differ"):
            assert seen[name][0] == "ValueError"
            assert "other steps, parts or models" in seen[name][1]
        assert seen["a full disk"][0] == "CheckpointError"
        assert "step 3 was not saved" in seen["a full disk"][1]
        assert "No space left on device" in seen["a full disk"][1]
        assert seen["steps"] == names(1, 2)
        assert seen["latest"] == 4
        assert seen["torn"] == 2
        assert seen["no folder"][0] == "CheckpointError"
        assert "Not a directory" in seen["no folder"][1]
        assert seen["closed"][0] == "ValueError"
    for name in ("one cannot be saved", "one cannot be loaded"):
        assert first[name][0] == "CheckpointError"
        assert "rank 1 raised an error ('mine')" in first[name][1]
        assert second[name] == ("KeyError", "'mine'")
    assert ["torn, its file __1_0.distcp is missing" in each for each in first["warnings"]] == [True]
    assert second["warnings"] == []


def among_some(rank, size, folder):
    """Two of three ranks save together; the third does nothing."""
    group = torch.distributed.new_group([0, 2])
    if rank == 1:
        return None
    with wavelet.Checkpoints(folder, group=group) as checkpoints:
        checkpoints.save(1, model=nn.Linear(2, 2))
        torch.manual_seed(rank)
        model = nn.Linear(2, 2)
        checkpoints.save(2, model=model)
        other = nn.Linear(2, 2)
        loaded = checkpoints.load(model=other)
    return torch.equal(other.weight, model.weight), loaded.num_ranks


def test_some_of_the_ranks(tmp_path):
    assert run(among_some, 3, tmp_path) == [(True, 2), None, (True, 2)]


def test_a_file_of_one_rank_is_no_mistake_for_one_that_is_alone(tmp_path):
    """Ranks whose folders are not the same one find out before anything appears."""
    results = run(in_folders_of_their_own, 2, tmp_path)
    for kind, message in results:
        assert kind == "CheckpointError"
        assert "all ranks must see the same folder" in message
    assert steps_in(tmp_path / "0") == []


def in_folders_of_their_own(rank, size, folder):
    checkpoints = wavelet.Checkpoints(folder / str(rank))
    checkpoints.save(1, number=1)
    found = raised(checkpoints.wait)
    checkpoints.close()
    return found


def test_ranks_load_what_a_single_process_filled(tmp_path):
    fill(tmp_path, 1, 2)
    assert run(values_of, 2, tmp_path) == [2, 2]


def values_of(rank, size, folder):
    with wavelet.Checkpoints(folder) as checkpoints:
        return checkpoints.load().values["number"]
