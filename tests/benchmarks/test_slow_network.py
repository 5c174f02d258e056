"""The benchmark of slow networks: what it makes of its measurements."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "slow-network"))

from rounds import Plan, _combine
from summary import Point, Run, loss_at, make_rows
from systems import SYSTEMS
from worker import mean_state

from wavelet.jobs import load

CURVE = (Point(0.0, 10, 4.0), Point(2.0, 20, 3.0), Point(6.0, 30, 1.0))


def run(system, seconds, losses, number=0, rate="100mbit"):
    points = tuple(Point(at, 0, loss) for at, loss in zip(seconds, losses, strict=True))
    return Run(rate, system, number, number, 10, seconds[-1], seconds[-1] / 10, 5.0, points)


@pytest.mark.parametrize(("seconds", "loss"), [(0.0, 4.0), (1.0, 3.5), (2.0, 3.0), (3.0, 2.5), (6.0, 1.0)])
def test_between_two_validations_the_loss_is_on_a_straight_line(seconds, loss):
    assert loss_at(CURVE, seconds) == loss


@pytest.mark.parametrize("seconds", [-0.1, 6.1])
def test_nothing_is_said_of_times_before_the_first_and_after_the_last_validation(seconds):
    with pytest.raises(ValueError, match="is not between 0 s and 6 s"):
        loss_at(CURVE, seconds)


def test_equal_time_is_the_fastest_systems_end_in_each_round():
    runs = [
        run("ddp", (0, 8), (4, 2)),  # 3.5 after two seconds
        run("local", (0, 2), (4, 3)),
        run("ddp", (0, 4), (6, 2), number=1),  # 5 after one second
        run("local", (0, 1), (6, 5), number=1),
    ]
    ddp, local = make_rows(runs)
    assert (ddp.loss, ddp.loss_then, ddp.equal_seconds) == (2, (3.5 + 5) / 2, 1.5)
    assert (local.loss, local.loss_then) == (4, 4)


def test_rows_have_medians_and_spread_and_keep_rates_apart():
    times = (3.0, 1.0, 2.0)
    runs = [run("ddp", (0, time), (4, 3), number=number) for number, time in enumerate(times)]
    runs += [run("local", (0, 1.0), (4, 3), number=number) for number in range(3)]
    slower = [replace(each, rate="50mbit", seconds_per_step=7.0) for each in runs if each.system == "local"]
    ddp, local, alone = make_rows(runs + slower)
    assert (ddp.seconds_per_step, ddp.lowest, ddp.highest) == (0.2, 0.1, 0.3)
    assert (ddp.over_ddp, local.over_ddp) == (1.0, 2.0)
    assert (alone.rate, alone.seconds_per_step, alone.over_ddp) == ("50mbit", 7.0, None)


def test_a_stretch_lasts_from_the_first_ranks_start_to_the_last_ones_end_and_pauses_do_not_count():
    plan = Plan("job", "job", 2, 10, 1.0, 10, 40, 2, 1, 0, None, "glibc")
    first = [{"start": 5.0, "end": 7.0, "sent_bytes": 100}, {"start": 90.0, "end": 93.0, "sent_bytes": 300}]
    other = [{"start": 5.5, "end": 7.5, "sent_bytes": 300}, {"start": 89.5, "end": 93.0, "sent_bytes": 500}]
    ranks = [
        {"stretches": first, "losses": [4.0, 3.0, 2.0], "samples_per_step": 8},
        {"stretches": other, "losses": [None, None, None], "samples_per_step": 8},
    ]
    found = _combine(plan, "100mbit", "ddp", 0, 0, ranks)
    assert found.points == (Point(0.0, 160, 4.0), Point(2.5, 480, 3.0), Point(6.0, 800, 2.0))
    assert (found.seconds_per_step, found.sent_bytes_per_step) == (6.0 / 40, (200 + 400) / 40)


def test_the_mean_of_weights_leaves_whole_numbers_alone():
    states = [{"weight": torch.tensor([1.0, 2.0]), "count": torch.tensor(3)}]
    states.append({"weight": torch.tensor([3.0, 6.0]), "count": torch.tensor(5)})
    mean = mean_state(states)
    assert mean["weight"].tolist() == [2.0, 4.0]
    assert mean["count"].item() == 3


def test_a_system_says_why_it_cannot_train_a_job(monkeypatch):
    job = load("char-gpt")
    monkeypatch.setattr("wavelet.exchange.CELGC", object, raising=False)
    assert SYSTEMS["celgc:2"].why_not(job) == "CELGC is for SGD, and char-gpt has AdamW"
    monkeypatch.delattr("wavelet.exchange.CELGC")
    assert SYSTEMS["celgc:2"].why_not(job) == "this Wavelet has no exchange CELGC"
    assert SYSTEMS["ddp"].why_not(job) is None
