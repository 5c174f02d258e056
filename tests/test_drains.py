"""After a drain the face is the newest; draining and saving change no later result."""

import copy
import random

import numpy
import pytest
import torch
from torch import nn

import wavelet

from .faces import Face, adam, each_rule, each_rule_in_2_and_3_waves, momentum, small
from .models import Serial, assert_same, batches, loss, trained_weights

# Draining.


@pytest.mark.parametrize("accumulate", [1, 2])
@each_rule
def test_drains_at_random_change_no_bit(rule, accumulate):
    chance = random.Random(5)
    results = []
    for draining in (False, True, True):
        torch.manual_seed(3)
        with Face(small(), adam, update=rule, accumulate=accumulate, resync=2 if rule == "neighbour" else None) as face:
            steps = []
            for batch in batches(17, size=6):
                if draining and chance.random() < 0.5:
                    face.engine.drain()
                steps.append(face.step(batch))
        results.append(([step.loss for step in steps], trained_weights(face.model)))
    for losses, weights in results[1:]:
        assert losses == results[0][0]
        assert_same(weights, results[0][1])


@pytest.mark.parametrize("count", [5, 8])
@pytest.mark.parametrize("make_optimizer", [momentum, adam])
@each_rule_in_2_and_3_waves
def test_after_a_drain_the_face_is_the_newest(rule, waves, make_optimizer, count):
    """Weights, buffers and optimizer state, while an incomplete round stays open."""
    torch.manual_seed(3)
    serial = Serial(small(), make_optimizer, rule=rule, waves=waves)
    for batch in batches(count, size=6):
        serial.step(batch)
    torch.manual_seed(3)
    with Face(small(), make_optimizer, waves=waves, update=rule) as face:
        for batch in batches(count, size=6):
            face.step(batch)
        face.engine.drain()
        parameters, optimizer = serial.newest
        assert_same(trained_weights(face.model), [p.detach() for p in parameters])
        assert_same(list(face.model.buffers()), list(serial.model.buffers()))
        assert len(face.optimizer.state) == len(parameters)
        for p, q in zip(face.model.parameters(), parameters, strict=True):
            assert_same(list(face.optimizer.state[p].values()), list(optimizer.state[q].values()))


@each_rule
def test_a_plain_optimizer_goes_on_from_the_state_after_a_drain(rule):
    data = batches(8, size=6)
    with Face(small(dropout=0.0), adam, update=rule, waves=1) as face:
        for batch in data[:6]:
            face.step(batch)
        face.engine.drain()
        model, saved = copy.deepcopy(face.model), copy.deepcopy(face.optimizer.state_dict())
        plain = adam(model.parameters())
        plain.load_state_dict(saved)
        for batch in data[6:]:
            face.step(batch)
            plain.zero_grad()
            loss(model, batch).backward()
            plain.step()
    assert_same(trained_weights(face.model), trained_weights(model))


@each_rule
def test_after_closing_the_users_own_loop_goes_on(rule):
    data = batches(8, size=6)
    with Face(small(dropout=0.0), adam, update=rule, waves=1) as face:
        for batch in data[:6]:
            face.step(batch)
    for batch in data[6:]:
        face.optimizer.zero_grad()
        loss(face.model, batch).backward()
        face.optimizer.step()
    serial = Serial(small(dropout=0.0), adam, rule=rule, waves=1)
    for batch in data:
        serial.step(batch)
    assert_same(trained_weights(face.model), [p.detach() for p in serial.newest[0]])


@pytest.mark.parametrize("ending", ["drain", "close"])
def test_a_group_added_after_the_last_batch_keeps_the_newest_state_in_the_face(ending):
    model = small()
    optimizer = momentum(model[0].parameters())
    with wavelet.Wavelet(model, optimizer, loss) as engine:
        for batch in batches(4):
            engine.step(batch)
        optimizer.add_param_group({"params": list(model[-1].parameters())})
        getattr(engine, ending)()
        assert all("momentum_buffer" in optimizer.state[p] for p in model[0].parameters())


def test_an_added_group_and_a_loaded_optimizer_are_in_the_saved_state():
    """What the next batch would depend on is saved, also where no batch has adopted it yet."""
    model = small()
    optimizer = momentum(model[0].parameters())
    with wavelet.Wavelet(model, optimizer, loss) as engine:
        engine.step(batches(1)[0])
        optimizer.add_param_group({"params": list(model[-1].parameters()), "lr": 0.5})
        assert [len(state["param_groups"]) for state in engine.state_dict()["optimizers"]] == [2, 2]
        changed = copy.deepcopy(optimizer.state_dict())
        changed["param_groups"][0]["lr"] = 0.25
        optimizer.load_state_dict(changed)
        assert [state["param_groups"][0]["lr"] for state in engine.state_dict()["optimizers"]] == [0.25, 0.25]


def test_evaluation_after_a_drain_is_the_users_own_business():
    """A validation pass in eval mode leaves the later losses alone."""
    results = []
    for validating in (False, True):
        torch.manual_seed(3)
        with Face(small(dropout=0.0), adam) as face:
            steps = []
            for batch in batches(8, size=6):
                if validating:
                    face.engine.drain()
                    face.model.eval()
                    with torch.no_grad():
                        loss(face.model, batch)
                    face.model.train()
                steps.append(face.step(batch))
        results.append([step.loss for step in steps])
    assert results[0] == results[1]


def test_buffers_written_after_a_drain_are_taken_over():
    with Face(small(), momentum) as face:
        data = batches(4)
        face.step(data[0])
        face.engine.drain()
        face.model[1][1].num_batches_tracked.fill_(100)
        for batch in data[1:]:
            face.step(batch)
        face.engine.drain()
        assert face.model[1][1].num_batches_tracked.item() == 103


def test_replaced_parameters_are_a_clear_error():
    with Face(small(), momentum) as face:
        face.step(batches(1)[0])
        face.engine.drain()
        face.model[0] = nn.Linear(8, 16)
        for _ in range(2):
            with pytest.raises(ValueError, match="replaced by others: make a new engine"):
                face.step(batches(1)[0])
        with pytest.raises(ValueError, match="replaced by others"):
            face.engine.close()


def test_a_parameter_of_another_shape_is_a_clear_error():
    with Face(small(), momentum) as face:
        face.engine.drain()
        face.model[-1].weight.data = torch.zeros(5, 16)
        with pytest.raises(ValueError, match=r"'2.weight' has changed from \(4, 16\), torch.float32 to \(5, 16\)"):
            face.step(batches(1)[0])
        face.model[-1].weight.data = torch.zeros(4, 16)


# Saving.


@each_rule_in_2_and_3_waves
def test_a_weight_frozen_before_saving_is_resumed_as_it_was(rule, waves):
    """Also where the waves' copies of it differ at that moment."""
    data = batches(12, size=6)

    def engine_on(model):
        return wavelet.Wavelet(model, momentum(model.parameters()), loss, waves=waves, update=rule, resync=None)

    torch.manual_seed(3)
    model = small(dropout=0.0)
    with engine_on(model) as engine:
        for batch in data[:5]:
            engine.step(batch)
        model[0].weight.requires_grad_(False)
        state = engine.state_dict()
        losses = [engine.step(batch).loss for batch in data[5:]]
    resumed = small(dropout=0.0)
    resumed[0].weight.requires_grad_(False)
    with engine_on(resumed) as engine:
        engine.load_state_dict(state)
        assert [engine.step(batch).loss for batch in data[5:]] == losses
    assert_same(trained_weights(resumed), trained_weights(model))


def test_a_state_with_other_groups_is_refused_before_anything_changes():
    model = small()
    with wavelet.Wavelet(model, momentum(groups_of(model)), loss) as engine:
        engine.step(batches(1)[0])
        state = engine.state_dict()
    other = small(seed=1)
    before = trained_weights(other)
    with wavelet.Wavelet(other, momentum(other.parameters()), loss) as engine:
        with pytest.raises(ValueError, match="group"):
            engine.load_state_dict(state)
        engine.drain()
        assert_same(trained_weights(other), before)


def groups_of(model):
    return [{"params": list(model[0].parameters())}, {"params": list(model[1:].parameters())}]


def test_rates_of_numpy_are_saved_as_plain_numbers(tmp_path):
    """A schedule computed by numpy: ``torch.load(..., weights_only=True)`` would refuse its numbers."""
    with Face(small(), momentum) as face:
        face.optimizer.param_groups[0]["lr"] = numpy.float64(0.03)
        face.step(batches(1)[0])
        torch.save(face.engine.state_dict(), tmp_path / "state.pt")
        face.engine.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert face.optimizer.param_groups[0]["lr"] == 0.03


def test_an_engine_that_never_stepped_can_be_saved_drained_and_closed():
    with Face(small(), momentum) as face:
        before = trained_weights(face.model)
        face.engine.drain()
        face.engine.flush()
        assert face.engine.state_dict()["num_batches"] == 0
    assert_same(trained_weights(face.model), before)


# The caller's thread.


def test_intra_op_threads_are_divided_and_given_back():
    seen = []

    def looking(model, batch):
        seen.append(torch.get_num_threads())
        value = loss(model, batch)
        value.register_hook(lambda gradient: seen.append(torch.get_num_threads()))
        return value

    with Face(small(), momentum, loss=looking) as face:
        face.step(batches(1)[0])
        face.engine.drain()
        assert torch.get_num_threads() == 2
        face.step(batches(1)[0])
    assert torch.get_num_threads() == 2
    assert seen == [1, 1, 1, 1]


def test_intra_op_threads_are_given_back_when_an_error_ends_the_engine():
    def failing(gradient):
        raise KeyError("boom")

    def bad(model, batch):
        value = loss(model, batch)
        value.register_hook(failing)
        return value

    with pytest.raises(KeyError), Face(small(), momentum, loss=bad).engine as engine:
        for batch in batches(4):
            engine.step(batch)
    assert torch.get_num_threads() == 2
