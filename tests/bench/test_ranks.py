"""Over ranks: the systems, the arithmetic of limits and ratios with made-up runs, turns, and real processes."""

import json
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from wavelet.bench import launch, ranks_rounds, ranks_worker
from wavelet.bench.hosts import Hosts, why_not
from wavelet.bench.launch import RunFailed
from wavelet.bench.ranks import RankMeasurement, RankPlan, RankResults, RankSystem, choose_rank_systems
from wavelet.bench.ranks import sent_by_ring as sent
from wavelet.bench.ranks_report import about_ranks, rank_document, rank_table
from wavelet.bench.ranks_rounds import calibrate_ranks, measure_ranks, take_rank_turns
from wavelet.bench.ranks_verdict import judge_ranks, make_rank_rows, rank_sentences
from wavelet.bench.ranks_worker import RankSpec
from wavelet.bench.results import Failure
from wavelet.report.tables import as_text

from ..processes import Process

COMPUTE, REDUCE, REDUCE_BF16 = RankSystem("compute"), RankSystem("all-reduce"), RankSystem("all-reduce", "bf16")
DDP, DDP_5, DDP_BF16 = RankSystem("ddp"), RankSystem("ddp", bucket_mb=5), RankSystem("ddp", "bf16")
NO_SYNC = RankSystem("ddp", accumulate=2)
WAVES = RankSystem("waves", waves=2, update="neighbour")
WAVES_BF16 = replace(WAVES, precision="bf16")
SYNCHRONOUS = RankSystem("waves", waves=2, update="synchronous")

SECONDS = {
    COMPUTE: [0.20, 0.20, 0.25],
    REDUCE: [0.32, 0.30, 0.40],
    REDUCE_BF16: [0.16],
    DDP: [0.50, 0.52, 0.48],
    DDP_5: [0.40, 0.41, 0.39],
    WAVES: [0.32, 0.50, 0.31],
    DDP_BF16: [0.25],
    WAVES_BF16: [0.40],
    NO_SYNC: [0.30],
    SYNCHRONOUS: [0.25],
}
PLAN = RankPlan("a", "a.py", ranks=2, rate="500mbit", batches=10, rounds=2, seed=7)


def made_up(seconds=SECONDS, failures=(), plan=PLAN):
    runs = [
        RankMeasurement(
            system, number, 7, 10, 160, 10 * time, time, 21e6 * system.exchanges, 1.0,
            3.0 if system.trains else None, None, 2**20,
        )
        for system, times in seconds.items()
        for number, time in enumerate(times)
    ]  # fmt: skip
    systems = [*seconds, *(system for system in failures if system not in seconds)]
    return RankResults(plan, "glibc", systems, runs, [Failure(system, "why", "details") for system in failures])


def test_what_is_compared():
    systems = choose_rank_systems({"fp32": 5, "bf16": 100})
    assert [system.name for system in systems] == [
        "compute alone",
        "all-reduce alone",
        "DDP",
        "DDP, 5 MB",
        "DDP, 5 MB, static",
        "DDP, 5 MB, views",
        "Wavelet neighbour",
        "all-reduce alone, bf16",
        "DDP, bf16",
        "DDP, bf16, 100 MB",
        "Wavelet neighbour, bf16",
        "DDP, no_sync 2",
        "Wavelet synchronous",
    ]
    untuned = choose_rank_systems({"fp32": None, "bf16": None})
    assert len(untuned) == len(set(untuned)) == 11, "nothing twice"
    unlike = [system.name for system in systems if system.trains and not system.like_for_like]
    assert unlike == ["DDP, no_sync 2", "Wavelet synchronous"]


def test_what_a_ring_sends():
    assert sent(20_000_000, 2, DDP) == 20_000_000
    assert sent(20_000_000, 4, DDP_BF16) == 15_000_000
    assert sent(20_000_000, 2, NO_SYNC) == sent(20_000_000, 2, SYNCHRONOUS) == 10_000_000
    assert sent(20_000_000, 2, COMPUTE) == 0


def test_ratios_and_limits():
    rows = {row.system: row for row in make_rank_rows(made_up())}
    assert [system for system, row in rows.items() if row.best] == [DDP_5, DDP_BF16]
    assert rows[WAVES].seconds_per_batch == 0.32
    assert (rows[WAVES].lowest, rows[WAVES].highest) == (0.31, 0.5)
    assert rows[WAVES].ratio == pytest.approx(0.40 / 0.32)
    assert rows[DDP].ratio == pytest.approx(0.40 / 0.50)
    assert rows[WAVES_BF16].ratio == pytest.approx(0.25 / 0.40), "bf16 against bf16"
    assert rows[WAVES].of_limit == pytest.approx(0.32 / 0.32), "the exchange takes longer than compute"
    assert rows[WAVES_BF16].of_limit == pytest.approx(0.20 / 0.40), "in bf16 compute does"
    assert rows[NO_SYNC].of_limit == pytest.approx(0.20 / 0.30), "half an exchange a batch"
    for limit in (COMPUTE, REDUCE, REDUCE_BF16):
        assert (rows[limit].ratio, rows[limit].of_limit, rows[limit].validation_loss) == (None, None, None)


def test_verdicts():
    fp32, bf16 = judge_ranks(made_up())
    assert (fp32.best_ddp, fp32.wavelet, fp32.limited_by) == ("DDP, 5 MB", "Wavelet neighbour", "all-reduce")
    assert fp32.over_ddp == pytest.approx(1.25)
    assert (fp32.limit_seconds, fp32.of_limit) == (0.32, pytest.approx(1.0))
    assert fp32.ddp_of_limit == pytest.approx(0.8)
    assert (bf16.limited_by, bf16.limit_seconds) == ("compute", 0.20)
    assert rank_sentences([fp32, bf16]) == [
        "Wavelet neighbour: 1.25 × the best DDP (DDP, 5 MB).",
        "The limit in fp32 is set by all-reduce: Wavelet has 100% of it, DDP 80%.",
        "Wavelet neighbour, bf16: 0.62 × the best DDP (DDP, bf16): it loses.",
        "The limit in bf16 is set by compute: Wavelet has 50% of it, DDP 80%.",
    ]


def test_verdicts_without_some_systems():
    results = made_up(failures=[WAVES, DDP_BF16, REDUCE_BF16])
    fp32, bf16 = judge_ranks(results)
    assert (fp32.wavelet, fp32.over_ddp, fp32.ddp_of_limit) == (None, None, pytest.approx(0.8))
    assert (bf16.best_ddp, bf16.limit_seconds, bf16.of_limit) == (None, None, None)
    assert rank_sentences([fp32, bf16]) == ["fp32: Wavelet could not be measured.", "bf16: DDP could not be measured."]
    failing = [row.system for row in make_rank_rows(results) if row.failure == "why"]
    assert failing == [REDUCE_BF16, WAVES, DDP_BF16]
    json.dumps(rank_document([results]))


def test_one_line_a_system_at_80_columns():
    longest = choose_rank_systems({"fp32": 100, "bf16": 100})
    large = {system: [1.2345, 1.1345, 1.3345] for system in longest}
    lines = as_text(rank_table("title", make_rank_rows(made_up(large)))).splitlines()
    assert max(map(len, lines)) <= 80
    for system in longest:
        assert any(line.strip().startswith(system.name + "  ") for line in lines), system.name
    starts = [line.split("  ")[0].strip() for line in lines[4:]]
    assert starts == [
        *("DDP", "DDP, 100 MB", "DDP, 100 MB, static", "DDP, 100 MB, views", "Wavelet neighbour", ""),
        *("DDP, bf16", "DDP, bf16, 100 MB", "Wavelet neighbour, bf16", ""),
        *("DDP, no_sync 2", "Wavelet synchronous", ""),
        *("compute alone", "all-reduce alone", "all-reduce alone, bf16", ""),
    ]


def test_bytes_say_where_they_are_from():
    alone = replace(PLAN, rate=None)
    assert "counted on its link" in about_ranks(PLAN)[1]
    assert "computed, not measured" in about_ranks(alone)[1]
    assert rank_document([made_up()])["sent_bytes_are"] == "measured"
    assert rank_document([made_up(plan=alone)])["sent_bytes_are"] == "computed"


@pytest.fixture
def launches(monkeypatch):
    """Stands in for the processes: DDP is fastest with 25 MB, bf16 fails, and Wavelet too."""
    launched = []

    def run(specs, environment, on_event, *, module, hosts):
        launched.append(specs)
        system = specs[0].system
        if system.precision == "bf16" or system.kind == "waves":
            raise RunFailed("RuntimeError: no", "details")
        seconds = specs[0].steps * (0.1 if system.bucket_mb == 25 else 0.2)
        losses = {"training_loss": 1.0, "validation_loss": 2.0, "validation_accuracy": None}
        result = {"batches": specs[0].steps, "samples": 8, "sent_bytes": 50, "peak_resident_bytes": 100, **losses}
        return [{"start": 1.0 + rank, "end": 1.0 + rank + seconds, **result} for rank in range(len(specs))]

    monkeypatch.setattr(ranks_rounds, "run_side_by_side", run)
    return launched


def test_turns_and_equal_batches(launches):
    results = RankResults(PLAN, "glibc", [COMPUTE, DDP, WAVES])
    heard = []
    take_rank_turns(results, None, lambda number, system, event: heard.append((number, system, event["event"])))
    order = [(specs[0].system, specs[0].seed) for specs in launches]
    assert order == [(COMPUTE, 7), (DDP, 7), (WAVES, 7), (COMPUTE, 8), (DDP, 8)]
    assert len(heard) == 6
    assert [failure.system for failure in results.failures] == [WAVES]
    for specs in launches:
        assert [(spec.rank, spec.link) for spec in specs] == [(0, None), (1, None)]
        assert {(spec.steps, spec.warmup) for spec in specs} == {(10, 6)}
    run = results.measurements[0]
    assert (run.samples, run.batches, run.sent_bytes_per_batch, run.peak_resident_bytes) == (16, 10, 5.0, 200)
    assert (run.seconds, run.seconds_per_batch) == (3.0, 0.3), "from the first start to the last end"


def test_calibration_picks_buckets_and_fixes_the_batches(launches):
    plan, tuned = calibrate_ranks(replace(PLAN, batches=50), None, allocator="glibc", seconds=None)
    assert (plan.batches, tuned) == (50, {"fp32": 25, "bf16": None})
    assert {specs[0].steps for specs in launches} == {10}, "short runs"
    plan, _ = calibrate_ranks(PLAN, None, allocator="glibc", seconds=4.1)
    assert plan.batches == 22, "10 batches took 2 s, ranks started 1 s apart; an even number"


def test_a_failing_plain_loop_ends_the_bench(monkeypatch):
    def run(specs, environment, on_event, **where):
        raise RunFailed("KeyError: 'x'", "details")

    monkeypatch.setattr(ranks_rounds, "run_side_by_side", run)
    with pytest.raises(RunFailed, match="KeyError"):
        take_rank_turns(RankResults(PLAN, "glibc", [COMPUTE]), None)


JOB = """
import torch
from torch.nn.functional import mse_loss
import wavelet
from wavelet.jobs.batches import RandomBatches, ordered_batches

def job(seed=0):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    gather = lambda numbers: (x[numbers], x[numbers].sum(1, keepdim=True))
    return wavelet.Job(
        model, torch.optim.SGD(model.parameters(), lr=0.1), lambda model, batch: mse_loss(model(batch[0]), batch[1]),
        RandomBatches(64, 8, gather), validation=ordered_batches(64, 64, gather),
    )
"""


def test_a_spec_goes_through_json():
    spec = RankSpec("a.py", WAVES_BF16, 1, None, 6, 10, 1, 2, "/meet", (0, 2), "eth0", True)
    assert RankSpec.from_json(spec.to_json()) == spec


def forked(command, *, encoding, **files):
    """A worker that begins with torch imported; the tests of the command line and of hosts start it from nothing."""
    assert command[1:] == ["-m", "wavelet.bench.ranks_worker"]
    return Process(ranks_worker.main, **files)


@pytest.mark.distributed
@pytest.mark.parametrize("system", choose_rank_systems({"fp32": 1, "bf16": None}), ids=lambda system: system.name)
def test_every_system_trains_on_two_ranks(tmp_path, system, monkeypatch):
    """On loopback, where bytes are computed: 49 parameters of 4 bytes, sent once by each of two ranks."""
    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": forked}))
    (tmp_path / "job.py").write_text(JOB)
    plan = RankPlan("job", str(tmp_path / "job.py"), ranks=2, rate=None, batches=4, rounds=1, warmup=2)
    run = measure_ranks(system, plan, 0, None, allocator="glibc", on_event=lambda event: None)
    assert (run.batches, run.samples) == (4, 64)
    assert run.sent_bytes_per_batch == 49 * 4 * system.exchanges * (0.5 if system.precision == "bf16" else 1)
    assert (run.validation_loss is not None) == system.trains
    assert (run.training_loss is None) == (system.kind == "all-reduce")


@pytest.mark.distributed
@pytest.mark.skipif(why_not() is not None, reason=f"needs_namespaces: {why_not()}")
def test_ranks_on_hosts_count_their_bytes(tmp_path):
    """The link has seen the gradients, and more: headers and small messages. Each rank has its host's cores."""
    (tmp_path / "job.py").write_text(JOB)
    plan = RankPlan("job", str(tmp_path / "job.py"), ranks=2, rate="1gbit", batches=4, rounds=1, warmup=2)
    with Hosts(2, rate="1gbit") as hosts:
        runs = [
            measure_ranks(system, plan, 0, hosts, allocator="glibc", on_event=lambda event: None)
            for system in (COMPUTE, DDP)
        ]
    assert runs[1].sent_bytes_per_batch > 49 * 4
    assert runs[0].sent_bytes_per_batch < runs[1].sent_bytes_per_batch
    assert runs[1].validation_loss is not None
