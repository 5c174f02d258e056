"""Every refusal at construction: the sentence says what was given, what is allowed, and what to do."""

import threading

import numpy
import pytest
import torch
from torch import nn

import wavelet

from .models import batches, loss, mlp


def make(model=None, optimizer=None, loss_function=loss, **options):
    model = mlp(depth=1) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    return wavelet.Wavelet(model, optimizer, loss_function, **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"waves": 0}, "waves=0 makes no sense: use a whole number of at least 1."),
        ({"waves": 2.0}, "waves=2.0 makes no sense: use a whole number of at least 1."),
        ({"waves": True}, "waves=True makes no sense: use a whole number of at least 1."),
        ({"waves": "two"}, "waves='two' makes no sense: use a whole number of at least 1."),
        ({"accumulate": 0}, "accumulate=0 makes no sense: use a whole number of at least 1."),
        ({"update": "async"}, "update='async' is not known: use one of 'neighbour', 'synchronous', 'delayed'."),
        ({"resync": 0}, "resync=0 makes no sense: use a whole number of at least 1."),
        ({"resync": "never"}, "resync='never' makes no sense: use a whole number of at least 1."),
        (
            {"resync": 4, "update": "delayed"},
            "resync=4 has no meaning under update='delayed', where waves do not drift",
        ),
        ({"clip_grad_norm": 0}, "clip_grad_norm=0 makes no sense: use a number above 0, or None."),
        ({"clip_grad_norm": -1.0}, "clip_grad_norm=-1.0 makes no sense"),
        ({"clip_grad_norm": float("nan")}, "clip_grad_norm=nan makes no sense"),
        ({"autocast": torch.float32}, "autocast=torch.float32 is not a lower precision: use torch.bfloat16"),
        ({"autocast": "bf16"}, "autocast=bf16 is not a lower precision: use torch.bfloat16"),
        ({"clip_grad_norm": "1"}, "clip_grad_norm='1' makes no sense"),
        ({"clip_grad_norm": True}, "clip_grad_norm=True makes no sense"),
        ({"timeout": 0}, "timeout=0 makes no sense: use a number of seconds above 0."),
        ({"timeout": float("nan")}, "timeout=nan makes no sense"),
        ({"timeout": None}, "timeout=None makes no sense"),
        ({"timeout": "5"}, "timeout='5' makes no sense"),
        ({"update": ["neighbour"]}, "update=['neighbour'] is not known"),
        ({"update": {}}, "update={} is not known"),
        ({"resync": numpy.array([1, 2])}, "resync=array([1, 2]) makes no sense"),
        ({"compile": "x"}, "compile='x' makes no sense: use True or False."),
        ({"scheduler": 1}, "scheduler is a int: it must be a learning-rate scheduler, or None."),
        ({"scheduler": object()}, "scheduler is a object: it must be a learning-rate scheduler, or None."),
        ({"streams": "many"}, "streams='many' is not known: use one of 'auto', 'separate', 'shared'."),
        ({"grad_scaler": 1024.0}, "grad_scaler is a float: it must be a torch.amp.GradScaler."),
        ({"loss_function": None}, "loss is a NoneType: it must be a function of (model, batch)."),
        ({"replicate": lambda: 3}, "replicate() gave a int: it must build a torch.nn.Module."),
    ],
)
def test_an_argument_that_makes_no_sense(options, sentence):
    with pytest.raises(ValueError) as refusal:
        make(**options)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, numpy.float32(60)])
def test_timeouts_without_a_limit_and_of_numpy_work(timeout):
    with make(timeout=timeout) as engine:
        for batch in batches(4):
            engine.step(batch)


def test_an_engine_made_under_inference_mode():
    with torch.inference_mode(), pytest.raises(ValueError, match=r"inference_mode.*make it outside"):
        make()


def test_parameters_in_the_same_memory():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[0].weight.data)
    with pytest.raises(ValueError, match=r"'0.weight' and '1.weight' are different parameters in the same memory"):
        make(model)


def test_parameters_side_by_side_in_one_memory_are_fine():
    """As the weights of an LSTM on a GPU are."""
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 4, bias=False))
    memory = torch.randn(48)
    model[0].weight, model[1].weight = nn.Parameter(memory[:32].view(4, 8)), nn.Parameter(memory[32:].view(4, 4))
    make(model).close()


def test_an_unknown_argument_is_a_type_error():
    with pytest.raises(TypeError, match="bugdet"):
        make(bugdet="1.25x")


def test_a_model_that_is_no_module():
    parameter = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=r"model is a function: it must be a torch.nn.Module."):
        wavelet.Wavelet(lambda x: x * parameter, torch.optim.SGD([parameter], lr=0.1), loss)


def test_an_optimizer_that_is_no_optimizer():
    with pytest.raises(ValueError, match=r"optimizer is a str: it must be a torch.optim.Optimizer."):
        make(optimizer="adam")


def test_an_optimizer_that_needs_a_closure():
    model = mlp(depth=1)
    with pytest.raises(ValueError, match="LBFGS needs a closure that evaluates the model again"):
        make(model, torch.optim.LBFGS(model.parameters()))


def test_an_optimizer_with_parameters_outside_the_model():
    model = mlp(depth=1)
    groups = [{"params": list(model.parameters())}, {"params": [nn.Parameter(torch.ones(1))]}]
    with pytest.raises(ValueError, match="parameter group 1 holds a parameter that is not in the model: make it part"):
        make(model, torch.optim.SGD(groups, lr=0.1))


def test_a_scheduler_that_needs_a_metric():
    model = mlp(depth=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau needs a metric: call its step\(metric\) yourself"):
        make(model, optimizer, scheduler=scheduler)


def test_a_scheduler_of_another_optimizer():
    model = mlp(depth=1)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="scheduler belongs to another optimizer"):
        make(model, scheduler=torch.optim.lr_scheduler.StepLR(other, 1))


def test_nothing_to_train():
    with pytest.raises(ValueError, match="no parameter that requires a gradient: there is nothing to train"):
        make(mlp(depth=1).requires_grad_(False))


def test_a_lazy_module():
    """A parameter without a shape cannot be copied."""
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(ValueError, match=r"'0.weight' is lazy and has no shape yet: run one batch through the model"):
        make(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_module_on_the_meta_device():
    with pytest.raises(ValueError, match=r"'0.weight' is on the meta device and has no values: materialise the model"):
        make(nn.Sequential(nn.Linear(8, 4, device="meta")))


class Elsewhere(nn.Parameter):
    """A parameter that says that it lies on a GPU."""

    device = torch.device("cuda:1")


def test_a_model_on_several_devices():
    model = nn.Linear(8, 4)
    model.bias = Elsewhere(torch.zeros(4))
    with pytest.raises(ValueError, match=r"lies on several devices \(cpu, cuda:1\): waves share one device"):
        make(model)


class OnAnotherKind(nn.Parameter):
    device = torch.device("mps")


def test_a_device_that_waves_do_not_run_on():
    model = nn.Module()
    model.weight = OnAnotherKind(torch.zeros(4))
    with pytest.raises(ValueError, match="the model is on 'mps', but waves run on 'cpu' or 'cuda'"):
        make(model)


def test_collectives_inside_the_model():
    def model():
        return nn.Sequential(nn.Linear(8, 4), nn.SyncBatchNorm(4))

    with pytest.raises(ValueError, match=r"'1' is a SyncBatchNorm, .*: use BatchNorm, or waves=1."):
        make(model())
    make(model(), waves=1).close()


@pytest.mark.parametrize("attribute", [threading.Lock(), (i for i in range(3))], ids=["lock", "iterator"])
def test_a_model_that_cannot_be_copied(attribute):
    model = mlp(depth=1)
    model.helper = attribute
    with pytest.raises(
        ValueError, match=r"the model cannot be copied for the waves \(cannot pickle .*: pass replicate="
    ):
        make(model)


def with_tanh(model):
    model[1][2] = nn.Tanh()
    return model


@pytest.mark.parametrize(
    "other",
    [
        lambda: mlp(depth=2),
        lambda: nn.Sequential(nn.Linear(8, 16, bias=False), *mlp(depth=1)[1:]),
        lambda: mlp(depth=1).double(),
        lambda: with_tanh(mlp(depth=1)),
    ],
    ids=["depth", "bias", "dtype", "activation"],
)  # fmt: skip
def test_replicate_that_builds_another_structure(other):
    with pytest.raises(ValueError, match="a copy of the model differs from it in parameters, buffers, ties or modules"):
        make(replicate=other)


def test_replicate_that_is_a_module_and_not_a_function():
    with pytest.raises(ValueError, match="replicate"):
        make(replicate=mlp(depth=1))


def test_replicate_that_gives_the_original():
    model = mlp(depth=1)
    with pytest.raises(ValueError, match=r"shares .* with the original"):
        make(model, replicate=lambda: model)


def test_replicate_that_gives_the_same_module_twice():
    """Two waves on one module would write each other's weights."""
    again = mlp(depth=1)
    with pytest.raises(ValueError, match="shares"):
        make(replicate=lambda: again)


def test_a_refusal_leaves_no_trace():
    """Neither a hook on the optimizer, nor a thread, nor another number of threads."""
    model = mlp(depth=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError):
        make(model, optimizer, waves=0)
    with pytest.raises(ValueError):
        make(model, optimizer, replicate=lambda: mlp(depth=2))
    assert not optimizer._optimizer_load_state_dict_post_hooks
    assert torch.get_num_threads() == 2
