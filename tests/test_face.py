"""The user's model and optimizer are the face: changes there hold for the batches handed in afterwards."""

import copy
import random
import warnings

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import wavelet

from . import oracle
from .models import Serial, assert_same, batches, loss, mlp, trained_weights

RULES = ["neighbour", "synchronous", "delayed"]
each_rule = pytest.mark.parametrize("rule", RULES)
each_rule_in_2_and_3_waves = pytest.mark.parametrize(
    ("rule", "waves"), [(rule, waves) for rule in RULES for waves in (2, 3)]
)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


class Face:
    """The engine as the tests' hand sees it: the same names as :class:`Serial` has."""

    def __init__(self, model, make_optimizer, **options):
        self.model = model
        self.pairs = [(list(model.parameters()), make_optimizer(model.parameters()))]
        self.copies = [self.pairs[0][0]]
        self.optimizer = self.pairs[0][1]
        options.setdefault("resync", None)
        self.engine = wavelet.Wavelet(model, self.optimizer, options.pop("loss", loss), **options)

    def step(self, batch):
        return self.engine.step(batch)

    def __enter__(self):
        self.engine.__enter__()
        return self

    def __exit__(self, *error):
        self.engine.__exit__(*error)


def small(**options):
    return mlp(depth=1, **options)


def compare(rule, waves, act, *, make_optimizer=momentum, count=14, drains=(), model=small):
    """``act(n, hand)`` changes things before batch n: the engine must follow as the serial rule does."""
    data = batches(count, size=6)
    torch.manual_seed(3)
    serial = Serial(model(), make_optimizer, rule=rule, waves=waves)
    losses = []
    for n, batch in enumerate(data):
        act(n, serial)
        losses.append(serial.step(batch))
    torch.manual_seed(3)
    with Face(model(), make_optimizer, waves=waves, update=rule) as face:
        steps = []
        for n, batch in enumerate(data):
            if n in drains:
                face.engine.drain()
            act(n, face)
            steps.append(face.step(batch))
        face.engine.drain()
        assert [step.loss for step in steps] == losses
        assert_same(trained_weights(face.model), [p.detach() for p in serial.newest[0]])
        assert_same(list(face.model.buffers()), list(serial.model.buffers()))


def change_groups(hand, **entries):
    for _, optimizer in hand.pairs:
        optimizer.param_groups[0].update(entries)


# Rates, schedulers, groups.


@each_rule_in_2_and_3_waves
def test_rates_that_the_user_changes_between_steps(rule, waves):
    def act(n, hand):
        change_groups(hand, lr=0.1 / (n + 1))
        if n == 5:
            change_groups(hand, momentum=0.5, weight_decay=0.1)

    compare(rule, waves, act)


@each_rule
def test_betas_that_the_user_changes(rule):
    compare(rule, 2, lambda n, hand: change_groups(hand, betas=(0.8, 0.9 + n / 1000)), make_optimizer=adam)


@each_rule
def test_a_rate_that_is_a_tensor_and_changes_in_place(rule):
    def act(n, hand):
        for _, optimizer in hand.pairs:
            optimizer.param_groups[0]["lr"].fill_(0.02 / (n + 1))

    compare(rule, 2, act, make_optimizer=lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)))


SCHEDULERS = {
    "exponential": (momentum, lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.8)),
    "one cycle, momentum": (momentum, lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=40)),
    "one cycle, betas": (adam, lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.02, total_steps=40)),
}


def entries_at_each_update(make_optimizer, make_scheduler, count):
    """What a plain loop's scheduler writes into the group, update by update."""
    optimizer = make_optimizer([nn.Parameter(torch.zeros(1))])
    scheduler, entries = make_scheduler(optimizer), []
    for _ in range(count):
        entries.append({name: value for name, value in optimizer.param_groups[0].items() if name != "params"})
        optimizer.step()
        scheduler.step()
    return entries


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("own", [False, True], ids=["scheduler=", "stepped by the user"])
@pytest.mark.parametrize("accumulate", [1, 2])
@each_rule
def test_a_scheduler_steps_once_an_update(rule, accumulate, own, name):
    make_optimizer, make_scheduler = SCHEDULERS[name]
    data = batches(12, size=6)
    entries = entries_at_each_update(make_optimizer, make_scheduler, 12)
    torch.manual_seed(3)
    expected = oracle.train(
        small(), make_optimizer, loss, data, rule=rule, waves=2, accumulate=accumulate,
        before_step=lambda number, optimizer: optimizer.param_groups[0].update(entries[number]),
    )  # fmt: skip
    torch.manual_seed(3)
    model = small()
    optimizer = make_optimizer(model.parameters())
    scheduler = make_scheduler(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with wavelet.Wavelet(
            model,
            optimizer,
            loss,
            update=rule,
            accumulate=accumulate,
            resync=None,
            scheduler=None if own else scheduler,
        ) as engine:
            updates = 0
            for n, batch in enumerate(data):
                engine.step(batch)
                position = n % (2 * accumulate)
                updating = position == 2 * accumulate - 1 if rule == "synchronous" else position >= 2 * accumulate - 2
                updates += updating
                if own and updating:
                    scheduler.step()
    assert scheduler.last_epoch == updates
    assert_same(trained_weights(model), expected.weights)


def test_a_scheduler_steps_also_for_the_update_of_a_flush():
    model = small()
    optimizer = momentum(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with wavelet.Wavelet(model, optimizer, loss, update="synchronous", accumulate=2, scheduler=scheduler) as engine:
        for batch in batches(5, size=6):
            engine.step(batch)
    assert scheduler.last_epoch == 2


@each_rule_in_2_and_3_waves
@pytest.mark.parametrize("drains", [(), (6,)], ids=["running", "drained"])
def test_an_optimizer_state_loaded_midway(rule, waves, drains):
    donor = small()
    trained = adam(donor.parameters())
    for batch in batches(3, size=6, seed=9):
        trained.zero_grad()
        loss(donor, batch).backward()
        trained.step()
    trained.param_groups[0]["lr"] = 0.003
    saved = trained.state_dict()

    def act(n, hand):
        if n == 6:
            for _, optimizer in hand.pairs:
                optimizer.load_state_dict(copy.deepcopy(saved))

    compare(rule, waves, act, make_optimizer=adam, drains=drains)


@each_rule_in_2_and_3_waves
@pytest.mark.parametrize("drains", [(), (5, 9)], ids=["running", "drained"])
def test_a_group_added_midway(rule, waves, drains):
    def act(n, hand):
        if n == 5:
            for parameters, optimizer in hand.pairs:
                optimizer.add_param_group({"params": parameters[-2:], "lr": 0.01})
        if n == 9:
            for _, optimizer in hand.pairs:
                optimizer.param_groups[1]["lr"] = 0.2

    compare(rule, waves, act, make_optimizer=lambda p: momentum(list(p)[:-2]), drains=drains)


@each_rule
def test_a_weight_moved_to_another_group_midway_keeps_its_momentum(rule):
    def make(parameters):
        parameters = list(parameters)
        groups = [{"params": parameters[:-2]}, {"params": parameters[-2:], "lr": 0.01}]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)

    def act(n, hand):
        if n == 6:
            for _, optimizer in hand.pairs:
                first, second = optimizer.param_groups
                second["params"].append(first["params"].pop())

    compare(rule, 2, act, make_optimizer=make)


def test_a_group_with_a_parameter_outside_the_model_is_refused():
    with Face(small(), momentum) as face:
        face.step(batches(1)[0])
        face.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        with pytest.raises(ValueError, match="not in the model"):
            face.step(batches(1)[0])


def test_zero_grad_left_in_the_loop_does_no_harm():
    model = small()
    loss(model, batches(1)[0]).backward()
    with Face(model, momentum) as face:
        for batch in batches(4):
            face.step(batch)
            face.optimizer.zero_grad()


# Modes.


@each_rule_in_2_and_3_waves
def test_train_and_eval(rule, waves):
    def act(n, hand):
        if n == 4:
            hand.model.eval()
        if n == 8:
            hand.model.train()
            hand.model[1][1].eval()

    compare(rule, waves, act)


@each_rule_in_2_and_3_waves
def test_freezing_and_unfreezing(rule, waves):
    """Weight decay, momentum and the gradients kept from before would all move a weight that is not left alone."""

    def act(n, hand):
        if n in (5, 9):
            for index in (0, 3):
                list(hand.model.parameters())[index].requires_grad_(n == 9)

    compare(rule, waves, act)


@each_rule
def test_a_weight_frozen_at_first(rule):
    def frozen():
        model = small()
        model[0].weight.requires_grad_(False)
        return model

    def act(n, hand):
        if n == 6:
            hand.model[0].weight.requires_grad_(True)

    compare(rule, 2, act, model=frozen)


def test_a_kept_gradient_moves_no_frozen_weight():
    with Face(small(), momentum, update="neighbour") as face:
        data = batches(6)
        for batch in data[:4]:
            face.step(batch)
        face.engine.drain()
        before = face.model[0].weight.detach().clone()
        face.model[0].weight.requires_grad_(False)
        face.step(data[4])  # with the kept gradient of batch 3, in the tick-wave
        face.step(data[5])
        face.engine.drain()
        assert torch.equal(face.model[0].weight, before)


def test_a_model_frozen_whole_is_an_error_that_passes():
    with Face(small(), momentum) as face:
        face.step(batches(1)[0])
        face.model.requires_grad_(False)
        with pytest.raises(ValueError, match="everything frozen"):
            face.step(batches(1)[0])
        face.model.requires_grad_(True)
        face.step(batches(1)[0])


# Anything, in any order.


def set_rate(hand, n, value):
    change_groups(hand, lr=value)


def freeze(hand, n, index):
    parameter = list(hand.model.parameters())[index]
    parameter.requires_grad_(not parameter.requires_grad)


def switch(hand, n, training):
    hand.model.train(training)


def write(hand, n, index):
    """Another value from the newest, in one tensor of all copies."""
    if isinstance(hand, Face):
        hand.engine.drain()
        hand.copies[0][index].data.mul_(0.5).add_(0.3)
    else:
        value = hand.newest[0][index].detach() * 0.5 + 0.3
        for weights in hand.copies:
            weights[index].data.copy_(value)


def drain(hand, n, _):
    if isinstance(hand, Face):
        hand.engine.drain()


def save(hand, n, _):
    if isinstance(hand, Face):
        hand.engine.load_state_dict(hand.engine.state_dict())


def reload(hand, n, rate):
    for _, optimizer in hand.pairs:
        saved = copy.deepcopy(optimizer.state_dict())
        saved["state"] = {}
        saved["param_groups"][0]["lr"] = rate
        optimizer.load_state_dict(saved)


rates = st.sampled_from([0.0, 0.01, 0.05, 0.1])
indices = st.integers(1, 7)  # never all frozen: the first weight is left alone
acts = st.one_of(
    st.tuples(st.just(set_rate), rates),
    st.tuples(st.just(freeze), indices),
    st.tuples(st.just(switch), st.booleans()),
    st.tuples(st.just(write), indices),
    st.tuples(st.just(drain), st.none()),
    st.tuples(st.just(save), st.none()),
    st.tuples(st.just(reload), rates),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(RULES), st.sampled_from([2, 3]), st.lists(st.lists(acts, max_size=2), min_size=3, max_size=12))
def test_any_sequence_of_changes_equals_the_serial_rule(rule, waves, program):
    def act(n, hand):
        for function, value in program[n]:
            function(hand, n, value)

    compare(rule, waves, act, count=len(program))


# Weights written after a drain.


def halve_by_load_state_dict(parameters, index, model):
    name = [name for name, _ in model.named_parameters()][index]
    model.load_state_dict({name: parameters[index].detach() / 2}, strict=False)


def halve_by_copy(parameters, index, model):
    with torch.no_grad():
        parameters[index].copy_(parameters[index] / 2)


def halve_by_data(parameters, index, model):
    parameters[index].data.div_(2)


def halve_by_new_data(parameters, index, model):
    parameters[index].data = parameters[index].data / 2


@pytest.mark.parametrize(
    "halve", [halve_by_load_state_dict, halve_by_copy, halve_by_data, halve_by_new_data], ids=lambda f: f.__name__
)
@each_rule_in_2_and_3_waves
def test_one_tensor_written_after_a_drain_reaches_every_wave(rule, waves, halve):
    """All waves see the new value of that tensor, and no other tensor of theirs moves."""

    def act(n, hand):
        if n == 7:
            value = hand.newest[0][2].detach() / 2 if isinstance(hand, Serial) else None
            if value is None:
                hand.engine.drain()
                halve(hand.copies[0], 2, hand.model)
            else:
                for weights in hand.copies:
                    with torch.no_grad():
                        weights[2].copy_(value)

    compare(rule, waves, act)


@each_rule
def test_a_sign_changed_in_a_double_is_seen(rule):
    def double():
        return small(dropout=0.0, norm=False).double()

    data = [(x.double(), y) for x, y in batches(8, size=6)]
    results = []
    for drained in (True, False):
        model = double()
        optimizer = momentum(model.parameters())
        with wavelet.Wavelet(model, optimizer, loss, update=rule, resync=None) as engine:
            for batch in data[:4]:
                engine.step(batch)
            engine.drain()
            with torch.no_grad():
                model[0].weight.neg_()
            if not drained:
                model[0].weight.data[0, 0] *= 1 + 1e-12  # a change that nobody could miss
            for batch in data[4:]:
                engine.step(batch)
        results.append(trained_weights(model))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


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
