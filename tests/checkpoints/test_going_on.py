"""Going on from a checkpoint is bitwise as not having stopped."""

import random
import subprocess
import sys
import time
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import wavelet

from ..models import assert_same, batches, trained_weights
from ..processes import Process, started
from ..test_saving import final, make, seed_all
from .folders import Numbered, names, steps_in

RULES = ["neighbour", "synchronous", "delayed"]


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


def train_and_save(folder, steps, out):
    """Train up to ``steps`` from the last checkpoint there, with one after each batch, and write the weights."""
    warnings.simplefilter("error")
    torch.set_num_threads(2)
    seed_all()
    model, engine = make("neighbour")
    position = wavelet.LoaderPosition(DataLoader(Numbered(), batch_size=8, shuffle=True))
    checkpoints = wavelet.Checkpoints(folder)
    done = 0
    if checkpoints.latest() is not None:
        done = checkpoints.load(engine=engine, position=position).step
    for number, batch in zip(range(done + 1, steps + 1), position):  # noqa: B905
        engine.step(batch)
        checkpoints.save(number, engine=engine, position=position)
        print(number, flush=True)
    engine.close()
    torch.save(trained_weights(model), out)
    checkpoints.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments(seed, tmp_path):
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
    reached = 0
    for _ in range(2):
        process = Process(train_and_save, tmp_path / "run", steps, out, stdout=subprocess.PIPE)
        with process.stdout as printed:
            first = int(printed.readline())
            assert first <= reached + 1  # at most what was saved last is lost
            for _ in range(moments.randrange(12)):
                reached = int(printed.readline())
            time.sleep(moments.random() * 0.02)
            process.kill()
            process.wait(60)
    with started((train_and_save, tmp_path / "run", steps, out)) as (process,):
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 0, printed.decode()
    assert_same(torch.load(out), trained_weights(model))
    assert steps_in(tmp_path / "run") == names(steps - 1, steps)
