"""`wavelet train`: what it shows and writes, what it refuses, and how it fails."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from .conftest import write_job

FIELDS = {
    *("schema_version", "command", "machine", "versions", "job", "seed", "samples_per_batch", "threads", "compile"),
    *("waves", "update", "accumulate", "resync", "steps", "samples", "timed_steps", "timed_seconds"),
    *("samples_per_second", "training_loss", "validation_loss", "validation_accuracy", "peak_resident_bytes", "losses"),
    *("budget", "plan", "resumed_from", "ranks", "exchange"),
}


def test_waves(wavelet, tiny, tmp_path):
    done = wavelet("train", tiny, "--steps", 40, "--update", "synchronous", "--threads", 1, "--json", "out.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tiny: 2 waves, synchronous" in done.stdout
    assert all(name in done.stdout for name in ("samples/s", "training loss", "validation loss", "peak resident"))
    document = json.loads((tmp_path / "out.json").read_text())
    assert document.keys() == FIELDS
    wanted = {"schema_version": 1, "command": "train", "job": "tiny", "waves": 2, "update": "synchronous"}
    wanted |= {"threads": 1, "steps": 40, "samples": 320, "timed_steps": 34, "samples_per_batch": 8, "resync": "auto"}
    assert {name: document[name] for name in wanted} == wanted
    assert len(document["losses"]) == 40
    assert document["training_loss"] == pytest.approx(sum(document["losses"][-10:]) / 10)
    assert document["validation_loss"] < document["losses"][0]
    rate = document["timed_steps"] * 8 / document["timed_seconds"]
    assert document["samples_per_second"] == pytest.approx(rate)


def test_plain_loop_with_accumulation_equals_synchronous_waves(wavelet, tiny, tmp_path):
    common = ("train", tiny, "--epochs", 3, "--batch-size", 4, "--threads", 1, "--seed", 5)
    assert wavelet(*common, "--plain", "--accumulate", 2, "--json", "plain.json").returncode == 0
    assert wavelet(*common, "--update", "synchronous", "--json", "waves.json").returncode == 0
    plain, waves = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("plain", "waves"))
    assert plain["steps"] == 24
    assert (plain["update"], plain["waves"], plain["resync"]) == ("plain", 1, None)
    assert plain["losses"] == waves["losses"]
    assert plain["validation_loss"] == waves["validation_loss"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["char-lstn"], "did you mean char-lstm?"),
        (["{tiny}", "--waves", "0"], "--waves"),
        (["{tiny}", "--update", "neighbor"], "'neighbor' is not one of 'neighbour', 'synchronous', 'delayed'"),
        (["{tiny}", "--stepz", "3"], "--stepz"),
        (["{tiny}", "--batch-size", "0"], "--batch-size"),
        (["char-lstm", "--batch-size", "100000000"], "batch_size=100000000 is not possible"),
        (["{tiny}", "--json", "missing/out.json"], "there is no folder missing"),
    ],
)
def test_refusals_in_a_process(refused, tiny, arguments, sentence):
    assert sentence in refused("train", *(argument.format(tiny=tiny) for argument in arguments))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "--steps"),
        (["--seed", "-1"], "--seed"),
        (["--accumulate", "0"], "--accumulate"),
        (["--threads", "none"], "--threads"),
        (["--resync", "sometimes"], "give auto, none or a whole number from 1"),
        (["--resync", "0"], "give auto, none or a whole number from 1"),
        (["--resync", "4", "--update", "delayed"], "--resync belongs to --update neighbour"),
        (["--steps", "3", "--epochs", "1"], "--steps or --epochs, not both"),
        (["--plain", "--waves", "3", "--update", "delayed"], "does not know --waves and --update"),
        (["--json", "old.json"], "old.json exists; add --force"),
        (["--json", "."], "is a folder"),
    ],
)
def test_refusals(tiny, tmp_path, monkeypatch, capsys, arguments, sentence):
    from wavelet.cli.app import run

    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.json").write_text("old")
    assert run(["train", tiny, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert len(printed.err.splitlines()) == 1
    assert (tmp_path / "old.json").read_text() == "old"


def test_what_older_versions_of_typer_make_of_ctrl_c(tiny, monkeypatch, capsys):
    import typer

    from wavelet.cli import train
    from wavelet.cli.app import run

    def interrupted(*arguments, **named):
        raise typer.Abort

    monkeypatch.setattr(train, "run", interrupted)
    assert run(["train", tiny]) == 130
    assert capsys.readouterr().err == "wavelet: interrupted\n"


def test_a_job_file_that_raises_is_shown_with_its_traceback(wavelet, tmp_path):
    done = wavelet("train", write_job(tmp_path / "broken.py", first='raise KeyError("my mistake")'))
    assert done.returncode == 1
    assert 'broken.py", line 8, in job' in done.stderr
    assert done.stderr.splitlines()[-1] == "wavelet: broken.py raised KeyError: 'my mistake'"


def test_a_loss_that_raises_is_shown_with_its_traceback(wavelet, tmp_path):
    done = wavelet("train", write_job(tmp_path / "late.py", loss="1 / 0"))
    assert done.returncode == 1
    assert 'late.py", line' in done.stderr
    assert "typer" not in done.stderr
    assert done.stderr.splitlines()[-1] == "wavelet: the run failed: ZeroDivisionError: division by zero"


def test_an_existing_file_is_overwritten_by_force_alone(wavelet, tiny, tmp_path):
    (tmp_path / "out.json").write_text("old")
    assert wavelet("train", tiny, "--json", "out.json", "--force").returncode == 0
    assert json.loads((tmp_path / "out.json").read_text())["command"] == "train"


def test_a_validation_that_raises_loses_nothing(wavelet, tmp_path):
    path = write_job(tmp_path / "late.py", loss="mse_loss(model(batch[0]), batch[1]) if model.training else 1 / 0")
    done = wavelet("train", path, "--json", "out.json")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "wavelet: the run failed: ZeroDivisionError: division by zero"
    assert "samples/s" in done.stdout
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["steps"] == len(result["losses"]) == 4
    assert result["validation_loss"] is None


def test_a_closed_pipe_and_a_poor_terminal_lose_nothing(tiny, tmp_path):
    command = f"{sys.executable} -m wavelet train {tiny} --json"
    subprocess.run(f"{command} closed.json | true", shell=True, cwd=tmp_path, stderr=subprocess.DEVNULL, check=True)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    subprocess.run(f"{command} ascii.json", shell=True, cwd=tmp_path, env=environment, check=True)
    for name in ("closed.json", "ascii.json"):
        assert json.loads((tmp_path / name).read_text())["steps"] == 4


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_during_training(tiny, tmp_path):
    started = tmp_path / "started"
    path = write_job(tmp_path / "long.py", first=f"open({str(started)!r}, 'w').close()")
    process = subprocess.Popen(
        [sys.executable, "-m", "wavelet", "train", path, "--steps", "100000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == ("", "wavelet: interrupted\n")
