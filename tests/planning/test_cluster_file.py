"""Clusters in TOML: what is read, and that each mistake is refused in one sentence."""

from pathlib import Path

import pytest

from tests.planning.test_plan import profile_of
from wavelet.planning import Interlock
from wavelet.planning.cluster_file import parse_cluster, read_cluster
from wavelet.planning.costs import Link
from wavelet.planning.layers import Layers, layers_of
from wavelet.profiling.profile import NO_CONTENTION, Contention

pytest.importorskip("tomllib", reason="TOML needs Python 3.11")

CLUSTER = '[cluster]\nhosts = 4\nbandwidth = "100mbit"\nlatency = "1ms"\n'
MODEL = "[model]\nforward = [1, 2]\nbackward = [2, 3.5]\nbytes = [4, 5]\n"


def test_the_least_that_a_file_says():
    found = parse_cluster(CLUSTER)
    assert found.cluster.num_ranks == 4
    assert found.cluster.inter == Link(12.5e6, 1e-3)
    assert (found.cluster.intra, found.cluster.all_reduce, found.cluster.has_stragglers) == (None, "ring", False)
    assert (found.bucket_bytes, found.model) == (25 * 2**20, None)


def test_everything_that_a_file_can_say():
    more = """ranks_per_host = 2
intra_bandwidth = "10gbit"
intra_latency = "10us"
allreduce = "tree"
speeds = [1, 1, 0.5, 2]
straggler_probability = 0.1
straggler_slowdown = 2
seed = 7
cpu_seconds_per_byte = 1e-9
bucket_mb = 0.5
"""
    model = 'name = "net"\nsamples = 8\nupdate = 0.5\ninput = 1\ncopy = 0.25\ncontention = 1.5\n'
    found = parse_cluster(CLUSTER + more + MODEL + model)
    assert found.cluster.intra == Link(1.25e9, pytest.approx(1e-5))
    assert found.cluster.rank_speeds.tolist() == [1, 1, 1, 1, 0.5, 0.5, 2, 2]
    assert (found.cluster.seed, found.cluster.cpu_seconds_per_byte, found.bucket_bytes) == (7, 1e-9, 2**19)
    assert found.cluster.has_stragglers
    contention = Contention(1.5, 1.5)
    assert found.model == Layers((1.0, 2.0), (2.0, 3.5), (4.0, 5.0), 0.5, 1.0, 0.25, 8, contention)
    assert found.name == "net"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[cluster", "this is no TOML"),
        ("", r"there is no \[cluster\]"),
        ("cluster = 3", "cluster is no table"),
        (CLUSTER + "[hosts]", r"\[hosts\] is not known: there are \[cluster\] and \[model\]"),
        (CLUSTER + "rank = 3", r"\[cluster\] rank is not known: use hosts, ranks_per_host"),
        ("[cluster]\nhosts = 4", r"\[cluster\] has no bandwidth: it needs hosts, bandwidth and latency"),
        (CLUSTER.replace("4", "0"), r"\[cluster\] hosts is 0: it must be at least 1"),
        (CLUSTER.replace("4", "70000"), "hosts × ranks_per_host is 70000: it must be at most 65,536"),
        (CLUSTER.replace("4", "4.5"), "hosts is 4.5: it must be a whole number"),
        (CLUSTER.replace("4", "true"), "hosts is True: it must be a whole number"),
        (CLUSTER.replace('"100mbit"', "100"), "bandwidth is 100: it must be text in quotes"),
        (CLUSTER.replace("100mbit", "100MB"), "the rate '100MB' makes no sense: give a number with kbit"),
        (CLUSTER.replace("1ms", "1 ms"), "the time '1 ms' makes no sense: give a number with s, ms"),
        (CLUSTER + "ranks_per_host = 0", "ranks_per_host is 0: it must be at least 1"),
        (CLUSTER + 'allreduce = "star"', 'allreduce is \'star\': it must be "ring" or "tree"'),
        (CLUSTER + 'intra_latency = "1ms"', "one of intra_bandwidth and intra_latency: give both, or neither"),
        (CLUSTER + "speeds = 2", "speeds is 2: it must be a list of numbers"),
        (CLUSTER + "speeds = []", r"speeds is \[\]: it must be a list of numbers"),
        (CLUSTER + "speeds = [1, 2]", "speeds has 2 numbers for 4 hosts: give one for each host"),
        (CLUSTER + "speeds = [1, 1, 1, 0]", "a speed is 0: it must be above 0"),
        (CLUSTER + 'speeds = [1, 1, 1, "1"]', "speeds, entry 4, is '1': it must be a number"),
        (CLUSTER + "straggler_probability = 0.1", "one of straggler_probability and straggler_slowdown"),
        (CLUSTER + "straggler_probability = 2\nstraggler_slowdown = 2", "straggler_probability is 2: .* from 0 to 1"),
        (CLUSTER + "straggler_probability = 1\nstraggler_slowdown = 0.5", "straggler_slowdown is 0.5: .* from 1 on"),
        (CLUSTER + "seed = -1", "seed is -1: it must be from 0 on"),
        (CLUSTER + "cpu_seconds_per_byte = nan", "cpu_seconds_per_byte is nan: it must be a finite number"),
        (CLUSTER + "cpu_seconds_per_byte = -1.0", "cpu_seconds_per_byte is -1: it must be from 0 on"),
        (CLUSTER + "bucket_mb = 0", "bucket_mb is 0: it must be above 0"),
        (CLUSTER + "[model]\nforward = [1]", r"\[model\] has no backward: it needs forward, backward and bytes"),
        (CLUSTER + MODEL.replace("[4, 5]", "[4]"), "have 2, 2 and 1 numbers: give one of each for every layer"),
        (CLUSTER + MODEL.replace("3.5", "-3.5"), r"\[model\] seconds and bytes cannot be negative"),
        (CLUSTER + MODEL.replace("3.5", "inf"), r"\[model\] backward, entry 2, is inf: it must be a finite number"),
        (CLUSTER + MODEL + "samples = 0", r"\[model\] samples is 0: a batch has at least 1"),
        (CLUSTER + MODEL + "contention = 0", r"\[model\] contention is 0: it must be above 0, and 1 is none"),
        (CLUSTER + "[model]\nforward = [0]\nbackward = [0]\nbytes = [1]", "take no time at all"),
    ],
)
def test_mistakes(text, sentence):
    with pytest.raises(ValueError, match=sentence) as refusal:
        parse_cluster(text)
    assert "\n" not in str(refusal.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"missing.toml cannot be read"):
        read_cluster(tmp_path / "missing.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"bytes.toml is no text in UTF-8"):
        read_cluster(tmp_path / "bytes.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ValueError, match=r"empty.toml: there is no \[cluster\]"):
        read_cluster(tmp_path / "empty.toml")


def test_the_example_can_be_read():
    found = read_cluster(Path(__file__).parents[2] / "examples" / "cluster.toml")
    assert found.cluster.num_ranks == 16
    assert found.model.size / 4 == pytest.approx(25.5e6, rel=0.01)


def test_layers_of_a_profile():
    """Those of the number of waves; one wave meets nobody, and an interlock brings its own contention."""
    found = profile_of(4, forward=0.4, backward=0.8, contention=Contention(1.5, 1.2), tight=Contention(1.9, 1.4))
    alone = layers_of(found)
    assert (alone.forward, alone.backward) == (pytest.approx((0.1,) * 4), pytest.approx((0.2,) * 4))
    assert (alone.samples, alone.contention, alone.input) == (16, NO_CONTENTION, 0)
    assert layers_of(found, 2).contention == Contention(1.5, 1.2)
    tight = Interlock(((1,), (2,), (3,), (4,)))
    assert layers_of(found, 2, tight).contention == pytest.approx(Contention(1.9, 1.4))
