"""Lower precision: autocast as in a plain loop, and a GradScaler whose scale follows the batches."""

import copy
import warnings

import pytest
import torch

import wavelet

from .models import Serial, assert_same, batches, loss, mlp, trained_weights

RULES = ["neighbour", "synchronous", "delayed"]
each_rule = pytest.mark.parametrize("rule", RULES)
each_rule_in_2_and_3_waves = pytest.mark.parametrize(
    ("rule", "waves"), [(rule, waves) for rule in RULES for waves in (2, 3)]
)


def small():
    """Also seeds torch."""
    return mlp(depth=1)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def autocasting_to(dtype):
    def autocasting(model, batch):
        with torch.autocast("cpu", dtype):
            return loss(model, batch)

    return autocasting


# Autocast.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_rule_in_2_and_3_waves
def test_autocast_equals_a_plain_autocast(rule, waves, dtype):
    data = batches(12, size=6)
    model = small()
    torch.manual_seed(3)
    serial = Serial(model, momentum, rule=rule, waves=waves, loss=autocasting_to(dtype))
    expected = [serial.step(batch) for batch in data]
    torch.manual_seed(3)
    with wavelet.Wavelet(
        model, momentum(model.parameters()), loss, waves=waves, update=rule, resync=None, autocast=dtype
    ) as engine:
        steps = [engine.step(batch) for batch in data]
    assert [step.loss for step in steps] == expected
    assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_autocast_is_on_in_the_forward_alone():
    seen = {}

    def looking(model, batch):
        x, _ = batch
        seen["forward"] = model(x).dtype
        value = loss(model, batch)
        value.register_hook(lambda gradient: seen.update(backward=torch.is_autocast_enabled("cpu")))
        return value

    model = small()
    with wavelet.Wavelet(model, momentum(model.parameters()), looking, autocast=torch.bfloat16) as engine:
        engine.step(batches(1)[0])
        assert not torch.is_autocast_enabled("cpu")
    assert seen == {"forward": torch.bfloat16, "backward": False}


def test_autocast_ends_with_an_error_in_forward():
    def bad(model, batch):
        raise KeyError("boom")

    model = small()
    with wavelet.Wavelet(model, momentum(model.parameters()), bad, autocast=torch.bfloat16) as engine:
        with pytest.raises(KeyError):
            engine.step(batches(1)[0])
        assert not torch.is_autocast_enabled("cpu")


# The scale of losses.


FACTORS = {
    "usual": {"init_scale": 2.0**10, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3},
    "no powers of two": {"init_scale": 1000.0, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 3},
}


def spoiling(*numbers):
    """A loss whose gradient is infinite or not a number in some batches, counted in program order."""
    count = iter(range(1000))

    def spoilt(model, batch):
        value = loss(model, batch)
        return value * float("inf") if next(count) in numbers else value

    return spoilt


def plain_loop(data, factors, spoilt, *, clip, steps_per_update=1):
    """Scale, backward, unscale, clip, step, update: the order that PyTorch documents (accelerate#641)."""
    model = small()
    optimizer = momentum(model.parameters())
    scaler = torch.amp.GradScaler("cpu", **factors)
    scales = []
    for number, batch in enumerate(data):
        scales.append(scaler.get_scale())
        scaler.scale(spoilt(model, batch)).backward()
        if (number + 1) % steps_per_update == 0:
            scaler.unscale_(optimizer)
            if steps_per_update > 1:
                for p in model.parameters():
                    p.grad /= steps_per_update
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return model, scaler, scales


def train(rule, waves, factors, spoilt, data, *, clip=None, accumulate=1, drains=()):
    model = small()
    scaler = torch.amp.GradScaler("cpu", **factors)
    optimizer = momentum(model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with wavelet.Wavelet(
            model, optimizer, spoilt, waves=waves, update=rule, resync=None,
            clip_grad_norm=clip, grad_scaler=scaler, accumulate=accumulate,
        ) as engine:  # fmt: skip
            for number, batch in enumerate(data):
                if number in drains:
                    engine.drain()
                engine.step(batch)
    return model, scaler, optimizer


@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
@each_rule
def test_one_wave_equals_the_plain_loop_with_a_scaler(rule, factors):
    data = batches(14, size=6)
    expected, scaler, _ = plain_loop(data, factors, spoiling(0, 5, 6), clip=0.5)
    model, mine, _ = train(rule, 1, factors, spoiling(0, 5, 6), data, clip=0.5)
    assert_same(trained_weights(model), trained_weights(expected))
    assert mine.state_dict() == scaler.state_dict()


def test_a_round_equals_the_plain_loop_with_accumulation_and_a_scaler():
    data = batches(16, size=6)
    torch.set_num_threads(1)
    expected, scaler, _ = plain_loop(data, FACTORS["usual"], spoiling(5), clip=0.5, steps_per_update=4)
    torch.set_num_threads(2)
    model, mine, _ = train("synchronous", 2, FACTORS["usual"], spoiling(5), data, clip=0.5, accumulate=2)
    assert_same(trained_weights(model), trained_weights(expected))
    assert mine.state_dict() == scaler.state_dict()


def state_of(factors):
    names = {"init_scale": "scale"}
    return {**{names.get(name, name): value for name, value in factors.items()}, "_growth_tracker": 0}


@pytest.mark.parametrize("drains", [(), (4, 7)], ids=["running", "drained"])
@each_rule_in_2_and_3_waves
def test_a_gradient_that_is_not_finite_skips_its_own_update_only(rule, waves, drains):
    """It counts as missing for its neighbours, and batch n uses the scale after update n-K."""
    data = batches(12, size=6)
    state = state_of(FACTORS["usual"])
    serial = Serial(small(), momentum, rule=rule, waves=waves, loss=spoiling(2, 6, 7), clip=0.5, scale=state)
    for batch in data:
        serial.step(batch)
    model, scaler, _ = train(rule, waves, FACTORS["usual"], spoiling(2, 6, 7), data, clip=0.5, drains=drains)
    assert_same(trained_weights(model), [p.detach() for p in serial.newest[0]])
    assert scaler.state_dict() == state


def test_the_scale_that_each_batch_sees():
    """K = 2: updates 0 and 1 fail, so the scale halves twice; batch 2 sees the first halving, batch 3 both."""
    seen = []

    def looking(model, batch):
        value = loss(model, batch)
        value.register_hook(lambda gradient: seen.append(gradient.item()))
        return value * float("inf") if len(started) < 2 and not started.append(1) else value

    started = []
    model = small()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    with wavelet.Wavelet(model, momentum(model.parameters()), looking, grad_scaler=scaler) as engine:
        for batch in batches(5):
            engine.step(batch).wait()
    assert seen[2:] == [512.0, 256.0, 256.0]


def test_a_skipped_update_moves_nothing():
    model = small()
    before = trained_weights(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with wavelet.Wavelet(
        model, momentum(model.parameters()), spoiling(*range(10)), update="delayed", grad_scaler=scaler
    ) as engine:
        steps = [engine.step(batch) for batch in batches(4)]
    assert_same(trained_weights(model), before)
    assert scaler.get_scale() == 0.25
    assert all(step.loss == float("inf") for step in steps), "the loss is reported as it was"


def test_the_loss_of_a_step_is_not_scaled():
    model = small()
    torch.manual_seed(3)
    expected = loss(copy.deepcopy(model), batches(1)[0]).item()
    torch.manual_seed(3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with wavelet.Wavelet(model, momentum(model.parameters()), loss, grad_scaler=scaler) as engine:
        assert engine.step(batches(1)[0]).loss == expected


def test_the_scale_stops_growing_before_it_overflows():
    """As GradScaler does, which keeps a scale whose successor would be infinite."""
    factors = {"init_scale": 2.0**126, "growth_factor": 4.0, "growth_interval": 1}

    def tiny(model, batch):
        return loss(model, batch) * 2.0**-126

    data = batches(4, size=6)
    expected, scaler, _ = plain_loop(data, factors, tiny, clip=1.0)
    model, mine, _ = train("delayed", 1, factors, tiny, data, clip=1.0)
    assert mine.state_dict() == scaler.state_dict()
    assert_same(trained_weights(model), trained_weights(expected))


def test_a_disabled_scaler_is_no_scaler():
    data = batches(6, size=6)
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", enabled=False)):
        model = small()
        with wavelet.Wavelet(model, momentum(model.parameters()), loss, grad_scaler=scaler) as engine:
            for batch in data:
                engine.step(batch)
        results.append(trained_weights(model))
    assert_same(*results)


@each_rule
def test_the_scale_is_saved_and_loaded(rule, tmp_path):
    data = batches(14, size=6)

    def engine_with(model, spoilt):
        scaler = torch.amp.GradScaler("cpu", **FACTORS["usual"])
        return scaler, wavelet.Wavelet(
            model, momentum(model.parameters()), spoilt, update=rule, accumulate=2, grad_scaler=scaler
        )

    model = small()
    scaler, engine = engine_with(model, spoiling(3, 8))
    with engine:
        for number, batch in enumerate(data):
            if number == 5:
                torch.save(engine.state_dict(), tmp_path / "state.pt")
            engine.step(batch)
    resumed = small()
    other, engine = engine_with(resumed, spoiling(3))
    with engine:
        engine.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        for batch in data[5:]:
            engine.step(batch)
    assert_same(trained_weights(resumed), trained_weights(model))
    assert other.state_dict() == scaler.state_dict()


def test_a_scale_that_the_user_sets_after_a_drain():
    seen = []

    def looking(model, batch):
        value = loss(model, batch)
        value.register_hook(lambda gradient: seen.append(gradient.item()))
        return value

    model = small()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with wavelet.Wavelet(model, momentum(model.parameters()), looking, grad_scaler=scaler) as engine:
        for batch in batches(2):
            engine.step(batch).wait()
        engine.drain()
        scaler.load_state_dict({**scaler.state_dict(), "scale": 16.0})
        for batch in batches(2):
            engine.step(batch).wait()
    assert seen == [1024.0, 1024.0, 16.0, 16.0]
