"""`wavelet bench`: tables, verdict and results; what it refuses."""

import json

import pytest

from .conftest import write_job


@pytest.mark.distributed
def test_everything_but_compiled(wavelet, tiny, tmp_path):
    done = wavelet("bench", tiny, "--steps", 5, "--rounds", 1, "--no-compile", "--update", "neighbour",
                   "--allocators", "glibc", "--json", "out.json")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "tiny under glibc: 6 batches, 1 round" in done.stdout
    assert "Wavelet neighbour: " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    document = json.loads((tmp_path / "out.json").read_text())
    assert document.keys() == {
        *("schema_version", "command", "command_line", "machine", "versions", "options"),
        *("measurements", "failures", "rows", "verdicts", "geometric_means"),
    }
    assert document["command_line"].startswith("wavelet bench ")
    assert document["failures"] == []
    runs = {run["system"]["name"]: run for run in document["measurements"]}
    assert list(runs) == document["options"]["systems"]
    assert {"plain, 1 thread", "Wavelet neighbour", "DDP, 2 processes", "Wavelet, one wave"} <= set(runs)
    assert {run["samples"] for run in runs.values()} == {48}
    one_wave, plain = runs["Wavelet, one wave"], runs["plain, 1 thread"]
    assert one_wave["validation_loss"] == pytest.approx(plain["validation_loss"])
    assert runs["ceiling: 2 × plain"]["validation_loss"] is None
    assert runs["DDP, 2 processes"]["validation_loss"] is not None
    assert runs["DDP, 2 processes"]["peak_resident_bytes"] > 1.5 * plain["peak_resident_bytes"]
    (verdict,) = document["verdicts"]
    assert verdict["best_rule"] == "neighbour"
    assert verdict["compiling_helps"] is None


def test_demo(wavelet, tiny):
    done = wavelet("bench", tiny, "--against", "plain", "--demo", "--rounds", 1, "--seconds", 0.1)
    assert done.returncode == 0
    assert done.stderr == "The first step is done.\n"
    assert "Wavelet neighbour" in done.stdout
    assert "DDP, 2" not in done.stdout
    assert "as a plain loop with 2 times the batch" in done.stdout


def test_a_job_that_only_fails_while_training(wavelet, tmp_path):
    done = wavelet("bench", write_job(tmp_path / "late.py", loss="1 / 0"), "--steps", 4)
    assert done.returncode == 1
    assert 'late.py", line' in done.stderr
    assert done.stderr.splitlines()[-1] == "wavelet: the run failed: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["char-lstn"], "did you mean char-lstm?"),
        (["{tiny}", "--against", "plain,horovod"], "'horovod' is not one of plain, ddp"),
        (["{tiny}", "--waves", "1"], "--waves"),
        (["{tiny}", "--rounds", "0"], "--rounds"),
        (["{tiny}", "--steps", "4", "--seconds", "2"], "--steps or --seconds, not both"),
        (["{tiny}", "--allocators", "hoard"], "'hoard' is not one of"),
        (["{tiny}", "--json", "missing/out.json"], "there is no folder missing"),
        ([], "JOB"),
    ],
)
def test_refusals(tiny, tmp_path, monkeypatch, capsys, arguments, sentence):
    from wavelet.cli.app import run

    monkeypatch.chdir(tmp_path)
    assert run(["bench", *(argument.format(tiny=tiny) for argument in arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rate", "500mbit"], "--rate is of the links between ranks: give --ranks too"),
        (["--ranks", "1"], "--ranks"),
        (["--ranks", "2", "--waves", "2", "--demo"], "--waves, --demo cannot be combined with --ranks"),
        (["--ranks", "2", "--rate", "fast"], "the rate 'fast' makes no sense"),
        (["--ranks", "2", "--rate", "1gbit"], "cannot be had here: it is Tuesday"),
    ],
)
def test_refusals_over_ranks(tiny, monkeypatch, capsys, arguments, sentence):
    from wavelet.cli import bench_ranks
    from wavelet.cli.app import run

    monkeypatch.setattr(bench_ranks, "why_not", lambda: "it is Tuesday")
    assert run(["bench", tiny, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.distributed
def test_over_two_ranks(tiny, tmp_path, monkeypatch, capsys):
    """DDP and the limits; the others have tests of their own."""
    from wavelet.bench import ranks_rounds
    from wavelet.bench.ranks import RankSystem
    from wavelet.cli import bench_ranks
    from wavelet.cli.app import run

    systems = [RankSystem("compute"), RankSystem("all-reduce"), RankSystem("ddp")]
    monkeypatch.setattr(ranks_rounds, "BUCKETS", (25,))
    monkeypatch.setattr(bench_ranks, "choose_rank_systems", lambda tuned: systems)
    target = tmp_path / "out.json"
    assert run(["bench", tiny, "--ranks", "2", "--steps", "3", "--rounds", "1", "--allocators", "glibc",
                "--json", str(target)]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert "tiny under glibc, 2 ranks, loopback: 4 batches a rank, 1 round" in printed
    assert "fp32: Wavelet could not be measured." in printed
    document = json.loads(target.read_text())
    assert document.keys() == {
        *("schema_version", "command", "command_line", "machine", "versions", "options"),
        *("measurements", "failures", "rows", "verdicts", "sent_bytes_are"),
    }
    assert (document["options"]["ranks"], document["sent_bytes_are"]) == (2, "computed")
    assert [run["system"]["name"] for run in document["measurements"]] == [system.name for system in systems]


def test_tcmalloc_is_refused_where_it_is_missing(tiny, monkeypatch, capsys):
    from wavelet.bench import allocators
    from wavelet.cli.app import run

    monkeypatch.setattr(allocators, "find_tcmalloc", lambda: None)
    assert run(["bench", tiny, "--allocators", "tcmalloc"]) == 2
    assert "apt-get install libtcmalloc-minimal4" in capsys.readouterr().err
