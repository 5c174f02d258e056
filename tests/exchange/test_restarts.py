"""Under torchrun: `wavelet train` on several ranks, and a run that survives kill -9 of a rank at random batches."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.failures.restarts import final_weights, same

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_package(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))


def torchrun(*arguments, **environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "wavelet"]
    return subprocess.run(
        [*command, *arguments],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_two_ranks_train_one_model_and_rank_0_speaks(tmp_path):
    target = tmp_path / "out.json"
    run = torchrun("train", "char-lstm", "--steps", "8", "--json", str(target))
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("samples/s") == 1
    found = json.loads(target.read_text())
    assert found["ranks"] == 2
    assert found["samples"] == 2 * 8 * found["samples_per_batch"]


def test_what_makes_no_sense_on_several_ranks_is_said_once():
    for arguments, words in (
        (("train", "char-lstm", "--plain"), "--plain trains on one rank"),
        (("bench", "char-lstm"), "wavelet bench works in one process"),
        (("train", "char-lstm", "--waves", "zero"), "--waves zero makes no sense"),
    ):
        run = torchrun(*arguments)
        assert run.returncode != 0
        assert sum(line.startswith("wavelet") and words in line for line in run.stderr.splitlines()) == 1, run.stderr


def test_a_rank_that_is_killed_again_and_again_changes_no_weight(tmp_path):
    """Two runs, each killed once at a random batch; the benchmark has twenty."""
    expected = final_weights(tmp_path, "undisturbed", "")
    for seed in range(2):
        chance = random.Random(100 + seed)
        fail = f"kill {seed} {chance.randrange(60)} {tmp_path}/killed{seed}"
        found = final_weights(tmp_path, f"run{seed}", fail)
        assert (tmp_path / f"killed{seed}").exists()
        assert same(found, expected)


def test_an_exception_is_shown_by_torchrun_with_its_rank(tmp_path):
    job = str(ROOT / "benchmarks" / "failures" / "mortal.py")
    run = torchrun("train", job, "--steps", "500", FAIL=f"forward 1 20 {tmp_path}/marker")
    assert run.returncode != 0
    assert "wavelet (rank 1): the run failed: KeyError: 'no such sample'" in run.stderr
    assert "rank      : 1" in run.stderr  # torchrun's own table names the first that failed


def test_train_with_a_strategy_shows_it_and_its_plan(tmp_path):
    target = tmp_path / "run.json"
    arguments = ["--exchange", "dreamddp", "--period", "3", "--steps", "20", "--json", str(target)]
    run = torchrun("train", "char-lstm", *arguments)
    assert run.returncode == 0, run.stderr
    assert "2 ranks, DreamDDP(period=3)" in run.stdout
    assert "Partial synchronisation" in run.stdout
    assert json.loads(target.read_text())["exchange"] == "DreamDDP(period=3)"
