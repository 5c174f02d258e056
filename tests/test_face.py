"""The user's model and optimizer are the face: changes there hold for the batches handed in afterwards."""

import copy
import warnings

import pytest
import torch
from torch import nn

import wavelet

from . import oracle
from .faces import Face, adam, change_groups, compare, each_rule, each_rule_in_2_and_3_waves, momentum, small
from .models import assert_same, batches, loss, trained_weights

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


# Plain attributes.


class Annealed(nn.Module):
    """Has a temperature that the user changes, and a counter that the forward changes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.drop = nn.Linear(8, 4), nn.Dropout(0.1)
        self.temperature, self.count = 1.0, 0

    def forward(self, x):
        self.count += 1
        return self.drop(self.layer(x)) / self.temperature


@each_rule_in_2_and_3_waves
def test_numbers_that_the_user_changes_on_modules(rule, waves):
    """A schedule of temperatures and of dropout; what the forward counts itself is left alone."""

    def act(n, hand):
        hand.model.temperature = 1 + n / 4
        hand.model.drop.p = 0.5 if n % 3 else 0.0

    compare(rule, waves, act, model=Annealed, drains=(5,))


@each_rule
def test_an_optimizer_state_that_is_cleared_after_a_drain(rule):
    def act(n, hand):
        if n == 7:
            if isinstance(hand, Face):
                hand.engine.drain()
            for _, optimizer in hand.pairs:
                optimizer.state.clear()

    compare(rule, 2, act, make_optimizer=adam)


def test_a_tensor_put_where_a_number_was_is_no_error():
    model = Annealed()
    with wavelet.Wavelet(model, momentum(model.parameters()), loss) as engine:
        for batch in batches(4):
            model.temperature = torch.ones(2)
            engine.step(batch)
