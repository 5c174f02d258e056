"""Rows and verdict from made-up measurements, against values computed by hand."""

import pytest

from wavelet.bench.document import document, geometric_means
from wavelet.bench.results import Failure
from wavelet.bench.rounds import Measurement, Plan, Results
from wavelet.bench.systems import System, choose_systems
from wavelet.bench.verdict import geometric_mean, judge, make_rows, sentences

PLAIN_1, PLAIN_2 = System("plain", 1), System("plain", 2)
NEIGHBOUR = System("waves", 2, waves=2, update="neighbour")
DELAYED = System("waves", 2, waves=2, update="delayed")
DDP = System("ddp", 1, processes=2)
ONE_WAVE = System("waves", 2, update="neighbour")
CEILING = System("ceiling", 1, processes=2)
COMPILED_1, COMPILED_2 = System("plain", 1, compile=True), System("plain", 2, compile=True)
BLOCKS = System("waves", 2, waves=2, update="neighbour", compile=True)

RATES = {
    PLAIN_1: [90, 100, 80],  # median 90
    PLAIN_2: [100, 130, 90],  # median 100: the best plain loop
    NEIGHBOUR: [120, 110, 150],  # median 120
    DELAYED: [125, 100, 140],  # median 125: the best rule
    DDP: [128, 128, 110],  # median 128
    ONE_WAVE: [99, 98, 97],  # median 98
    CEILING: [160, 150, 170],  # median 160
    COMPILED_1: [104, 104, 104],
    COMPILED_2: [110, 120, 115],  # median 115: the best compiled loop
    BLOCKS: [138, 138, 138],
}


def made_up(rates, failures=(), job="char-lstm", allocator="glibc"):
    results = Results(Plan(job, job, waves=2, batches=10, rounds=3), allocator, list(RATES))
    for system, values in rates.items():
        for number, value in enumerate(values):
            losses = (1.0, None, None) if system.kind == "ceiling" else (1.0, 2.0 + number, None)
            run = Measurement(system, number, number, 160, 160 / value, value, *losses, 1000 + number)
            results.measurements.append(run)
    results.failures = [Failure(system, reason, "details") for system, reason in failures]
    return results


def test_rows():
    rows = {row.system: row for row in make_rows(made_up(RATES))}
    assert list(rows) == list(RATES)
    best, delayed, blocks = rows[PLAIN_2], rows[DELAYED], rows[BLOCKS]
    assert (best.samples_per_second, best.lowest, best.highest, best.ratio, best.best) == (100, 90, 130, 1.0, True)
    assert (delayed.ratio, delayed.best) == (1.25, False)
    assert (delayed.validation_loss, delayed.peak_resident_bytes) == (3.0, 1001)
    assert (blocks.ratio, blocks.best) == (138 / 115, False)
    assert (rows[COMPILED_1].ratio, rows[COMPILED_2].ratio, rows[COMPILED_2].best) == (104 / 115, 1.0, True)
    assert (rows[CEILING].ratio, rows[CEILING].validation_loss) == (1.6, None)


def test_verdict():
    verdict = judge(made_up(RATES))
    assert (verdict.job, verdict.allocator) == ("char-lstm", "glibc")
    assert (verdict.best_plain, verdict.best_rule) == ("plain, 2 threads", "delayed")
    assert verdict.over_plain == 1.25
    assert verdict.over_ddp == 125 / 128
    assert verdict.of_ceiling == 125 / 160
    assert verdict.one_wave == 0.98
    assert verdict.compiling_helps is True
    assert verdict.over_compiled == 1.2
    assert verdict.best_over_best == 1.2
    assert sentences(verdict) == [
        "Wavelet delayed: 1.25 × the best plain loop (plain, 2 threads).",
        "Wavelet delayed: 0.98 × DDP: it loses.",
        "Wavelet delayed: 78% of the ceiling.",
        "Compiling helps the plain loop.",
        "Wavelet, compiled: 1.20 × the best compiled loop.",
        "Wavelet's fastest: 1.20 × the fastest plain loop, compiled or not.",
    ]


def test_compiling_that_does_not_help():
    slow = {**RATES, COMPILED_1: [50] * 3, COMPILED_2: [99] * 3, BLOCKS: [90] * 3}
    verdict = judge(made_up(slow))
    assert verdict.compiling_helps is False
    assert verdict.over_compiled == 90 / 99
    assert verdict.best_over_best == 1.25
    said = sentences(verdict)
    assert "Compiling does not help the plain loop." in said
    assert "Wavelet, compiled: 0.91 × the best compiled loop: it loses." in said


def test_what_does_not_compile_is_a_row_with_its_reason():
    eager = {system: rates for system, rates in RATES.items() if not system.compile}
    failures = [(system, "Unsupported: a loop") for system in (COMPILED_1, COMPILED_2, BLOCKS)]
    results = made_up(eager, failures)
    row = make_rows(results)[-1]
    assert (row.system, row.samples_per_second, row.ratio, row.failure) == (BLOCKS, None, None, "Unsupported: a loop")
    verdict = judge(results)
    assert (verdict.compiling_helps, verdict.over_compiled) == (False, None)
    assert verdict.best_over_best == 1.25


def test_a_system_that_fails_in_a_later_round_counts_nowhere():
    results = made_up(RATES, [(DELAYED, "RuntimeError: boom")])
    assert judge(results).best_rule == "neighbour"
    rows = {row.system: row for row in make_rows(results)}
    assert rows[DELAYED].samples_per_second is None
    assert rows[DELAYED].failure == "RuntimeError: boom"


def test_without_waves_there_is_no_verdict():
    results = made_up({PLAIN_2: [1, 2, 3]}, [(NEIGHBOUR, "x"), (DELAYED, "x"), (BLOCKS, "x")])
    assert sentences(judge(results)) == ["Wavelet could not be measured."]


def test_geometric_means_leave_the_interpreter_bound_job_out():
    assert geometric_mean([]) is None
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    faster = {**RATES, DELAYED: [256] * 3}  # 2 × DDP
    tables = [
        made_up(RATES),  # 125/128 × DDP
        made_up(faster, job="char-gpt"),
        made_up(RATES, job="mlp-small-ops"),
        made_up(faster, job="char-gpt", allocator="tcmalloc"),
    ]
    glibc, tcmalloc = geometric_means([judge(table) for table in tables])
    assert glibc["jobs"] == ["char-lstm", "char-gpt"]
    assert glibc["over_ddp"] == pytest.approx((2 * 125 / 128) ** 0.5)
    assert tcmalloc == {"allocator": "tcmalloc", "over_ddp": pytest.approx(2.0), "jobs": ["char-gpt"]}


def test_document():
    fields = document([made_up(RATES, [(BLOCKS, "Unsupported: a loop")])])
    assert fields.keys() == {"measurements", "failures", "rows", "verdicts", "geometric_means"}
    assert len(fields["measurements"]) == 30
    system = {"name", "kind", "threads", "processes", "waves", "update", "compile"}
    assert fields["measurements"][0].keys() == {
        *("job", "allocator", "system", "round", "seed", "samples", "seconds", "samples_per_second"),
        *("training_loss", "validation_loss", "validation_accuracy", "peak_resident_bytes"),
    }
    assert fields["measurements"][0]["system"].keys() == system
    assert fields["failures"][0].keys() == {"job", "allocator", "system", "reason", "details"}
    assert fields["rows"][0].keys() == {
        *("job", "allocator", "system", "samples_per_second", "lowest", "highest", "ratio", "best"),
        *("validation_loss", "peak_resident_bytes", "failure"),
    }
    assert fields["verdicts"][0].keys() == {
        *("job", "allocator", "best_plain", "best_rule", "over_plain", "over_ddp", "of_ceiling", "one_wave"),
        *("compiling_helps", "over_compiled", "best_over_best"),
    }


def test_systems_in_turn():
    rules = ["neighbour", "synchronous", "delayed"]
    names = [s.name for s in choose_systems(against=["plain", "ddp"], waves=2, updates=rules, threads=[1, 2])]
    assert names == [
        *("plain, 1 thread", "plain, 2 threads", "Wavelet neighbour", "Wavelet synchronous", "Wavelet delayed"),
        *("DDP, 2 processes", "Wavelet, one wave", "ceiling: 2 × plain"),
        *("compiled, 1 thread", "compiled, 2 threads", "Wavelet, compiled"),
    ]
    few = choose_systems(against=["plain"], waves=4, updates=["delayed"], threads=[1, 2], compile=False, extras=False)
    assert [system.name for system in few] == ["plain, 1 thread", "plain, 2 threads", "Wavelet delayed"]
    many = choose_systems(against=["plain", "ddp"], waves=4, updates=["delayed"], threads=[1, 2])
    assert {system.threads for system in many if system.processes == 4} == {1}
