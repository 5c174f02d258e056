"""Budgets, plans and their predictions, against numbers that were worked out by hand."""

import pytest

from wavelet.planning import Chain, Interlock, seconds_per_batch, simulate
from wavelet.planning.budget import Budget
from wavelet.planning.plan import SMALL_BYTES, BudgetError, Plan, contention_under, make_plan
from wavelet.profiling.profile import NO_CONTENTION, Contention, Profile, Smaller, Timing, fits
from wavelet.profiling.recorders import BlockBytes, BlockSeconds

MIB = 2**20


def profile_of(blocks=8, *, forward=0.1, backward=0.2, contention=NO_CONTENTION, tight=NO_CONTENTION, **more):
    """Blocks of 1 MiB, gradients of nothing; one wave alone is as fast with all threads as with its share."""
    saved = (MIB,) * blocks
    rising = tuple(MIB * (block + 1) for block in range(blocks))
    seconds = BlockSeconds((forward / blocks,) * blocks, (backward / blocks,) * blocks, 0.0)
    fields = {
        "model": "print",
        "device": "cpu",
        "blocks": (None, *(str(block) for block in range(1, blocks))),
        "calls": {str(block): 1 for block in range(blocks)},
        "bytes": BlockBytes(saved, (0,) * blocks, rising, tuple(reversed(rising)), 0),
        "timings": {1: Timing(2, seconds), 2: Timing(1, seconds, contention, tight)},
        "samples": 16,
        "shapes": (((16, 3),),),
        "batch_bytes": 1000,
        "parameter_bytes": 100,
        "gradient_bytes": 100,
        "buffer_bytes": 10,
        "optimizer_bytes": 200,
    }
    return Profile(**{**fields, **more})


@pytest.mark.parametrize(
    ("written", "budget"),
    [
        ("1.25x", Budget(ratio=1.25)),
        ("1X", Budget(ratio=1.0)),
        (" 2 GiB ", Budget(bytes=2 * 2**30)),
        ("1.5MB", Budget(bytes=1_500_000)),
        (123, Budget(bytes=123)),
    ],
)
def test_budgets_as_users_write_them(written, budget):
    assert Budget.of(written) == budget
    assert Budget.of(budget) is budget


@pytest.mark.parametrize(
    "written", ["0.99x", "x", "", "2", "-1GiB", "1e9B", "2GiB/s", 0, -1, 1.5, True, None, "0B", "9" * 400 + "x"]
)
def test_budgets_that_make_no_sense(written):
    with pytest.raises(ValueError, match=r"makes no sense|less than one wave needs|more than there is"):
        Budget.of(written)


def test_a_plan_says_what_it_holds():
    found = profile_of()
    plan = make_plan(found, "1.5x", 2)
    one = 8 * MIB + 1000 + SMALL_BYTES
    assert plan.one_wave_step_bytes == one
    assert plan.resting_bytes == 2 * 100 + 2 * 200 + 1 * 100 + 4 * 10
    assert plan.budget_bytes == plan.resting_bytes + int(1.5 * one)
    assert one < plan.peak_step_bytes <= 1.5 * one
    assert plan.one_wave_samples_per_second == pytest.approx(16 / 0.3)


def test_bytes_leave_what_resting_memory_does_not_take():
    plan = make_plan(profile_of(), 740 + 12 * MIB + 1000 + SMALL_BYTES, 2)
    assert plan.peak_step_bytes == 12 * MIB + 1000 + SMALL_BYTES


def test_one_wave_is_taken_where_more_are_not_faster():
    """Contention of 2 on both sides: two waves side by side do what one does."""
    slow = Contention(2.0, 2.0)
    assert make_plan(profile_of(contention=slow, tight=slow), "2x").waves == 1
    assert make_plan(profile_of(), "2x").waves == 2


def test_a_budget_that_is_too_small_says_how_much_is_needed_and_which_batch_would_fit():
    """Linear in the samples: half a batch holds 4 MiB, so 6 MiB and a bit hold 12 samples."""
    found = profile_of(smaller=Smaller(8, 4 * MIB))
    resting = make_plan(found, "1x", 1).resting_bytes
    with pytest.raises(BudgetError, match=r"one wave alone needs 8\.4 MiB: allow at least 8\.4 MiB, or batches of 12"):
        make_plan(found, resting + 6 * MIB + 1000 + SMALL_BYTES)
    with pytest.raises(BudgetError, match="allow at least"):
        make_plan(profile_of(), 100)


@pytest.mark.parametrize("update", ["neighbour", "synchronous", "delayed"])
def test_plans_and_profiles_survive_json(update):
    import json

    found = profile_of(smaller=Smaller(8, 4 * MIB))
    assert Profile.from_json(json.loads(json.dumps(found.to_json()))) == found
    plan = make_plan(found, "1.5x", 3, update=update, accumulate=2)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize("kind", [Plan, Profile])
def test_json_that_is_none_of_ours_is_refused_in_one_sentence(kind):
    import json

    found = profile_of(smaller=Smaller(8, 4 * MIB))
    good = found if kind is Profile else make_plan(found, "1.5x", 2)
    text = json.dumps(good.to_json())
    for nonsense in (text, "text", "", None, 5, [], b"{}"):
        with pytest.raises(ValueError, match=r"takes the mapping that to_json\(\) gave, and was given"):
            kind.from_json(nonsense)
    for wrong in ({}, {"waves": 2}, {"blocks": []}):
        with pytest.raises(ValueError, match="is missing"):
            kind.from_json(wrong)
    fields = json.loads(text)
    for name in fields:
        if name not in ("model", "device", "update", "calls", "accumulate", "one_wave_samples_per_second", "shapes"):
            for broken in ("zzz", -1, None, [], {"a": 1}):
                if not (name == "smaller" and broken is None):
                    with pytest.raises(ValueError, match=f"this is no {kind.__name__}"):
                        kind.from_json({**fields, name: broken})


def test_a_plan_whose_table_was_changed_to_allow_more_is_refused():
    plan = make_plan(profile_of(), "1.25x", 2)
    fields = plan.to_json()
    free = [[0]] * plan.profile.num_blocks
    with pytest.raises(ValueError, match="more than it promises"):
        Plan.from_json({**fields, "interlock": free})
    with pytest.raises(ValueError, match="more than it promises"):
        Plan.from_json({**fields, "peak_step_bytes": plan.peak_step_bytes - 1})


def test_contention_slows_work_beside_work_alone():
    """One block, freely: forward 1 s and backward 2 s; beside each other 1.5 and 1.25 times as long."""
    chain = Chain.of_parts((1,), (0,), forward_seconds=(1.0,), backward_seconds=(2.0,))
    free = Interlock(((0,),))
    spans = {(s.batch, s.kind): s for s in simulate(chain, free, Contention(1.5, 1.25), num_batches=2)}
    assert (spans[0, "forward"].start, spans[0, "forward"].end) == (0, 1)
    assert spans[1, "forward"].end == pytest.approx(1 + 1.5)
    # Of the 2 s of backward, 1.5 / 1.25 are done beside the forward, the rest beside batch 1's backward.
    assert spans[0, "backward"].end == pytest.approx(2.5 + (2 - 1.5 / 1.25) * 1.25)


def test_a_round_waits_for_the_round_before():
    chain = Chain.of_parts((1,), (0,), forward_seconds=(1.0,), backward_seconds=(2.0,))
    free = Interlock(((0,),))
    assert seconds_per_batch(chain, free) == pytest.approx(1.5)
    assert seconds_per_batch(chain, free, round_size=2) == pytest.approx(2.0), "1 + 1 + 2 s for two batches"


def test_contention_lies_between_free_and_tight():
    found = profile_of(contention=Contention(1.0, 1.0), tight=Contention(1.4, 1.2))
    blocks = found.num_blocks
    free, tight = Interlock(((0,),) * blocks), Interlock(tuple((block,) for block in range(1, blocks + 1)))
    assert contention_under(found, free) == (1.0, 1.0)
    assert contention_under(found, tight) == pytest.approx((1.4, 1.2))
    half = Interlock(tuple((block // 2,) for block in range(1, blocks + 1)))
    assert 1.0 < contention_under(found, half).forward < 1.4


def test_what_a_measured_batch_covers():
    assert fits(((8, 3), ()), [((16, 3), ())])
    assert not fits(((8, 4),), [((16, 3),), ((4, 4),)])
    assert not fits(((8, 3), (8,)), [((8, 3),)])
    assert not fits(((8, 3, 1),), [((8, 3),)])


def test_texts_name_what_matters():
    plan = make_plan(profile_of(), "1x", 2)
    text = str(plan)
    assert "the beginning" in text
    assert "left block" in text
    assert "as fast as one wave" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "8 blocks, one batch of 16, alone on 2 threads" in str(plan.profile)
