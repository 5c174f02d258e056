"""The arithmetic of the convergence benchmark's verdict, its rates, its tuning and its store."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from convergence import runs
from convergence.runs import BATCHES, Case, Record, Run, Store, best_rate, next_rates
from convergence.training import share_of_rate
from convergence.verdict import judge


def record(run, loss):
    return Record(run, [8], [loss], [], [loss], [], [], [], [1, 2], 0.5, {"torch": "2"})


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs.jsonl", tmp_path / "results.json")


def test_equal_rows_are_within():
    verdict = judge([2.0, 3.0], [2.0, 3.0])
    assert (verdict.worse_by, verdict.standard_error, verdict.within) == (0.0, 0.0, True)


@pytest.mark.parametrize(("by", "within"), [(0.039, True), (0.041, False), (-5.0, True)])
def test_without_spread_the_bound_is_two_percent(by, within):
    verdict = judge([2.0] * 5, [2.0 + by] * 5)
    assert verdict.bound == pytest.approx(0.04)
    assert verdict.worse_by == pytest.approx(by)
    assert verdict.within is within


def test_standard_error_is_of_the_paired_differences():
    # The seeds differ by far more than the pairs do.
    verdict = judge([1.0, 10.0, 100.0], [1.1, 10.2, 100.6])
    differences = [0.1, 0.2, 0.6]
    mean = sum(differences) / 3
    error = math.sqrt(sum((each - mean) ** 2 for each in differences) / 2 / 3)
    assert verdict.standard_error == pytest.approx(error)
    assert verdict.bound == pytest.approx(max(2 * error, 0.02 * 37))


def test_two_standard_errors_widen_the_bound():
    verdict = judge([1.0, 1.0], [1.0, 1.4])
    assert verdict.bound == pytest.approx(2 * 0.2)
    assert verdict.within


def test_lower_accuracy_is_worse():
    assert judge([0.9] * 5, [0.8] * 5, higher_is_better=True).worse_by == pytest.approx(0.1)
    assert not judge([0.9] * 5, [0.8] * 5, higher_is_better=True).within
    assert judge([0.9] * 5, [0.99] * 5, higher_is_better=True).within


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("higher_is_better", [False, True])
def test_diverging_is_never_within(bad, higher_is_better):
    verdict = judge([1.0, 1.0], [0.5, bad], higher_is_better=higher_is_better)
    assert not verdict.within
    assert verdict.worse_by == math.inf
    assert verdict.candidate == (-math.inf if higher_is_better else math.inf)


@pytest.mark.parametrize(("reference", "candidate"), [([], []), ([1.0], [1.0, 2.0]), ([math.nan], [1.0])])
def test_refuses_what_is_no_pair(reference, candidate):
    with pytest.raises(ValueError):
        judge(reference, candidate)


def test_a_single_pair_has_no_standard_error():
    verdict = judge([1.0], [1.01])
    assert verdict.standard_error is None
    assert verdict.within


def test_rate_rises_stays_and_falls_towards_zero():
    shares = [share_of_rate(number, 20) for number in range(20)]
    assert shares == pytest.approx([0.5] + [1] * 12 + [0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])


def test_tuning_goes_on_while_the_best_rate_is_at_an_edge(store):
    case = Case("char-lstm")
    rates = next_rates(store, case)
    assert len(rates) == 3
    losses = {rate: 3 - place for place, rate in enumerate(sorted(rates))}

    def tune(rate, loss):
        store.add(record(Run(case.job, "synchronous", None, rate, runs.TUNING_SEED, *BATCHES[case.job]), loss))

    for rate, loss in losses.items():
        tune(rate, loss)
    assert next_rates(store, case) == [2 * max(rates)]
    tune(2 * max(rates), None)  # diverged
    assert next_rates(store, case) == []
    assert best_rate(store, case) == max(rates)


def test_store_reads_back_what_it_wrote(store, tmp_path):
    run = Run("char-gpt", "neighbour", 8, 1e-3, 1, *BATCHES["char-gpt"])
    store.add(record(run, 1.5))
    store.add(record(Run("char-gpt", "delayed", None, 1e-3, 1, *BATCHES["char-gpt"]), None))
    again = Store(tmp_path / "runs.jsonl", tmp_path / "results.json")
    assert again.records == store.records
    assert again.find(Case("char-gpt"), "neighbour", 8, 1e-3, 1).loss == 1.5
    assert again.find(Case("char-gpt"), "neighbour", None, 1e-3, 1) is None
    assert not list(tmp_path.glob("*.part"))
