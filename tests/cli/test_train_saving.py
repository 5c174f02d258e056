"""`wavelet train --save`: a run that goes on gives what one that never stopped gives, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import wavelet as library

SOURCES = Path(library.__file__).resolve().parents[1]

JOB = """
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader
import wavelet


def job(seed=0, batch_size=8):
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = [(x, x.sum(0, keepdim=True)) for x in torch.randn(40, 4)]
    loader = DataLoader(data, batch_size=batch_size, shuffle=True)
    return wavelet.Job(
        model, optimizer, lambda model, batch: mse_loss(model(batch[0]), batch[1]), loader,
        validation=DataLoader(data, batch_size=8), scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99),
    )
"""


@pytest.fixture
def path(tmp_path):
    """A job of five batches a pass with Adam, a scheduler, BatchNorm, dropout and a shuffled DataLoader."""
    file = tmp_path / "small.py"
    file.write_text(JOB)
    return str(file)


@pytest.fixture
def here(path, tmp_path, monkeypatch, capsys):
    """Runs `train` on the job in this process; gives the exit code and what was printed on standard error."""
    from wavelet.cli.app import run

    monkeypatch.chdir(tmp_path)

    def train(*arguments):
        code = run(["train", path, *map(str, arguments)])
        return code, capsys.readouterr().err

    return train


def result(tmp_path, name):
    return json.loads((tmp_path / name).read_text())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        ("--update", "neighbour"),
        ("--update", "synchronous", "--accumulate", "2"),
        ("--update", "delayed", "--waves", "1"),
        ("--update", "neighbour", "--accumulate", "2"),
        ("--budget", "2x"),
    ],
    ids=" ".join,
)
def test_going_on_is_bitwise_the_same(options, here, tmp_path):
    """First to batch 13 of 24, in the third pass and in an open round; in two steps; and with steps in excess."""
    assert here("--steps", 24, *options, "--json", "whole.json") == (0, "")
    save = ("--save", "run", "--every", 5, *options)
    assert here("--steps", 13, *save, "--json", "first.json") == (0, "")
    assert names(tmp_path / "run") == ["step-00000010", "step-00000013"]
    assert here("--steps", 24, *save, "--resume", "auto", "--json", "second.json") == (0, "")
    assert names(tmp_path / "run") == ["step-00000020", "step-00000024"]
    whole, first, second = (result(tmp_path, f"{name}.json") for name in ("whole", "first", "second"))
    assert first["losses"] + second["losses"] == whole["losses"]
    assert second["validation_loss"] == whole["validation_loss"]
    assert (whole["resumed_from"], first["resumed_from"], second["resumed_from"]) == (None, None, 13)
    assert second["steps"] == 11

    assert here("--steps", 24, *save, "--resume", "auto", "--json", "third.json") == (0, "")
    third = result(tmp_path, "third.json")
    assert (third["steps"], third["losses"], third["training_loss"]) == (0, [], None)
    assert third["validation_loss"] == whole["validation_loss"]
    assert names(tmp_path / "run") == ["step-00000020", "step-00000024"]


def test_passes_count_from_the_beginning(here, tmp_path):
    assert here("--epochs", 4, "--json", "whole.json")[0] == 0
    assert here("--epochs", 2, "--save", "run", "--json", "first.json")[0] == 0
    assert here("--epochs", 4, "--save", "run", "--resume", "auto", "--json", "second.json")[0] == 0
    whole, first, second = (result(tmp_path, f"{name}.json") for name in ("whole", "first", "second"))
    assert (first["steps"], second["steps"]) == (10, 10)
    assert first["losses"] + second["losses"] == whole["losses"]


def test_the_number_of_waves_that_auto_chose_stays(here, tmp_path):
    assert here("--waves", "auto", "--steps", 8, "--save", "run", "--json", "first.json")[0] == 0
    save = ("--waves", "auto", "--steps", 12, "--save", "run", "--resume", "auto")
    assert here(*save, "--json", "second.json")[0] == 0
    assert result(tmp_path, "first.json")["waves"] == result(tmp_path, "second.json")["waves"]


def test_one_may_go_back(here, tmp_path):
    assert here("--steps", 12, "--save", "run", "--every", 4, "--keep", 3)[0] == 0
    assert here("--steps", 6, "--save", "run", "--resume", 4, "--keep", 3)[0] == 0
    assert names(tmp_path / "run") == ["step-00000004", "step-00000006"]


def test_auto_begins_where_there_is_nothing(here, tmp_path):
    assert here("--steps", 4, "--save", "run", "--resume", "auto", "--json", "out.json") == (0, "")
    assert result(tmp_path, "out.json")["resumed_from"] is None
    assert names(tmp_path / "run") == ["step-00000004"]


def test_a_torn_checkpoint_is_named_and_left_out(here, tmp_path):
    assert here("--steps", 8, "--save", "run", "--every", 4)[0] == 0
    (tmp_path / "run" / "step-00000008" / ".metadata").unlink()
    code, printed = here("--steps", 8, "--save", "run", "--resume", "auto", "--json", "out.json")
    assert code == 0
    assert set(printed.splitlines()) == {"wavelet: run/step-00000008 is torn, it has no .metadata: it is left out."}
    assert result(tmp_path, "out.json")["resumed_from"] == 4
    assert names(tmp_path / "run") == ["step-00000004", "step-00000008"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--save", "run"], "holds checkpoints (the newest of step 4): add --resume auto"),
        (["--save", "run", "--resume", "never"], "or --force to start afresh"),
        (["--save", "run", "--resume", "3"], "holds no checkpoint of step 3: there are 4"),
        (["--save", "run", "--resume", "newest"], "give auto, never or the step"),
        (["--save", "run", "--resume", "auto", "--update", "delayed"], "with update neighbour, and this run has"),
        (["--save", "run", "--resume", "auto", "--waves", "1"], "with waves 2, and this run has waves 1"),
        (["--save", "run", "--resume", "auto", "--seed", "3"], "with seed 0, and this run has seed 3"),
        (["--save", "run", "--resume", "auto", "--accumulate", "2"], "with accumulate 1, and"),
        (["--save", "run", "--resume", "auto", "--batch-size", "4"], "with samples per batch 8, and"),
        (["--save", "run", "--every", "0"], "--every"),
        (["--save", "run", "--keep", "0"], "--keep"),
        (["--save", "small.py"], "small.py is a file: give a folder"),
        (["--save", "small.py/run"], "the folder cannot be written (Not a directory)"),
        (["--every", "3", "--keep", "2"], "--every and --keep belong to --save"),
        (["--resume", "auto"], "--resume belongs to --save"),
        (["--save", "run", "--plain"], "does not know --save"),
    ],
)
def test_refusals(arguments, sentence, here, tmp_path):
    assert here("--steps", 4, "--save", "run")[0] == 0
    code, printed = here("--steps", 8, *arguments)
    assert code == 2
    assert sentence in printed
    assert len(printed.splitlines()) == 1
    assert names(tmp_path / "run") == ["step-00000004"]


def test_a_checkpoint_of_another_job_or_model_is_refused(here, path, tmp_path):
    assert here("--steps", 4, "--save", "run")[0] == 0
    (tmp_path / "small.py").write_text(JOB.replace("scheduler=", 'name="other", scheduler='))
    code, printed = here("--steps", 8, "--save", "run", "--resume", "auto")
    assert (code, "with job small, and this run has job other" in printed) == (2, True), printed
    (tmp_path / "small.py").write_text(JOB.replace("4, 8)", "4, 9)").replace("1d(8)", "1d(9)").replace("(8, ", "(9, "))
    code, printed = here("--steps", 8, "--save", "run", "--resume", "auto")
    assert (code, "other parameters" in printed) == (2, True), printed
    (tmp_path / "small.py").write_text(JOB.replace("optim.Adam", "optim.SGD"))
    code, printed = here("--steps", 8, "--save", "run", "--resume", "auto")
    assert (code, "with optimizer Adam, and this run has optimizer SGD" in printed) == (2, True), printed


def test_force_starts_afresh(here, tmp_path):
    assert here("--steps", 8, "--save", "run", "--every", 4)[0] == 0
    assert here("--steps", 3, "--save", "run", "--force", "--json", "out.json")[0] == 0
    assert names(tmp_path / "run") == ["step-00000003"]
    assert result(tmp_path, "out.json")["resumed_from"] is None


def test_a_disk_that_is_full(here, tmp_path, monkeypatch):
    from tests.checkpoints.folders import refuse_writing

    assert here("--steps", 4, "--save", "run")[0] == 0
    with monkeypatch.context() as patch:
        refuse_writing(patch)
        code, printed = here("--steps", 8, "--save", "run", "--resume", "auto")
    assert code == 1
    assert "step 8 was not saved in run (No space left on device)" in printed.splitlines()[-1]
    assert names(tmp_path / "run") == ["step-00000004"]


UNEVEN = JOB.replace("for x in torch.randn(40, 4)", 'for x in torch.randn(24 if os.environ["RANK"] == "1" else 40, 4)')


@pytest.mark.distributed
def test_ranks_with_loaders_of_other_lengths(tmp_path):
    """Five and three batches a pass: all save together as long as all have batches, and behind the last of all."""
    (tmp_path / "uneven.py").write_text("import os\n" + UNEVEN)

    def train(*arguments):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*launch, "-m", "wavelet", "train", "uneven.py", "--save", "run", "--every", "3", "--keep", "9"]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(SOURCES)}
        options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 200}
        done = subprocess.run([*command, *arguments], check=False, **options)
        assert done.returncode == 0, done.stderr

    train("--epochs", "2", "--json", "whole.json")
    assert names(tmp_path / "run") == [f"step-{step:08d}" for step in (3, 6, 10)]
    train("--epochs", "3", "--resume", "auto", "--json", "longer.json")
    assert names(tmp_path / "run") == [f"step-{step:08d}" for step in (3, 6, 10, 12, 15)]
    train("--epochs", "2", "--resume", "3", "--json", "again.json")
    assert names(tmp_path / "run") == [f"step-{step:08d}" for step in (3, 6, 10)]
    whole, longer, again = (result(tmp_path, f"{name}.json") for name in ("whole", "longer", "again"))
    assert (longer["resumed_from"], longer["steps"]) == (10, 5)
    assert again["losses"] == whole["losses"][3:]
    assert again["validation_loss"] == whole["validation_loss"]


def started(path, tmp_path, *arguments):
    command = [sys.executable, "-m", "wavelet", "train", path, "--save", "run", *map(str, arguments)]
    return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_checkpoints(folder, process, above=0):
    """Until there is one of a step above; gives its step."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None:
        steps = [int(path.name[5:]) for path in folder.glob("step-*")]
        if steps and max(steps) > above:
            return max(steps)
        time.sleep(0.01)
    raise AssertionError(process.communicate(timeout=60))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("seed", range(2))
def test_interrupted_at_a_random_moment(seed, path, tmp_path):
    """Ctrl-C, most likely while a checkpoint is being written: what is there is whole, and nothing else is."""
    process = started(path, tmp_path, "--steps", 100_000_000, "--every", 1)
    wait_for_checkpoints(tmp_path / "run", process)
    time.sleep(random.Random(seed).random() * 0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "wavelet: interrupted\n")
    left = names(tmp_path / "run")
    assert left
    assert all(name.startswith("step-") for name in left)
    checkpoints = library.Checkpoints(tmp_path / "run")
    for name in left:
        assert checkpoints.load(int(name[5:])).values["run"]["job"] == "small"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_killed_and_resumed(path, tmp_path, wavelet):
    """kill -9 twice, whatever the process is doing; the one that ends has the result of one that lived."""
    process = started(path, tmp_path, "--steps", 100_000_000, "--every", 1, "--resume", "auto")
    reached = wait_for_checkpoints(tmp_path / "run", process, above=10)
    process.kill()
    process.communicate(timeout=60)
    process = started(path, tmp_path, "--steps", 100_000_000, "--every", 1, "--resume", "auto")
    reached = wait_for_checkpoints(tmp_path / "run", process, above=reached + 10)
    process.kill()
    process.communicate(timeout=60)
    newest = library.Checkpoints(tmp_path / "run").latest()
    assert newest >= reached
    end = ("--steps", newest + 10)
    done = wavelet("train", path, "--save", "run", *end, "--resume", "auto", "--json", "killed.json")
    assert done.returncode == 0, done.stderr
    assert wavelet("train", path, *end, "--json", "whole.json").returncode == 0
    killed, whole = result(tmp_path, "killed.json"), result(tmp_path, "whole.json")
    assert killed["losses"] == whole["losses"][killed["resumed_from"] :]
    assert killed["validation_loss"] == whole["validation_loss"]
