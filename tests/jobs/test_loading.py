"""From a name or a file to a job, and every way in which that is refused."""

import random
import sys

import numpy
import pytest
import torch

import wavelet.jobs
from wavelet.jobs import JobFileError, load

SMALL = """
import torch
from wavelet.jobs import Job

def small(**more):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    size = more.pop("batch_size", 4)
    return Job(model, optimizer, lambda model, batch: model(batch).mean(), [torch.randn(size, 2)],
               samples_per_batch=size, **more)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a job file; afterwards `sys.path` and `sys.modules` are as they were."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(text, name="mine.py"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("wavelet_job_") or name == "sibling":
            del sys.modules[name]


def test_a_file_has_the_function_job_or_the_one_named(write):
    path = write(SMALL + "def job(): return small(name='a')\ndef other(): return small(name='b')")
    assert load(path).name == "a"
    assert load(f"{path}:other").name == "b"


def test_a_job_without_a_name_is_called_as_its_file(write):
    assert load(write(SMALL + "def job(): return small()", "my_net.py")).name == "my_net"


def test_seed_and_batch_size_are_handed_over_where_they_are_taken(write):
    path = write(SMALL + "def job(*, seed, batch_size=8): return small(name=str(seed), batch_size=batch_size)")
    job = load(path, seed=5, batch_size=16)
    assert (job.name, job.seed, job.samples_per_batch) == ("5", 5, 16)
    assert load(path).samples_per_batch == 8
    job = load(write(SMALL + "job = small", "open.py"), seed=6, batch_size=2)
    assert (job.seed, job.samples_per_batch) == (6, 2)


def test_a_function_that_takes_no_seed_is_seeded_all_the_same(write):
    draws = "import numpy, random\ndef job(): return small(name=repr((numpy.random.rand(), random.random())))"
    path = write(SMALL + "DRAWN = torch.rand(3)\n" + draws)
    first, second, other = load(path, seed=7), load(path, seed=7), load(path, seed=8)
    assert first.name == second.name != other.name
    assert torch.equal(first.model.weight, second.model.weight)
    assert not torch.equal(first.model.weight, other.model.weight)
    assert (first.seed, other.seed) == (7, 8)
    random.seed(7)
    numpy.random.seed(7)
    assert first.name == repr((numpy.random.rand(), random.random()))


def test_the_files_folder_can_be_imported_from_early_and_late(write):
    write("VALUE = 'early'", "sibling.py")
    late = "def job():\n    import later_sibling\n    return small(name=sibling.VALUE + later_sibling.VALUE)"
    write("VALUE = ' and late'", "later_sibling.py")
    assert load(write(SMALL + "import sibling\n" + late)).name == "early and late"
    del sys.modules["later_sibling"]


def test_a_file_runs_as_a_module_not_as_a_script(write):
    text = "from __future__ import annotations\nimport dataclasses\n" + SMALL
    text += "@dataclasses.dataclass\nclass Batch:\n    x: int = dataclasses.field(kw_only=True, default=1)\n"
    text += "def job(): return small()\nif __name__ == '__main__': raise SystemExit('a script')"
    assert load(write(text)).name == "mine"


def test_a_path_relative_to_the_working_folder(write, monkeypatch, tmp_path):
    write(SMALL + "def job(): return small()")
    monkeypatch.chdir(tmp_path)
    assert load("mine.py").name == "mine"


@pytest.mark.parametrize(
    ("spec", "hint"),
    [("char-lstn", "did you mean char-lstm?"), ("nothing", "name one of char-lstm, .*path.py"), ("", "name one of"),
     ("mine:job", "name one of")],
)  # fmt: skip
def test_an_unknown_job(spec, hint):
    with pytest.raises(ValueError, match=rf"^There is no job '{spec}'.*{hint}".replace("?", r"\?")):
        load(spec)


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"^There is no file .*absent\.py: give the path"):
        load(str(tmp_path / "absent.py"))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ValueError, match=r"^There is no file .*folder\.py"):
        load(str(tmp_path / "folder.py"))


@pytest.mark.parametrize("name", ["absent", "number", ""])
def test_no_such_function(write, name):
    path = write("number = 3")
    with pytest.raises(ValueError, match=rf"mine\.py has no function '{name}': write one"):
        load(f"{path}:{name}")


def test_a_function_that_returns_something_else(write):
    with pytest.raises(ValueError, match=r"^job\(\) in .*mine\.py returned an object of type dict"):
        load(write("def job(): return {}"))


def test_a_function_that_needs_more(write):
    with pytest.raises(ValueError, match=r"cannot be called \(missing .*'width'\): it is given seed and batch_size"):
        load(write("def job(width, seed=0): ..."))
    with pytest.raises(ValueError, match="cannot be called"):
        load(write("def job(seed, /): ..."))


def test_a_batch_size_for_a_function_that_takes_none(write):
    with pytest.raises(ValueError, match="takes no batch_size: add the argument"):
        load(write("def job(): ..."), batch_size=4)


@pytest.mark.parametrize("arguments", [{"seed": -1}, {"seed": "0"}, {"batch_size": 0}, {"batch_size": 1.5}])
def test_arguments_out_of_range(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"^{name}=.* is not possible: give a whole number from"):
        load("char-lstm", **arguments)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("raise KeyError('boom')", KeyError),
        ("def job(): raise ValueError('boom')", ValueError),
        ("import boom", ModuleNotFoundError),
        ("boom boom", SyntaxError),
        ("raise SystemExit('boom')", SystemExit),
        (SMALL + "def job(): return small(seed='boom')", ValueError),
    ],
)
def test_an_exception_in_the_file_is_told_apart_and_kept(write, text, kind):
    with pytest.raises(JobFileError, match=rf"^mine\.py raised {kind.__name__}: ") as caught:
        load(write(text))
    assert type(caught.value.__cause__) is kind
    assert not isinstance(caught.value, ValueError)
    frames = []
    trace = caught.value.__cause__.__traceback__
    while trace:
        frames.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert kind is SyntaxError or any(name.endswith("mine.py") for name in frames)


def test_ctrl_c_in_the_file_passes(write):
    with pytest.raises(KeyboardInterrupt):
        load(write("raise KeyboardInterrupt"))


def test_names_are_described_in_a_line():
    assert wavelet.jobs.names() == ("char-lstm", "char-gpt", "digits-cnn", "digits-mobile", "mlp-small-ops")
    descriptions = [wavelet.jobs.describe(name) for name in wavelet.jobs.names()]
    assert len(set(descriptions)) == 5
    assert all(text and "\n" not in text for text in descriptions)
