"""`wavelet profile`, `plan`, `advise`, and what `train` does under a budget."""

import json

import pytest

from wavelet import Plan, Profile
from wavelet.cli.advise import judge


def test_profile_prints_the_chain_and_writes_it(wavelet, tiny, tmp_path):
    done = wavelet("profile", tiny, "--threads", 1, "--json", "p.json", "--report", "p.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert "starts at" in done.stdout
    assert "samples" not in done.stderr
    document = json.loads((tmp_path / "p.json").read_text())
    found = Profile.from_json(document["profile"])
    assert str(found) in done.stdout
    assert set(found.timings) == {1, 2}
    assert found.samples == 8
    assert found.smaller.samples == 4
    assert "<title>" in (tmp_path / "p.html").read_text()


def test_plan_prints_a_schedule_and_writes_it(wavelet, tiny, tmp_path):
    done = wavelet("plan", tiny, "--budget", "1.5x", "--waves", 2, "--threads", 1, "--json", "p.json")
    assert (done.returncode, done.stderr) == (0, "")
    made = Plan.from_json(json.loads((tmp_path / "p.json").read_text())["plan"])
    assert made.waves == 2
    assert made.peak_step_bytes <= 1.5 * made.one_wave_step_bytes
    assert "step memory, never more than" in done.stdout


def test_advise_says_what_to_use(wavelet, tiny, tmp_path):
    done = wavelet("advise", tiny, "--seconds", 0.1, "--threads", 1, "--json", "a.json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["advice"] in done.stdout
    assert [system["system"] for system in document["systems"]] == ["ordinary loop", "one wave", "two waves"]


@pytest.mark.parametrize(
    ("rates", "use", "words"),
    [
        ((100, 98, 130), 2, "Use two waves: they train at 1.30"),
        ((100, 98, 80), "plain", "Waves do not pay here: two waves reach 0.80"),
        ((100, 99, 101), "plain", "Waves do not pay here"),
        ((100, 110, 111), 1, "A second wave does not pay here"),
    ],
)
def test_the_advice(rates, use, words):
    found, gain, sentence = judge(dict(zip(("plain", 1, 2), rates, strict=True)))
    assert found == use
    assert words in sentence
    assert gain == (1.0 if use == "plain" else max(rates[2], rates[1]) / 100 if use == 2 else rates[1] / 100)


def test_train_under_a_budget_with_pictures(wavelet, tiny, tmp_path):
    files = ("--json", "t.json", "--report", "t.html", "--trace", "t.trace")
    done = wavelet("train", tiny, "--steps", 60, "--threads", 1, "--budget", "1.5x", *files)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["budget"] == "1.5x"
    assert Plan.from_json(document["plan"]).waves == 2
    assert json.loads((tmp_path / "t.trace").read_text())["traceEvents"]
    assert "tiny" in (tmp_path / "t.html").read_text()
    freely = wavelet("train", tiny, "--steps", 60, "--threads", 1, "--json", "free.json")
    assert freely.returncode == 0
    assert json.loads((tmp_path / "free.json").read_text())["losses"] == document["losses"]


def test_waves_auto(wavelet, tiny, tmp_path):
    done = wavelet("train", tiny, "--steps", 20, "--threads", 1, "--waves", "auto", "--json", "t.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "t.json").read_text())["waves"] in (1, 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plan", "{tiny}"], "Missing option '--budget'"),
        (["plan", "{tiny}", "--budget", "much"], "budget='much' makes no sense"),
        (["plan", "{tiny}", "--budget", "1KiB"], "one wave alone needs"),
        (["plan", "{tiny}", "--budget", "1x", "--waves", "0"], "--waves 0 makes no sense"),
        (["profile", "{tiny}", "--waves", "4"], "--waves 4 makes no sense"),
        (["profile", "{tiny}", "--report", "missing/p.html"], "there is no folder missing"),
        (["train", "{tiny}", "--budget", "0.5x"], "less than one wave needs"),
        (["train", "{tiny}", "--steps", "20", "--budget", "1KiB"], "one wave alone needs"),
        (["train", "{tiny}", "--report", "same", "--trace", "same"], "need a file each"),
        (["train", "{tiny}", "--waves", "two"], "--waves two makes no sense"),
        (["train", "{tiny}", "--plain", "--budget", "1x"], "--plain trains the ordinary loop"),
    ],
)
def test_refusals(refused, tiny, arguments, sentence):
    assert sentence in refused(*(argument.format(tiny=tiny) for argument in arguments))
