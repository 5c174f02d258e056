"""Systems take turns on equally many samples; processes start together; a failure is a row, not a crash."""

import pytest

from wavelet.bench import rounds
from wavelet.bench.launch import RunFailed
from wavelet.bench.rounds import Plan, Results, calibrate, measure, take_turns
from wavelet.bench.systems import System, round_up, warmup_batches

PLAIN, DDP, CEILING = System("plain", 1), System("ddp", 1, processes=2), System("ceiling", 1, processes=2)
COMPILED = System("plain", 1, compile=True)
PLAN = Plan("a", "a.py", waves=2, batches=10, rounds=2, seed=7)


def result(start=0.0, end=2.0, samples=40):
    losses = {"training_loss": 1.0, "validation_loss": 2.0, "validation_accuracy": None}
    return {"start": start, "end": end, "samples": samples, "peak_resident_bytes": 100, **losses}


@pytest.fixture
def launches(monkeypatch):
    """Stands in for the processes; the specs of each launch, and what the next ones give."""
    launched = []

    def run(specs, environment, on_event):
        launched.append(specs)
        if specs[0].system.compile:
            raise RunFailed("Unsupported: a loop", "details")
        return [result() for _ in specs]

    monkeypatch.setattr(rounds, "run_side_by_side", run)
    return launched


def test_turns_and_equal_samples(launches):
    results = Results(PLAN, "glibc", [PLAIN, DDP, COMPILED, CEILING])
    heard = []
    take_turns(results, lambda number, system, event: heard.append((number, system, event["event"])))
    order = [(specs[0].system, specs[0].seed) for specs in launches]
    assert order == [(PLAIN, 7), (DDP, 7), (COMPILED, 7), (CEILING, 7), (PLAIN, 8), (DDP, 8), (CEILING, 8)]
    assert len(heard) == 8
    assert [failure.system for failure in results.failures] == [COMPILED]
    for specs in launches:
        assert sum(spec.steps for spec in specs) == 10
        assert sum(spec.warmup for spec in specs) == warmup_batches(2) == 6
    ddp, ceiling = launches[1], launches[3]
    assert [(spec.rank, spec.seed, spec.evaluate) for spec in ddp] == [(0, 7, True), (1, 7, True)]
    assert len({spec.rendezvous for spec in ddp}) == 1
    assert [(spec.seed, spec.evaluate) for spec in ceiling] == [(7, False), (8, False)]


def test_a_failing_plain_loop_ends_the_bench(monkeypatch):
    def run(specs, environment, on_event):
        raise RunFailed("KeyError: 'x'", "details")

    monkeypatch.setattr(rounds, "run_side_by_side", run)
    with pytest.raises(RunFailed, match="KeyError"):
        take_turns(Results(PLAN, "glibc", [PLAIN]))


def test_samples_of_all_processes_over_the_span_of_their_clocks(monkeypatch):
    runs = [result(start=10.0, end=14.0), result(start=10.5, end=15.0)]
    monkeypatch.setattr(rounds, "run_side_by_side", lambda specs, environment, on_event: runs)
    run = measure(DDP, PLAN, 1, allocator="glibc", on_event=print)
    assert (run.round, run.seed, run.samples, run.seconds, run.samples_per_second) == (1, 8, 80, 5.0, 16.0)
    assert run.peak_resident_bytes == 200


def test_calibration_fixes_the_batches_once(launches):
    """10 batches took 2 s: 25 batches take 5 s, and each of two processes gets as many."""
    systems = [PLAIN, System("plain", 2)]
    assert calibrate(PLAN, systems, seconds=5.0, allocator="glibc").batches == 26
    assert calibrate(PLAN, systems, seconds=0.1, allocator="glibc").batches == 10
    assert [specs[0].system for specs in launches] == systems * 2
    assert not any(specs[0].evaluate for specs in launches)


def test_batches_are_shared_evenly():
    assert [round_up(count, 3) for count in (1, 3, 4)] == [3, 3, 6]
    assert [warmup_batches(waves) for waves in (1, 2, 3, 4)] == [4, 6, 9, 12]
