"""Compiled replicas, and models that the user compiled: the same training, and no replica calls the original."""

import time

import pytest
import torch
from torch import nn
from torch._dynamo import eval_frame

import wavelet

from . import oracle
from .models import batches, loss, mlp, trained_weights

RULES = ["neighbour", "synchronous", "delayed"]
each_rule = pytest.mark.parametrize("rule", RULES)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def small():
    return mlp(depth=1, dropout=0.0)


class Own(nn.Module):
    """A block of the user's own class, as most models have."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.layer = nn.Linear(width_in, width_out)

    def forward(self, x):
        return torch.tanh(self.layer(x))


def own():
    torch.manual_seed(0)
    return nn.Sequential(Own(8, 16), Own(16, 16), Own(16, 4))


@pytest.fixture
def compiler():
    """A backend that runs what it is given, and counts graphs and runs; a function, for deepcopy keeps those."""

    def backend(graph, inputs):
        backend.graphs += 1

        def run(*arguments):
            backend.runs += 1
            return graph.forward(*arguments)

        return run

    backend.runs = backend.graphs = 0
    return backend


def use(monkeypatch, backend):
    """Let everything that is compiled without a backend of its own have this one."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, options=None: compile(function, backend=backend))


def check(build, rule, *, data=None, compiled=None, **options):
    """Close to the uncompiled training, and the user's own gradients stay untouched."""
    data = batches(6, size=6) if data is None else data
    expected = oracle.train(build(), momentum, loss, data, rule=rule, waves=2)
    model = build() if compiled is None else compiled
    optimizer = momentum(model.parameters())
    with wavelet.Wavelet(model, optimizer, loss, update=rule, resync=None, **options) as engine:
        steps = [engine.step(batch) for batch in data]
    torch.testing.assert_close([step.loss for step in steps], expected.losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trained_weights(model), expected.weights, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(list(model.buffers()), expected.buffers, rtol=1e-3, atol=1e-4)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@each_rule
def test_compiled_replicas(rule, backend, monkeypatch):
    use(monkeypatch, backend)
    check(small, rule, compile=True)


def test_compiled_replicas_by_the_default_compiler():
    check(small, "neighbour", compile=True)


@pytest.mark.parametrize("build", [small, own], ids=["torch's layers", "own layers"])
def test_waves_share_what_was_compiled(build, compiler, monkeypatch):
    use(monkeypatch, compiler)
    check(build, "neighbour", compile=True)
    assert (compiler.runs, compiler.graphs) == (6, 1)


def test_many_different_models_are_all_compiled(compiler, monkeypatch):
    """The compiler gives up on one piece of code after eight versions."""
    use(monkeypatch, compiler)
    for width in range(8, 18):
        torch.manual_seed(0)
        model = nn.Sequential(Own(8, width), Own(width, 4))
        with wavelet.Wavelet(model, momentum(model.parameters()), loss, compile=True) as engine:
            engine.step(batches(1)[0])
    assert (compiler.runs, compiler.graphs) == (10, 10)


@pytest.mark.parametrize(("waves", "options"), [(1, None), (2, {"cpp_wrapper": True})])
def test_compiled_code_of_several_waves_runs_without_the_interpreters_lock(waves, options, monkeypatch):
    """Or a forward would stop every backward beside it."""
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, options=None: asked.append(options) or function)
    model = small()
    wavelet.Wavelet(model, momentum(model.parameters()), loss, waves=waves, compile=True).close()
    assert asked == [options] * waves


def test_compiling_leaves_the_users_model_as_it_was(monkeypatch):
    use(monkeypatch, "eager")
    model = own()
    before = [dict(vars(module)) for module in model.modules()]
    check(own, "neighbour", compiled=model, compile=True)
    assert [vars(module).keys() for module in model.modules()] == [old.keys() for old in before]


@pytest.mark.parametrize("build", [small, own], ids=["torch's layers", "own layers"])
@each_rule
def test_a_model_that_the_user_compiled(rule, build, compiler):
    """torch.compile(model): the waves run compiled copies of it."""
    check(build, rule, compiled=torch.compile(build(), backend=compiler))
    assert compiler.runs == 6


def test_a_model_that_the_user_compiled_in_place(compiler):
    """model.compile(): deepcopy drops that, so a copy would silently run as if it had never been asked for."""
    model = own()
    model.compile(backend=compiler)
    check(own, "neighbour", compiled=model)
    assert compiler.runs == 6 * 3, "in place, torch skips its own Sequential and compiles the three blocks"


def test_a_block_that_the_user_compiled_in_place(compiler):
    model = own()
    model[1].compile(backend=compiler)
    check(own, "neighbour", compiled=model)
    assert compiler.runs == 6


def test_a_compiled_model_and_autocast():
    data = batches(8, size=6)
    model = torch.compile(small(), backend="aot_eager")

    def autocasting(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch)

    expected = oracle.train(small(), momentum, autocasting, data, rule="neighbour", waves=2)
    optimizer = momentum(model.parameters())
    with wavelet.Wavelet(model, optimizer, loss, resync=None, autocast=torch.bfloat16) as engine:
        steps = [engine.step(batch) for batch in data]
    torch.testing.assert_close([step.loss for step in steps], expected.losses, rtol=0.02, atol=0.02)


def test_batches_of_several_sizes(monkeypatch):
    use(monkeypatch, "aot_eager")
    data = [batches(1, size=size, seed=size)[0] for size in (6, 6, 6, 9, 6, 12, 9, 6)]
    check(small, "neighbour", data=data, compile=True)


class Lone(torch.autograd.Function):
    """A backward that must run alone: while it lasts, which is a moment, no later forward may start."""

    @staticmethod
    def forward(ctx, x, lone, started, met):
        ctx.lone, ctx.started, ctx.met, ctx.number = lone, started, met, len(started)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        if ctx.lone:
            time.sleep(0.05)
            ctx.met.append(len(ctx.started) - ctx.number)
        return gradient, None, None, None


def test_the_first_backward_of_each_wave_runs_alone():
    """Whatever rounds a flush has cut short: what is set up lazily is set up alone."""
    seen, started, met = set(), [], []

    def watched(model, batch):
        started.append(1)
        lone = id(model) not in seen
        seen.add(id(model))
        return Lone.apply(loss(model, batch), lone, started, met)

    model = own()
    with wavelet.Wavelet(
        model, momentum(model.parameters()), watched, waves=3, update="neighbour", accumulate=2
    ) as engine:
        for count in (1, 2, 6):
            for batch in batches(count, size=6):
                engine.step(batch)
            engine.flush()
    assert met == [0, 0, 0]


def test_the_backward_of_a_forward_that_compiled_runs_alone():
    """The compiler is not thread-safe (#118260), some backwards compile too, and new sizes come late in an epoch."""
    compiled, started, met = [], [], []

    def backend(graph, inputs):
        compiled.append(1)
        return graph.forward

    def watched(model, batch):
        started.append(1)
        before = len(compiled)
        value = loss(model, batch)
        return Lone.apply(value, len(compiled) > before, started, met)

    model = torch.compile(own(), backend=backend)
    with wavelet.Wavelet(model, momentum(model.parameters()), watched) as engine:
        for size in (6, 6, 6, 6, 9, 9, 12, 6):
            engine.step(batches(1, size=size)[0])
    assert met == [0, 0]


def test_the_compiler_is_not_touched_without_compile():
    """A first step must not wait for the compiler to be imported and set up."""
    model = small()
    before = eval_frame.cached_backends.copy()
    with wavelet.Wavelet(model, momentum(model.parameters()), loss) as engine:
        for batch in batches(3):
            engine.step(batch)
    assert eval_frame.cached_backends == before
