"""Checkpoints in a folder: going on is bitwise as not having stopped, and what is torn is never loaded."""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy
import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.utils.data import DataLoader, TensorDataset

import wavelet
from wavelet.checkpoints import folder as folders
from wavelet.checkpoints import storage

from .models import assert_same, batches, loss, mlp, trained_weights
from .test_saving import final, make, seed_all

RULES = ["neighbour", "synchronous", "delayed"]


@pytest.fixture
def slow_writing(monkeypatch):
    """Writing that surely has not begun when `save` returns; the training goes on meanwhile."""
    write = storage._write_file

    def later(path, tensors):
        time.sleep(0.3)
        return write(path, tensors)

    monkeypatch.setattr(storage, "_write_file", later)


def fill(folder, *steps, **options):
    """Checkpoints of these steps, with the step as a value."""
    with wavelet.Checkpoints(folder, **{"keep": 9, **options}) as checkpoints:
        for step in steps:
            checkpoints.save(step, number=step, tensor=torch.full((100,), float(step)))


def steps_in(folder):
    return sorted(path.name for path in folder.iterdir())


def names(*steps):
    return [f"step-{step:08d}" for step in steps]


# Going on.


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("waves", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_continuing_is_bitwise_the_same(rule, waves, accumulate, tmp_path):
    """Adam, a scheduler, BatchNorm and dropout; of the steps saved, some are in an open round."""
    data = batches(12)
    seed_all()
    expected = final(*make(rule, waves=waves, accumulate=accumulate), data)

    seed_all()
    model, engine = make(rule, waves=waves, accumulate=accumulate)
    with wavelet.Checkpoints(tmp_path / "run", keep=3) as checkpoints:
        losses = []
        for number, batch in enumerate(data[:7], 1):
            losses.append(engine.step(batch).loss)
            if number >= 5:
                checkpoints.save(number, engine=engine, losses=losses)
        saved_and_went_on = final(model, engine, data[7:])
    assert losses + saved_and_went_on[0] == expected[0]
    assert_same(saved_and_went_on[1], expected[1])

    for step in (5, 6, 7):
        model, engine = make(rule, waves=waves, accumulate=accumulate)
        engine.step(data[-1])
        checkpoints = wavelet.Checkpoints(tmp_path / "run")
        loaded = checkpoints.load(step, engine=engine)
        assert loaded.values == {"losses": losses[:step]}
        resumed = final(model, engine, data[step:])
        assert losses[:step] + resumed[0] == expected[0]
        assert_same(resumed[1], expected[1])
        assert_same(resumed[2], expected[2])
        assert resumed[3] == expected[3]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_what_is_saved_is_of_its_step(slow_writing, asynchronous, tmp_path):
    """Batches that are trained while a checkpoint is being written are not in it."""
    data = batches(12)
    seed_all()
    expected = final(*make("neighbour"), data)
    seed_all()
    _, engine = make("neighbour")
    with wavelet.Checkpoints(tmp_path, asynchronous=asynchronous) as checkpoints:
        for number, batch in enumerate(data[:9], 1):
            engine.step(batch)
            if number == 4:
                checkpoints.save(number, engine=engine)
        engine.close()
    model, engine = make("neighbour")
    wavelet.Checkpoints(tmp_path).load(engine=engine)
    resumed = final(model, engine, data[4:])
    assert resumed[0] == expected[0][4:]
    assert_same(resumed[1], expected[1])


class Numbered(TensorDataset):
    """Reads its samples with noise from the global generator."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        super().__init__(torch.randn(40, 8, generator=generator), torch.randint(0, 4, (40,), generator=generator))

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(8), y


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [3, 5, 8])
def test_in_the_middle_of_a_pass(at, workers, tmp_path):
    """A shuffled DataLoader of five batches, three passes; a pass ends at 5."""

    def loader():
        return DataLoader(Numbered(), batch_size=8, shuffle=True, num_workers=workers)

    seed_all()
    model, engine = make("neighbour")
    expected = final(model, engine, (batch for _ in range(3) for batch in loader()))

    seed_all()
    _, engine = make("neighbour")
    position = wavelet.LoaderPosition(loader(), epochs=3)
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        for number, batch in enumerate(position, 1):
            engine.step(batch)
            if number == at:
                checkpoints.save(number, engine=engine, position=position)
                break
    engine.close()

    model, engine = make("neighbour")
    position = wavelet.LoaderPosition(loader(), epochs=3)
    wavelet.Checkpoints(tmp_path).load(engine=engine, position=position)
    resumed = final(model, engine, position)
    assert resumed[0] == expected[0][at:]
    assert_same(resumed[1], expected[1])
    assert_same(resumed[2], expected[2])


@pytest.mark.parametrize("rule", RULES)
def test_sparse_gradients(rule, tmp_path):
    """Neighbour keeps its predecessor's gradients, and an open round its own: here they are sparse."""

    def build():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(6, 3, sparse=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, wavelet.Wavelet(model, optimizer, lambda m, b: m(b).square().sum(), update=rule, accumulate=2)

    data = [torch.randint(0, 6, (4,), generator=torch.Generator().manual_seed(i)) for i in range(12)]
    expected = final(*build(), data)
    _, engine = build()
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        for batch in data[:6]:
            engine.step(batch)
        checkpoints.save(6, engine=engine)
    engine.close()
    model, engine = build()
    wavelet.Checkpoints(tmp_path).load(engine=engine)
    resumed = final(model, engine, data[6:])
    assert resumed[0] == expected[0][6:]
    assert_same(resumed[1], expected[1])


def test_values_of_all_kinds_come_back(tmp_path):
    grid = torch.arange(24.0).view(1, 2, 3, 4)
    values = {
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3, dtype=torch.int16),
        "half": torch.randn(5).bfloat16(),
        "channels_last": grid.contiguous(memory_format=torch.channels_last),
        "transposed": torch.randn(3, 4).T,
        "part": torch.randn(10)[2:5],
        "expanded": torch.randn(3, 1).expand(3, 4),
        "sparse": torch.sparse_coo_tensor([[0, 0, 2]], [1.0, 2.0, 3.0], (4,), check_invariants=True),
        "nested": {1: [torch.ones(2), (torch.zeros(1), None)], "1": torch.full((2,), 7.0), "a/b": torch.ones(1)},
        "a": {"b": torch.zeros(1)},
        "plain": {"pair": (1, 2.5), "words": ["a", "b"], "infinite": float("inf"), "numpy": numpy.float64(0.1)},
        "nothing": None,
    }
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, **values)
        found = checkpoints.load().values

    def check(saved, loaded):
        if isinstance(saved, torch.Tensor):
            assert loaded.dtype == saved.dtype and torch.equal(loaded.to_dense(), saved.to_dense())
        elif isinstance(saved, dict):
            assert saved.keys() == loaded.keys()
            for name in saved:
                check(saved[name], loaded[name])
        elif isinstance(saved, (list, tuple)):
            assert type(saved) is type(loaded)
            for one, other in zip(saved, loaded, strict=True):
                check(one, other)
        else:
            assert saved == loaded

    check(values, found)
    assert found["channels_last"].stride() == values["channels_last"].stride()
    assert found["transposed"].stride() == (1, 4)
    assert found["sparse"]._nnz() == 3


def test_what_is_stored_is_tensors(tmp_path):
    """So nothing is unpickled but the index, and other programs can read the weights."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    _, engine = make("neighbour")
    engine.step(batches(1)[0])
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, engine=engine, epoch=3)
    engine.close()
    entries = FileSystemReader(tmp_path / "step-00000001").read_metadata().state_dict_metadata
    assert all(isinstance(entry, TensorStorageMetadata) for entry in entries.values())
    assert entries["shared/engine/weights/0/0"].size == (16, 8)


def test_other_programs_can_read_it(tmp_path):
    """Torch's own converter gives one file with every tensor, whatever its layout and size."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    tensors = {
        "large": torch.randn(300, 400),
        "bytes": torch.arange(100_000).to(torch.uint8),
        "number": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "half": torch.randn(7).bfloat16(),
        "transposed": torch.randn(3, 4).T,
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conjugate": torch.randn(5, dtype=torch.complex64).conj(),
        "part": torch.randn(10, 10)[2:4, ::3],
        "expanded": torch.randn(3, 1).expand(3, 4),
    }
    for step, asynchronous in enumerate((True, False)):
        with wavelet.Checkpoints(tmp_path / "run", asynchronous=asynchronous, keep=9) as checkpoints:
            checkpoints.start_over()
            checkpoints.save(step, tensors=tensors)
        dcp_to_torch_save(tmp_path / "run" / names(step)[0], tmp_path / "one.pt")
        found = torch.load(tmp_path / "one.pt", weights_only=True)
        for name, tensor in tensors.items():
            read = found[f"shared/tensors/{name}"]
            assert read.dtype == tensor.dtype
            assert torch.equal(read, tensor), name


KILLED = """
import sys
import torch, wavelet
sys.path.insert(0, {root!r})
from tests.test_checkpoints import Numbered, DataLoader
from tests.test_saving import make, seed_all
from tests.models import trained_weights

torch.set_num_threads(2)
seed_all()
model, engine = make("neighbour")
position = wavelet.LoaderPosition(DataLoader(Numbered(), batch_size=8, shuffle=True))
checkpoints = wavelet.Checkpoints({folder!r})
done = 0
if checkpoints.latest() is not None:
    done = checkpoints.load(engine=engine, position=position).step
for number, batch in zip(range(done + 1, {steps} + 1), position):
    engine.step(batch)
    checkpoints.save(number, engine=engine, position=position)
    print(number, flush=True)
engine.close()
torch.save(trained_weights(model), {out!r})
checkpoints.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments(seed, tmp_path, pytestconfig):
    """The process is killed twice, whatever it is doing then; the third one ends with the weights of one that lived."""
    steps = 40
    seed_all()
    model, engine = make("neighbour")
    position = wavelet.LoaderPosition(DataLoader(Numbered(), batch_size=8, shuffle=True))
    for _ in range(steps):
        engine.step(next(position))
    engine.close()

    moments = random.Random(seed)
    out = tmp_path / "out.pt"
    code = KILLED.format(root=str(pytestconfig.rootpath), folder=str(tmp_path / "run"), steps=steps, out=str(out))
    reached = 0
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-W", "error", "-c", code], stdout=subprocess.PIPE, text=True)
        first = int(process.stdout.readline())
        assert first <= reached + 1  # at most what was saved last is lost
        for _ in range(moments.randrange(12)):
            reached = int(process.stdout.readline())
        time.sleep(moments.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120, stdout=subprocess.DEVNULL)
    assert_same(torch.load(out), trained_weights(model))
    assert steps_in(tmp_path / "run") == names(steps - 1, steps)


# Torn checkpoints.


def lose_metadata(path):
    (path / ".metadata").unlink()


def cut_metadata(path):
    os.truncate(path / ".metadata", 100)


def empty_metadata(path):
    os.truncate(path / ".metadata", 0)


def lose_data(path):
    (path / "__0_0.distcp").unlink()


def cut_data(path):
    os.truncate(path / "__0_0.distcp", (path / "__0_0.distcp").stat().st_size - 1)


def empty_data(path):
    os.truncate(path / "__0_0.distcp", 0)


def never_rename(path):
    path.rename(path.with_name(f".{path.name}.partial"))


def become_a_file(path):
    path.rename(path.with_name("elsewhere"))
    path.write_text("")


def lose_all(path):
    lose_metadata(path)
    lose_data(path)


TEARS = [lose_metadata, cut_metadata, empty_metadata, lose_data, cut_data, empty_data, become_a_file, lose_all]


@pytest.mark.parametrize("tear", TEARS, ids=lambda tear: tear.__name__)
def test_a_torn_checkpoint_is_never_loaded(tear, tmp_path):
    fill(tmp_path, 10, 20, 30)
    tear(tmp_path / "step-00000030")
    checkpoints = wavelet.Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match=r"step-00000030 is torn, it"):
        assert checkpoints.latest() == 20
    with pytest.warns(UserWarning, match=r"step-00000030 is torn, it"):
        loaded = checkpoints.load()
    assert (loaded.step, loaded.values["number"]) == (20, 20)
    assert torch.equal(loaded.values["tensor"], torch.full((100,), 20.0))
    with pytest.raises(ValueError, match="step-00000030 is torn, it"):
        checkpoints.load(30)


@pytest.mark.parametrize("tear", TEARS, ids=lambda tear: tear.__name__)
def test_a_torn_checkpoint_is_replaced_and_not_counted(tear, tmp_path):
    fill(tmp_path, 10, 20, 30)
    tear(tmp_path / "step-00000030")
    with wavelet.Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.load(20)
        checkpoints.save(25, number=25)
    assert steps_in(tmp_path) == ["elsewhere"] * (tear is become_a_file) + names(20, 25)


def test_one_that_was_never_renamed_is_swept_away(tmp_path):
    fill(tmp_path, 10, 20)
    never_rename(tmp_path / "step-00000020")
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert checkpoints.load().step == 10
        checkpoints.save(30, number=30)
    assert steps_in(tmp_path) == names(10, 30)


def test_of_torn_ones_alone_none_is_loaded(tmp_path):
    fill(tmp_path, 10)
    cut_data(tmp_path / "step-00000010")
    checkpoints = wavelet.Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match="torn"):
        assert checkpoints.latest() is None
    with pytest.warns(UserWarning, match="torn"), pytest.raises(ValueError, match="holds no whole checkpoint"):
        checkpoints.load()
    fill(tmp_path, 5)
    assert steps_in(tmp_path) == names(5)


def test_contents_that_cannot_be_read(tmp_path):
    """Long enough, and yet not what was written: the one before is taken, and nothing was given to a part before."""
    fill(tmp_path, 10, 20)
    file = tmp_path / "step-00000020" / "__0_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))
    checkpoints = wavelet.Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match=r"step-00000020 cannot be read .* The checkpoint before it is taken"):
        assert checkpoints.load().values["number"] == 10
    with pytest.raises(wavelet.CheckpointError, match="step-00000020 cannot be read"):
        checkpoints.load(20)


# A system that refuses.


def refuse_writing(monkeypatch):
    create = FileSystem.create_stream

    def full(self, path, mode):
        if "w" in mode:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(self, path, mode)

    monkeypatch.setattr(FileSystem, "create_stream", full)


def refuse_renaming(monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folders, "_sync", full)


@pytest.mark.parametrize("surfaces", ["wait", "close", "latest", "load", "save"])
@pytest.mark.parametrize("refuse", [refuse_writing, refuse_renaming])
def test_a_full_disk(refuse, surfaces, tmp_path, monkeypatch):
    checkpoints = wavelet.Checkpoints(tmp_path / "run")
    checkpoints.save(10, number=10)
    checkpoints.wait()
    with monkeypatch.context() as patch:
        refuse(patch)
        checkpoints.save(20, number=20)
        call = getattr(checkpoints, surfaces)
        with pytest.raises(
            wavelet.CheckpointError, match=r"step 20 was not saved in .*run \(No space left on device\)"
        ):
            call(30, number=30) if surfaces == "save" else call()
    assert steps_in(tmp_path / "run") == names(10)
    checkpoints.wait()  # it was said once
    if surfaces != "close":
        assert checkpoints.load().values["number"] == 10
        checkpoints.save(30, number=30)
        checkpoints.close()
        assert steps_in(tmp_path / "run") == names(10, 30)


def test_a_disk_that_is_really_full(tmp_path):
    tmp_path = tmp_path / "small"
    tmp_path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(tmp_path)]
    if not sys.platform.startswith("linux") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted")
    try:
        checkpoints = wavelet.Checkpoints(tmp_path / "run", asynchronous=False)
        checkpoints.save(10, number=10, tensor=torch.ones(10_000))
        with pytest.raises(wavelet.CheckpointError, match="No space left on device"):
            checkpoints.save(20, number=20, tensor=torch.ones(60_000))
        assert steps_in(tmp_path / "run") == names(10)
        assert torch.equal(checkpoints.load().values["tensor"], torch.ones(10_000))
        checkpoints.save(20, number=20, tensor=torch.ones(10_000))
        assert steps_in(tmp_path / "run") == names(10, 20)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_error_of_the_training_goes_before_one_of_saving(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        refuse_writing(patch)
        with pytest.warns(UserWarning, match="step 1 was not saved"), pytest.raises(KeyError, match="mine"):
            with wavelet.Checkpoints(tmp_path) as checkpoints:
                checkpoints.save(1, number=1)
                raise KeyError("mine")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file: give a folder"):
        wavelet.Checkpoints(tmp_path / "file")
    checkpoints = wavelet.Checkpoints(tmp_path / "file" / "run")
    with pytest.raises(wavelet.CheckpointError, match=r"step 1 was not saved in .* \(Not a directory\)"):
        checkpoints.save(1, number=1)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do all")
def test_a_folder_without_permission(tmp_path):
    fill(tmp_path / "run", 1)
    (tmp_path / "run").chmod(0o500)
    checkpoints = wavelet.Checkpoints(tmp_path / "run")
    checkpoints.load()
    with pytest.raises(wavelet.CheckpointError, match="Permission denied"):
        checkpoints.save(2, number=2)
        checkpoints.wait()
    (tmp_path / "run").chmod(0o700)
    assert steps_in(tmp_path / "run") == names(1)


def test_ctrl_c_waits_until_a_checkpoint_is_whole(slow_writing, tmp_path):
    """Nothing is half-written, and the training's memory is not read any more when the loop sees the interrupt."""
    checkpoints = wavelet.Checkpoints(tmp_path, asynchronous=False)
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(1, number=1)
        timer.join()
    timer.join()
    assert steps_in(tmp_path) == names(1)
    assert checkpoints.load().values["number"] == 1


# Which stay.


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_last_ones_stay(keep, tmp_path):
    fill(tmp_path, 2, 4, 6, 8, 100_000_000, keep=keep)
    assert steps_in(tmp_path) == sorted(names(4, 6, 8, 100_000_000)[-keep:])
    assert wavelet.Checkpoints(tmp_path).latest() == 100_000_000


def test_only_one_copy_is_held(slow_writing, tmp_path, monkeypatch):
    """A save that comes while the one before is being written waits before it copies."""
    from wavelet.checkpoints import checkpoints as module

    events = []
    contents, publish = module.Contents, folders.Folder.publish

    def copying(*arguments, **named):
        events.append("copied")
        return contents(*arguments, **named)

    def published(*arguments):
        publish(*arguments)
        events.append("published")

    monkeypatch.setattr(module, "Contents", copying)
    monkeypatch.setattr(folders.Folder, "publish", published)
    fill(tmp_path, 1, 2, 3)
    assert events == ["copied", "published"] * 3


def test_a_run_goes_on_from_an_older_one(tmp_path):
    """What came after it is of a past that did not happen: it goes when the next is complete, not before."""
    fill(tmp_path, 10, 20, 30)
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.load(10)
        assert steps_in(tmp_path) == names(10, 20, 30)
        checkpoints.save(15, number=15)
        checkpoints.wait()
        assert steps_in(tmp_path) == names(10, 15)
        assert checkpoints.latest() == 15


def test_another_run_is_not_overwritten_by_mistake(tmp_path):
    fill(tmp_path, 10, 20)
    checkpoints = wavelet.Checkpoints(tmp_path)
    with pytest.raises(ValueError, match=r"holds checkpoints of another run \(the newest of step 20\)"):
        checkpoints.save(30, number=30)
    checkpoints.start_over()
    checkpoints.save(5, number=5)
    checkpoints.close()
    assert steps_in(tmp_path) == names(5)


def test_the_same_step_may_be_saved_again(tmp_path):
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, number=1)
        checkpoints.save(5, number=2)
        assert checkpoints.load(5).values["number"] == 2
        with pytest.raises(ValueError, match="step=4 comes after step 5"):
            checkpoints.save(4, number=3)
    assert steps_in(tmp_path) == names(5)


def test_nothing_there(tmp_path):
    checkpoints = wavelet.Checkpoints(tmp_path / "run")
    assert checkpoints.latest() is None
    with pytest.raises(ValueError, match="holds no whole checkpoint"):
        checkpoints.load()
    with pytest.raises(ValueError, match="no checkpoint of step 3: there is none"):
        checkpoints.load(3)
    assert not (tmp_path / "run").exists()


def test_refusals(tmp_path):
    fill(tmp_path, 1)
    checkpoints = wavelet.Checkpoints(tmp_path)
    with pytest.raises(ValueError, match="no checkpoint of step 3: there are 1"):
        checkpoints.load(3)
    model = mlp()
    with pytest.raises(ValueError, match="holds no part 'model' that loads itself: it has number, tensor"):
        checkpoints.load(model=model)
    with pytest.raises(ValueError, match="number has no load_state_dict"):
        checkpoints.load(number=3)
    checkpoints.load()
    with pytest.raises(ValueError, match=r"the part 'thing' holds objects of .*Numbered"):
        checkpoints.save(2, thing=[Numbered()])
    with pytest.raises(ValueError, match="the part 'thing' holds something that cannot be saved"):
        checkpoints.save(2, thing=lambda: 0)
    for step in (-1, 1.5, True):
        with pytest.raises(ValueError, match=r"step=.* is not possible"):
            checkpoints.save(step)
    for keep in (0, 1.5, True):
        with pytest.raises(ValueError, match=r"keep=.* is not possible"):
            wavelet.Checkpoints(tmp_path, keep=keep)
    with pytest.raises(ValueError, match="group was given"):
        wavelet.Checkpoints(tmp_path, group=object())
    assert steps_in(tmp_path) == names(1)


def test_a_state_of_another_engine_is_refused(tmp_path):
    _, engine = make("delayed")
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, engine=engine)
    engine.close()
    _, other = make("delayed", waves=3)
    with pytest.raises(ValueError, match="waves=2, this engine has waves=3"):
        wavelet.Checkpoints(tmp_path).load(engine=other)
    other.close()


def test_a_model_and_an_optimizer_are_parts_too(tmp_path):
    """Whatever has state_dict and load_state_dict, in a loop without the engine."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    loss(model, batches(1)[0]).backward()
    optimizer.step()
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, model=model, optimizer=optimizer)
    other = mlp(seed=1)
    other_optimizer = torch.optim.Adam(other.parameters())
    wavelet.Checkpoints(tmp_path).load(model=other, optimizer=other_optimizer)
    assert_same(trained_weights(other), trained_weights(model))
    for index, state in optimizer.state_dict()["state"].items():
        assert_same(list(state.values()), list(other_optimizer.state_dict()["state"][index].values()))


def test_ctrl_c_at_the_moment_when_writing_begins(tmp_path, monkeypatch):
    """Somebody then knows of what is being written: it is waited for, and appears."""
    write = storage.write

    def interrupted(*arguments):
        upload = write(*arguments)
        signal.raise_signal(signal.SIGINT)
        return upload

    with pytest.raises(KeyboardInterrupt), wavelet.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr(storage, "write", interrupted)
            checkpoints.save(1, number=1)
    assert steps_in(tmp_path) == names(1)
