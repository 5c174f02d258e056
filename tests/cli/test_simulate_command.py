"""`wavelet simulate`: tables, JSON and page, from a file alone, from a profile, and from a job."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("tomllib", reason="TOML needs Python 3.11")

CLUSTER = '[cluster]\nhosts = 4\nbandwidth = "100mbit"\nlatency = "1ms"\n'
MODEL = '[model]\nname = "net"\nforward = [0.1, 0.2]\nbackward = [0.2, 0.4]\nbytes = [4e6, 8e6]\nsamples = 8\n'
NAMES = ["naive", "DDP", "Wavelet (K=2)", "local SGD (H=4)", "DreamDDP (H=4)"]


@pytest.fixture
def described(tmp_path):
    (tmp_path / "c.toml").write_text(CLUSTER + MODEL)
    (tmp_path / "bare.toml").write_text(CLUSTER)
    (tmp_path / "wrong.toml").write_text(CLUSTER.replace("4", "0"))
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "text.json").write_text("text")
    return "c.toml"


def test_a_file_alone(wavelet, described, tmp_path):
    files = ("--json", "s.json", "--report", "s.html")
    done = wavelet("simulate", described, "--period", 4, "--ranks", "1,4,16", *files)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.partition("Of those")[0].splitlines())) <= 80
    for words in ("net on 4 hosts, 100 Mbit/s, ring", "Efficiency over ranks", "is the fastest", *NAMES):
        assert words in done.stdout
    document = json.loads((tmp_path / "s.json").read_text())
    assert document["command"] == "simulate"
    assert [outcome["strategy"] for outcome in document["outcomes"]] == NAMES
    by_name = {outcome["strategy"]: outcome for outcome in document["outcomes"]}
    # 12 MB over 4 ranks: 6 messages of 3 MB, at 12.5 MB/s, each 1 ms late.
    exchange = 6 * (0.001 + 3 / 12.5)
    assert by_name["naive"]["seconds"] == pytest.approx(0.9 + exchange)
    assert by_name["naive"]["sent_bytes"] == pytest.approx(18e6)
    assert by_name["local SGD (H=4)"]["seconds"] == pytest.approx(0.9 + exchange / 4)
    assert by_name["DDP"]["samples_per_second"] == pytest.approx(4 * 8 / by_name["DDP"]["seconds"])
    assert [entry["num_ranks"] for entry in document["over_ranks"][::5]] == [1, 4, 16]
    assert document["over_ranks"][5:10] == document["outcomes"]
    assert len({entry["bytes_per_second"] for entry in document["over_bandwidths"]}) == 13
    assert "<title>net on 4 hosts" in (tmp_path / "s.html").read_text()


def test_over_bandwidths(wavelet, described, tmp_path):
    """A slow link, the file's own, and one that costs nothing to speak of: there every gradient can be sent."""
    files = ("--json", "s.json", "--report", "s.html")
    done = wavelet("simulate", described, "--period", 4, "--rates", "100gbit,10mbit,100mbit", *files)
    assert (done.returncode, done.stderr) == (0, "")
    table = done.stdout.partition("Samples/s over bandwidths")[2]
    assert max(map(len, table.partition("Take ")[0].splitlines())) <= 80
    assert "DDP at 100 Gbit/s: the first in the table's order" in table
    document = json.loads((tmp_path / "s.json").read_text())
    found = document["over_bandwidths"]
    assert [entry["bytes_per_second"] for entry in found[::5]] == [1.25e6, 12.5e6, 12.5e9]
    assert [{**entry, "bytes_per_second": 0} for entry in found[5:10]] == [
        {"bytes_per_second": 0, **outcome} for outcome in document["outcomes"]
    ]
    assert "<td>DDP</td>" in (tmp_path / "s.html").read_text(), "the page has the table over the same bandwidths"


def test_a_job_and_its_profile(wavelet, described, tiny, tmp_path):
    """With a budget too, whose interlock comes from the profile; the job takes the place of [model]."""
    assert wavelet("profile", tiny, "--threads", 1, "--json", "p.json").returncode == 0
    done = wavelet("simulate", described, "p.json", "--waves", "1,2", "--budget", "1.5x", "--json", "s.json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads((tmp_path / "s.json").read_text())
    profile = json.loads((tmp_path / "p.json").read_text())["profile"]
    assert document["model"]["name"] == "p"
    assert {row["waves"] for row in document["model"]["layers"]} == {1, 2}
    assert document["model"]["layers"][0]["bytes"] == profile["bytes"]["gradients"]
    assert document["over_ranks"] is document["over_bandwidths"] is None
    done = wavelet("simulate", "bare.toml", tiny, "--threads", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert "tiny on 4 hosts" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Missing argument 'CLUSTER'"),
        (["missing.toml"], "missing.toml cannot be read"),
        (["wrong.toml"], "wrong.toml: [cluster] hosts is 0"),
        (["bare.toml"], "bare.toml has no [model]: give one, or a JOB, or the JSON of wavelet profile"),
        (["c.toml", "missing.json"], "missing.json cannot be read"),
        (["c.toml", "empty.json"], "empty.json has no profile in it"),
        (["c.toml", "text.json"], "text.json is no JSON"),
        (["c.toml", "no-such-job"], "no-such-job"),
        (["c.toml", "--period", "0"], "Invalid value for '--period'"),
        (["c.toml", "--waves", "4"], "--waves 4 makes no sense"),
        (["c.toml", "--ranks", "2,x"], "--ranks 2,x makes no sense: give numbers from 1 to 65,536"),
        (["c.toml", "--ranks", "0"], "--ranks 0 makes no sense"),
        (
            ["c.toml", "--rates", "1gbit,5"],
            "--rates 1gbit,5: the rate '5' makes no sense: give a number with kbit, mbit",
        ),
        (["c.toml", "--budget", "1x"], "--budget needs the memory of each layer"),
        (["c.toml", "--report", "nowhere/s.html"], "there is no folder nowhere"),
    ],
)
def test_refusals(refused, described, arguments, sentence):
    assert sentence in refused("simulate", *arguments)


def test_a_profile_without_the_waves_is_refused(refused, wavelet, described, tiny):
    assert wavelet("profile", tiny, "--threads", 1, "--waves", "1", "--json", "p.json").returncode == 0
    sentence = refused("simulate", described, "p.json")
    assert "was not measured with waves=2: profile the job with --waves 1,2" in sentence


ROOT = Path(__file__).parents[2]


def test_the_page_shows_what_the_example_gives(wavelet):
    done = wavelet("simulate", ROOT / "examples" / "cluster.toml")
    assert (done.returncode, done.stderr) == (0, "")
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    page = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    table = page[page.index("resnet-50 on 16") :].partition("\n```")[0]
    assert table == "\n".join(printed).partition("\n\nOf those")[0]


def test_the_page_says_where_the_example_takes_what(wavelet, tmp_path, monkeypatch):
    """The picture of "Which strategy for my network?" is described as its command, which the page gives, finds it."""
    page = (ROOT / "docs" / "which-strategy.md").read_text(encoding="utf-8")
    command = page.partition("wavelet simulate ")[2].partition("\npython")[0].replace("\\\n", "")
    arguments = command.replace("examples/", f"{ROOT}/examples/").split()
    done = wavelet("simulate", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    advice = done.stdout.partition("Take ")[2].partition(":")[0]
    assert advice == (
        "local SGD (H=10) at 10 Mbit/s, DreamDDP (H=10) from 20 Mbit/s to 1 Gbit/s, Wavelet (K=2) at 2 Gbit/s, "
        "DDP from 5 Gbit/s to 100 Gbit/s"
    )
    described = " ".join(page.partition("![")[2].partition("]")[0].split())
    for words in ("at 10 Mbit/s", "from 20 Mbit/s to 1 Gbit/s", "at 2 Gbit/s", "from 5 Gbit/s on"):
        assert words in described
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "pictures"))
    picture = pytest.importorskip("which_strategy", exc_type=ImportError)
    rows = picture.rows_of(json.loads((tmp_path / "simulated.json").read_text()))
    labels = [text.get_text() for text in picture.draw(rows).axes[0].texts]
    assert labels == ["local\nSGD", "DreamDDP", "Wavelet", "DDP"]


def test_fields_and_entries_are_documented():
    from wavelet.planning import cluster_file
    from wavelet.planning.comparison import Outcome

    jobs, page = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("jobs.md", "simulate.md"))
    assert not [field.name for field in fields(Outcome) if f"`{field.name}`" not in jobs]
    assert not [name for name in (*cluster_file._CLUSTER, *cluster_file._MODEL) if f"`{name}`" not in page]
