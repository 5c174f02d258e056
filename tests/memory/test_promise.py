"""The promise: whatever the timing, the waves hold no more than was planned, and results are bitwise the same."""

import pytest
import torch
from torch import nn

import wavelet
from wavelet.planning import best_interlock
from wavelet.planning.plan import SMALL_BYTES, chain_of

from ..models import assert_same, batches, conv, loss, mlp, trained_weights
from .ledger import Block, Ledger

KIB = 1024


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def engine_of(model, **options):
    return wavelet.Wavelet(model, sgd(model), loss, **{"waves": 2, **options})


def ledger_model(saved, *, pause=0.0, transient=0):
    torch.manual_seed(0)
    ledger = Ledger()
    blocks = [Block(ledger, count * KIB, transient * KIB, pause, seed) for seed, count in enumerate(saved)]
    return ledger, nn.Sequential(nn.Linear(8, 4), *blocks)


@pytest.mark.parametrize("update", ["neighbour", "synchronous", "delayed"])
@pytest.mark.parametrize(("waves", "ratio"), [(2, 1.0), (2, 1.3), (2, 1.7), (3, 1.0), (3, 1.6), (3, 2.2)])
def test_never_more_than_promised_under_random_sleeps(update, waves, ratio):
    sizes = [400, 100, 300, 200, 50, 350, 100, 500]
    ledger, model = ledger_model(sizes, pause=2e-3)
    with engine_of(model, waves=waves, update=update, budget=f"{ratio}x") as engine:
        for number, batch in enumerate(batches(2 * waves + 34)):
            engine.step(batch)
            if number == 2 * waves + 1:
                assert engine.plan is not None
                ledger.reset()
    plan = engine.plan
    assert ledger.held == 0
    assert ledger.peak <= plan.peak_step_bytes <= ratio * plan.one_wave_step_bytes
    assert ledger.peak >= sum(sizes) * KIB, "one batch was on top of its chain at least once"


def test_a_larger_budget_is_used():
    """At the budget of one wave batches wait; with room for both they wait nowhere."""
    gates = {}
    for ratio in (1.0, 2.0):
        _, model = ledger_model([200] * 8)
        with engine_of(model, budget=f"{ratio}x") as engine:
            for batch in batches(8):
                engine.step(batch)
        gates[ratio] = engine.plan.interlock.gates()
    assert gates[1.0]
    assert not gates[2.0]


def run(make, images, *, count=16, **options):
    model = make()
    with engine_of(model, **options) as engine:
        losses = [engine.step(batch) for batch in batches(count, image=images)]
        losses = [step.loss for step in losses]
    return losses, trained_weights(model)


@pytest.mark.parametrize("update", ["neighbour", "synchronous", "delayed"])
@pytest.mark.parametrize("waves", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    "make", [conv, mlp, lambda: mlp(checkpointing="plain"), lambda: mlp(checkpointing="reentrant")]
)
def test_a_budget_changes_no_bit(make, update, waves, accumulate):
    settings = {"update": update, "waves": waves, "accumulate": accumulate, "count": 8 * waves + 3}
    torch.manual_seed(3)
    freely = run(make, make is conv, **settings)
    for budget in ("1x", "1.5x"):
        torch.manual_seed(3)
        held = run(make, make is conv, budget=budget, **settings)
        assert held[0] == freely[0]
        assert_same(held[1], freely[1])


@pytest.mark.parametrize("waves", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("update", ["neighbour", "synchronous", "delayed"])
def test_the_plan_exists_after_2k_plus_2_batches(waves, accumulate, update):
    model = conv()
    with engine_of(model, waves=waves, accumulate=accumulate, update=update, budget="1.5x") as engine:
        for number, batch in enumerate(batches(2 * waves + 2, image=True)):
            assert number < 2 * waves + 2
            engine.step(batch)
        assert engine.plan is not None
        assert engine.plan.waves == waves
    assert engine.plan is not None, "it outlives the engine"


def test_resting_bytes_are_what_the_engine_holds_at_most():
    """Counted by hand for Adam: replicas, two moments and a step each, gradients, buffers."""
    for update, replicas, states, gradients in (("neighbour", 2, 2, 1), ("synchronous", 1, 1, 1), ("delayed", 2, 1, 0)):
        model = conv()
        optimizer = torch.optim.Adam(model.parameters())
        with wavelet.Wavelet(model, optimizer, loss, budget="2x", update=update) as engine:
            for batch in batches(8, image=True):
                engine.step(batch)
        parameters = sum(p.nbytes for p in model.parameters())
        steps = 4 * len(list(model.parameters()))
        buffers = sum(b.nbytes for b in model.buffers())
        expected = replicas * parameters + states * (2 * parameters + steps) + gradients * parameters + 4 * buffers
        assert engine.plan.resting_bytes == expected


def test_bytes_bound_all_and_too_few_are_refused_with_what_is_needed():
    model = conv()
    with engine_of(model, budget="1x") as engine:
        for batch in batches(8, image=True):
            engine.step(batch)
    plan = engine.plan
    needed = plan.resting_bytes + plan.one_wave_step_bytes
    with engine_of(model, budget=needed + 1000) as engine:
        for batch in batches(8, image=True):
            engine.step(batch)
    assert engine.plan.budget_bytes == needed + 1000
    with pytest.raises(ValueError, match=r"one wave alone needs .* MiB: allow at least"):
        with engine_of(model, budget=needed // 2) as engine:
            for batch in batches(8, image=True):
                engine.step(batch)


class Skipping(nn.Module):
    """Calls its second part only for some batches, and its third twice for others."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        kind = int(x[0, 0] * 1000) % 3
        x = self.first(x).relu()
        if kind != 1:
            x = self.second(x).relu()
        for _ in range(2 if kind == 2 else 1):
            x = self.third(x).relu()
        return self.last(x)


def test_a_model_that_is_no_chain_stays_right():
    for budget in ("1x", "1.5x"):
        assert_same(run(Skipping, False, count=30)[1], run(Skipping, False, count=30, budget=budget)[1])


def test_calls_that_were_not_profiled_run_alone():
    """What a batch holds that takes another way is not known, so nothing runs beside it."""
    ledger, model = ledger_model([200, 200, 200], pause=1e-3)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model
            self.again = False

        def forward(self, x):
            out = self.inner(x)
            return out + self.inner(x) if self.again else out

    twice = Twice()
    with engine_of(twice, budget="1.2x") as engine:
        for number, batch in enumerate(batches(24)):
            if number == 6:
                ledger.reset()
            twice.again = number > 12 and number % 3 == 0
            engine.step(batch)
    assert ledger.peak <= 2 * 600 * KIB, "that of one such batch"


def test_a_larger_batch_runs_alone_and_is_planned_anew():
    model = conv()
    with engine_of(model, budget="1.2x") as engine:
        for batch in batches(8, image=True):
            engine.step(batch)
        small = engine.plan
        for batch in batches(2, size=8, image=True):
            engine.step(batch)
        assert engine.plan.one_wave_step_bytes == small.one_wave_step_bytes, "a smaller batch fits"
        for batch in batches(4, size=24, image=True):
            engine.step(batch)
        large = engine.plan
    assert large.one_wave_step_bytes > 1.5 * (small.one_wave_step_bytes - SMALL_BYTES)
    assert large.profile.samples == 24


def test_modes_and_frozen_weights_are_planned_anew():
    model = conv()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    with engine_of(model, budget="1.2x") as engine:
        for batch in batches(8, image=True):
            engine.step(batch)
        frozen = engine.plan
        for parameter in model[0].parameters():
            parameter.requires_grad_(True)
        for batch in batches(4, image=True):
            engine.step(batch)
        assert engine.plan.profile.gradient_bytes > frozen.profile.gradient_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "0.5x"}, "less than one wave needs"),
        ({"budget": "lots"}, "'1.25x', or bytes such as '2GiB'"),
        ({"budget": 0}, "makes no sense"),
        ({"budget": True}, "makes no sense"),
        ({"budget": 1.5}, "makes no sense"),
        ({"budget": "3 parsecs"}, "makes no sense"),
        ({"budget": "1x", "waves": 4}, "use 1 to 3"),
        ({"blocks": ["0"]}, "no meaning without budget"),
        ({"budget": "1x", "blocks": ["nothing"]}, "no module of the model"),
        ({"budget": "1x", "blocks": "0"}, "give a list"),
        ({"budget": "1x", "blocks": []}, "give a list"),
        ({"plan": "1x"}, "must come from wavelet.plan"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        engine_of(conv(), **options)


def test_blocks_may_be_named():
    model = mlp()
    with engine_of(model, budget="1.5x", blocks=[model[2], "1"]) as engine:
        for batch in batches(8):
            engine.step(batch)
    assert engine.plan.profile.blocks == (None, "1", "2")


def test_a_model_of_one_block_works_with_a_warning():
    model = nn.Linear(8, 4)
    with pytest.warns(UserWarning, match=r"one block to wavelet.*samples/s are predicted"):
        with engine_of(model, budget="1x") as engine:
            for batch in batches(8):
                engine.step(batch)


def test_an_exception_in_forward_leaves_the_engine_usable():
    model = conv()
    with engine_of(model, budget="1x") as engine:
        for number, batch in enumerate(batches(20, image=True)):
            if number % 3 == 0:
                with pytest.raises(RuntimeError):
                    engine.step((batch[0][:, :, :2], batch[1]))
            engine.step(batch)
        assert engine.plan is not None


def test_a_failure_behind_a_gate_is_the_error():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, fails):
            ctx.fails = fails
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if ctx.fails:
                raise OSError("broken on purpose")
            return gradient, None

    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp(norm=False)
            self.fails = False

        def forward(self, x):
            return Broken.apply(self.inner(x), self.fails)

    model = Fails()
    with pytest.raises(OSError, match="on purpose"):
        with engine_of(model, budget="1x") as engine:
            for number, batch in enumerate(batches(20)):
                model.fails = number == 11
                engine.step(batch)


def test_a_plan_runs_from_the_first_batch_and_only_what_it_was_made_for():
    model = conv()
    with engine_of(model, budget="1.2x") as engine:
        for batch in batches(8, image=True):
            engine.step(batch)
    plan = engine.plan
    assert wavelet.Plan.from_json(plan.to_json()) == plan
    with engine_of(model, plan=plan) as engine:
        assert engine.plan is plan
        for batch in batches(8, image=True):
            engine.step(batch)
        assert engine.plan is plan
    for options, message in (
        ({"waves": 3}, "waves=2, not for 3"),
        ({"update": "delayed"}, "update='neighbour'"),
        ({"accumulate": 2}, "accumulate=1"),
        ({"budget": "1x"}, "give plan= alone"),
    ):
        with pytest.raises(ValueError, match=message):
            engine_of(model, plan=plan, **options)
    with pytest.raises(ValueError, match="another model"):
        engine_of(mlp(), plan=plan)


def test_the_interlock_is_the_planners():
    model = mlp(depth=6)
    with engine_of(model, budget="1.3x") as engine:
        for batch in batches(8):
            engine.step(batch)
    plan = engine.plan
    assert plan.interlock == best_interlock(
        chain_of(plan.profile, 2), 2, int(1.3 * plan.one_wave_step_bytes) - plan.profile.batch_bytes - SMALL_BYTES
    )


def test_auto_chooses_with_the_first_batch_also_within_with():
    """It once took two waves on entering, before there was a batch to choose by."""
    with engine_of(conv(), waves="auto") as engine:
        engine.drain()
        engine.flush()
        assert engine.waves == 0
        engine.step(batches(1, image=True)[0])
        assert engine.waves in (1, 2)


@pytest.mark.parametrize("update", ["neighbour", "synchronous", "delayed"])
def test_sparse_gradients_that_accumulate(update):
    """Their bytes were once asked for as if they were dense."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words, self.out = nn.Embedding(10, 8, sparse=True), nn.Linear(8, 4)

        def forward(self, x):
            return self.out(self.words((x.abs() * 3).long().clamp(max=9)).mean(1))

    weights = []
    for budget in (None, "1.2x"):
        model = Words()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with wavelet.Wavelet(model, optimizer, loss, update=update, accumulate=2, budget=budget) as engine:
            for batch in batches(16):
                engine.step(batch)
        weights.append(trained_weights(model))
    assert_same(*weights)


def test_what_a_refusal_asks_for_is_enough():
    """Rounded to the nearest, it was refused again."""
    model = conv()
    with pytest.raises(ValueError, match="allow at least") as refusal:
        with engine_of(model, budget="1KiB") as engine:
            for batch in batches(8, image=True):
                engine.step(batch)
    assert "leaves nothing" in str(refusal.value)
    asked = str(refusal.value).rpartition("allow at least ")[2].rstrip(".").replace(" ", "")
    with engine_of(model, budget=asked) as engine:
        for batch in batches(8, image=True):
            engine.step(batch)
    assert engine.plan is not None


def test_an_interruption_while_auto_measures_ends_the_engine(monkeypatch):
    """It once became an AttributeError: nothing that could fail had been made."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("wavelet.engine.choose_waves", interrupted)
    engine = engine_of(conv(), waves="auto")
    with pytest.raises(KeyboardInterrupt):
        engine.step(batches(1, image=True)[0])
    with pytest.raises(RuntimeError, match="this engine is closed"):
        engine.step(batches(1, image=True)[0])
