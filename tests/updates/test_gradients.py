"""Arithmetic on lists of gradients equals the plain sums of the rules, and writes only what it may."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import wavelet
from wavelet.fingerprint import fingerprint
from wavelet.updates.gradients import add_, all_finite, divide_, mean_of_window, take_gradients

from .. import oracle
from ..models import assert_same, batches, loss, mlp, trained_weights

quick = settings(max_examples=60, deadline=None, derandomize=True)
numbers = st.floats(-8, 8, width=32)
KINDS = ("none", "dense", "sparse", "complex")


@st.composite
def windows(draw):
    """``size`` and up to ``size`` lists of gradients; each is missing, dense or sparse, and one has complex numbers."""
    size = draw(st.integers(1, 4))
    count = draw(st.integers(1, size))
    return size, [[draw(gradient(kind)) for kind in ("dense", "either", "complex")] for _ in range(count)]


@st.composite
def gradient(draw, kind):
    values = torch.tensor(draw(st.lists(numbers, min_size=6, max_size=6))).view(3, 2)
    choice = draw(st.sampled_from(["missing", "dense", "sparse"]))
    if choice == "missing":
        return None
    if kind == "complex":
        return torch.complex(values, values.flip(0))
    return values.to_sparse(1) if kind == "either" and choice == "sparse" else values


def plain(tensor):
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def expected_mean(window, size):
    """Oldest first, then divided; missing counts as zero unless all are missing."""
    means = []
    for parts in zip(*window, strict=True):
        total = None
        for part in parts:
            if part is not None:
                total = plain(part).clone() if total is None else total + plain(part)
        means.append(None if total is None else total / size)
    return means


def snapshot(window):
    return [[None if g is None else plain(g).clone() for g in gradients] for gradients in window]


def assert_equal(left, right):
    assert [g is None for g in left] == [g is None for g in right]
    for a, b in zip(left, right, strict=True):
        assert a is None or torch.equal(plain(a), plain(b))


@quick
@given(windows())
def test_the_mean_of_a_window(case):
    size, window = case
    before, expected = snapshot(window), expected_mean(window, size)
    mean = mean_of_window(window, size)
    assert_equal(mean, expected)
    kept = 1 if len(window) == size else 0
    for gradients, old in list(zip(window, before, strict=True))[kept:]:
        assert_equal(gradients, old)
    divide_(mean, 3.0)  # the mean may be written: the kept gradients must not move
    for gradients, old in list(zip(window, before, strict=True))[kept:]:
        assert_equal(gradients, old)


@quick
@given(windows())
def test_a_sum_that_takes_what_it_is_given(case):
    _, window = case
    expected = expected_mean(window, 1)
    total = [None] * 3
    for gradients in window:
        add_(total, gradients)
    assert_equal(total, expected)


@quick
@given(gradient("either"), gradient("complex"), st.booleans(), st.sampled_from([float("inf"), float("nan")]))
def test_finite_or_not(first, second, spoilt, value):
    gradients = [None, first, second]
    present = [g for g in gradients if g is not None]
    if spoilt and present and present[-1].numel():
        numbers = present[-1].coalesce().values() if present[-1].is_sparse else present[-1]
        if numbers.numel():
            numbers.view(-1)[-1] = value
            assert not all_finite(gradients)
            return
    assert all_finite(gradients)


def test_a_huge_gradient_is_finite():
    """Its norm would not be, nor would the sum of its elements."""
    assert all_finite([torch.full((1000,), 3e38), torch.full((10,), 6e4, dtype=torch.float16)])
    assert not all_finite([torch.ones(3), torch.tensor([1.0, float("nan")])])
    assert all_finite([])
    assert all_finite([None, torch.empty(0)])


def test_gradients_are_given_up():
    parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1))]
    parameters[0].grad = torch.ones(2)
    assert_equal(take_gradients(parameters), [torch.ones(2), None])
    assert parameters[0].grad is None


# Fingerprints.


dtypes = st.sampled_from(
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int64]
)


@quick
@given(dtypes, st.sampled_from([2, 5, 1024, 1500, 5000]), st.randoms(use_true_random=False))
def test_a_fingerprint_sees_one_changed_element_and_two_exchanged_ones(dtype, count, chance):
    tensor = (torch.arange(count) % 1000 + 1).to(dtype)
    before = fingerprint(tensor)
    assert torch.equal(fingerprint(tensor.clone()), before)
    i, j = chance.sample(range(count), 2)
    negated = tensor.clone()
    negated[i] = -negated[i]
    assert not torch.equal(fingerprint(negated), before), "one sign"
    negated[j] = -negated[j]
    assert not torch.equal(fingerprint(negated), before), "two signs"
    assert not torch.equal(fingerprint(-tensor), before), "all signs"
    exchanged = tensor.clone()
    exchanged[i], exchanged[j] = tensor[j], tensor[i]
    if tensor[i] != tensor[j]:
        assert not torch.equal(fingerprint(exchanged), before)


def test_a_fingerprint_of_any_layout():
    tensor = torch.randn(6, 5)
    assert torch.equal(fingerprint(tensor.t().contiguous().t()), fingerprint(tensor))
    assert fingerprint(torch.empty(0)).shape == (4,)
    assert fingerprint(torch.ones(())).shape == (4,)
    assert fingerprint(torch.ones(3, dtype=torch.bool)).shape == (4,)


# Gradients of unusual kinds, end to end.


class Words(nn.Module):
    """An embedding with sparse gradients, and a dense layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 8, sparse=True)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.embedding(words(x)).mean(1))


def words(x):
    return (x.abs() * 10).long().clamp(max=19)


RULES = ["neighbour", "synchronous", "delayed"]


def compare(build, make_optimizer, rule, *, loss_function=loss, accumulate=1, waves=2, resync=None, clip=None):
    data = batches(11, size=6)
    expected = oracle.train(
        build(), make_optimizer, loss_function, data,
        rule=rule, waves=waves, accumulate=accumulate, resync=resync, clip=clip,
    )  # fmt: skip
    model = build()
    optimizer = make_optimizer(model.parameters())
    with wavelet.Wavelet(
        model, optimizer, loss_function,
        waves=waves, update=rule, accumulate=accumulate, resync=resync, clip_grad_norm=clip,
    ) as engine:  # fmt: skip
        steps = [engine.step(batch) for batch in data]
    assert [step.loss for step in steps] == expected.losses
    assert_same(trained_weights(model), expected.weights)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("waves", [2, 3])
@pytest.mark.parametrize("rule", RULES)
def test_sparse_gradients(rule, waves, accumulate):
    compare(Words, lambda p: torch.optim.SGD(p, lr=0.1), rule, waves=waves, accumulate=accumulate)


class Complex(nn.Module):
    """A layer with complex weights between two real ones."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.phases = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, x):
        return self.last((self.first(x) * self.phases).abs())


@pytest.mark.parametrize("resync", [None, 2])
@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01)]
)
@pytest.mark.parametrize("rule", RULES)
def test_complex_parameters(rule, make, resync):
    compare(Complex, make, rule, resync=resync if rule == "neighbour" else None, clip=0.5)


def penalised(model, batch):
    """A gradient penalty: an inner backward during forward, whose graph is kept for the outer one."""
    x, y = batch
    x = x.clone().requires_grad_(True)
    value = nn.functional.cross_entropy(model(x), y)
    (slope,) = torch.autograd.grad(value, x, create_graph=True)
    return value + slope.square().sum()


@pytest.mark.parametrize("waves", [2, 3])
@pytest.mark.parametrize("rule", RULES)
def test_a_gradient_penalty(rule, waves):
    compare(
        lambda: mlp(depth=1, norm=False, dropout=0.0),
        lambda p: torch.optim.Adam(p, lr=0.01),
        rule,
        loss_function=penalised,
        waves=waves,
    )
