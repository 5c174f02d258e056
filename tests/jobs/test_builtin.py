"""The built-in jobs: the same for the same seed, of the right shapes, and they learn."""

import __future__

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from wavelet.jobs import describe, load, names
from wavelet.jobs.text import NUM_CHARACTERS, Text, standard_library_text

ALL = pytest.mark.parametrize("name", names())


@pytest.fixture(autouse=True)
def _one_thread(_two_threads):
    torch.set_num_threads(1)


def train(job, steps):
    """The plain loop; returns the losses."""
    losses = []
    while len(losses) < steps:
        for batch in job.loader:
            loss = job.loss(job.model, batch)
            loss.backward()
            if job.clip_grad_norm is not None:
                nn.utils.clip_grad_norm_(job.model.parameters(), job.clip_grad_norm)
            job.optimizer.step()
            job.optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return losses


def first_batches(job, count=3):
    return [batch for batch, _ in zip(job.loader, range(count), strict=False)]


@ALL
def test_one_seed_gives_one_model_and_one_order(name):
    def everything(seed):
        job = load(name, seed=seed)
        return [*job.model.state_dict().values(), *(tensor for batch in first_batches(job) for tensor in batch)]

    first, second, other = everything(3), everything(3), everything(4)
    assert all(map(torch.equal, first, second))
    assert not all(map(torch.equal, first, other))


@ALL
def test_batches_have_one_shape_and_the_size_asked_for(name):
    job = load(name, batch_size=5)
    inputs, targets = first_batches(job, 1)[0]
    assert job.samples_per_batch == 5 == len(inputs) == len(targets)
    shapes = {tuple(tensor.shape for tensor in batch) for batch in first_batches(job)}
    assert len(shapes) == 1
    assert len({tuple(tensor.shape for tensor in batch) for batch in job.validation}) == 1
    outputs = job.model(inputs)
    assert outputs.shape == (5, inputs.shape[1], NUM_CHARACTERS) if name.startswith("char") else (5, 10)
    assert job.loss(job.model, (inputs, targets)).shape == ()


@ALL
def test_a_job_says_who_it_is(name):
    job = load(name, seed=9)
    assert (job.name, job.seed) == (name, 9)
    assert describe(name)


@ALL
def test_a_batch_larger_than_the_data_is_refused(name):
    with pytest.raises(ValueError, match="batch_size=1000000 is not possible: give 1 to"):
        load(name, batch_size=1000000)


@ALL
def test_the_training_loss_falls(name):
    losses = train(load(name, batch_size=8), 40)
    assert sum(losses[-8:]) < 0.95 * sum(losses[:8])


@ALL
def test_evaluation_repeats(name):
    job = load(name)
    job = replace(job, validation=job.validation[:2])
    first = job.evaluate()
    assert first == job.evaluate()
    assert 0 < first.loss < 10
    assert (first.accuracy is None) == name.startswith("char")


def test_weight_decay_of_the_gpt_is_for_matrices_only():
    job = load("char-gpt")
    decayed, free = job.optimizer.param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    assert all(parameter.ndim == 2 for parameter in decayed["params"])
    assert all(parameter.ndim == 1 for parameter in free["params"])
    assert len(decayed["params"]) + len(free["params"]) == len(list(job.model.parameters()))


def test_the_gpt_looks_at_the_past_only():
    model = load("char-gpt").model.eval()
    characters = torch.randint(NUM_CHARACTERS, (1, 64))
    changed = characters.clone()
    changed[0, 40] = (changed[0, 40] + 1) % NUM_CHARACTERS
    before, after = model(characters), model(changed)
    assert torch.allclose(before[:, :40], after[:, :40], atol=1e-5)
    assert not torch.allclose(before[:, 40:], after[:, 40:], atol=1e-5)


def test_targets_are_the_next_characters():
    for name in ("char-lstm", "char-gpt"):
        job = load(name)
        for inputs, targets in (*first_batches(job), *job.validation):
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            assert inputs.min() >= 0 and targets.max() < NUM_CHARACTERS


def test_training_and_validation_characters_do_not_overlap():
    text = Text(train=torch.arange(0, 100).byte(), validation=torch.arange(100, 200).byte())
    loader = text.loader(length=8, batch_size=4)
    seen = {int(number) for _ in range(100) for batch in loader for tensor in batch for number in tensor.flatten()}
    held_out = {int(n) for batch in text.validation_batches(8, 2, 3) for tensor in batch for n in tensor.flatten()}
    assert seen == set(range(97))
    assert held_out <= set(range(100, 200))


def test_the_text_is_the_standard_library():
    text = standard_library_text()
    assert len(text.train) == pytest.approx(9 * len(text.validation), abs=10)
    characters = "".join("\n" if number == 0 else chr(number + 31) for number in text.train[:100_000].tolist())
    first = Path(__future__.__file__).read_text()
    assert characters.startswith(first.replace("\t", " "))


def test_training_and_validation_digits_do_not_overlap():
    from sklearn.datasets import load_digits

    labels = torch.tensor(load_digits().target)
    job = load("digits-cnn")
    validation = torch.cat([batch[1] for batch in job.validation])
    assert torch.equal(validation, labels[-360:])
    images = torch.cat([batch[0] for batch in job.validation])
    centre = {tuple(image.flatten().tolist()) for image in images}
    for _ in range(3):
        assert not any(tuple(image.flatten().tolist()) in centre for batch, _ in job.loader for image in batch)


def test_digits_are_shifted_by_at_most_an_eighth():
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    job = load("mlp-small-ops")
    originals = torch.tensor(load_digits().images, dtype=torch.float32) / 16
    padded = nn.functional.pad(originals, (1, 1, 1, 1))
    shifts = [padded[:, down : down + 8, right : right + 8] for down in range(3) for right in range(3)]
    known = {tuple(image.flatten().tolist()) for shift in shifts for image in shift}
    images = next(iter(job.loader))[0]
    assert all(tuple(image.flatten().tolist()) in known for image in images)


def test_importing_wavelet_needs_neither_scikit_learn_nor_the_jobs():
    code = "import sys, wavelet; assert not {'sklearn', 'wavelet.jobs.digits', 'wavelet.jobs.text'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_scikit_learn_the_digits_say_what_to_install(monkeypatch):
    from wavelet.jobs import digits

    digits._load.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        load("digits-cnn")


def test_a_python_without_sources_is_told(tmp_path):
    from wavelet.jobs.text import _read

    with pytest.raises(ValueError, match="use a Python that comes with its sources"):
        _read(tmp_path)
