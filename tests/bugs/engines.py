"""A small model and its engine, for the stories."""

import pytest
import torch

import wavelet

from ..models import loss, mlp

RULES = ["neighbour", "synchronous", "delayed"]


each_rule = pytest.mark.parametrize("rule", RULES)


def small():
    return mlp(depth=1, norm=False, dropout=0.0)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def make(model=None, loss_function=loss, **options):
    model = small() if model is None else model
    options.setdefault("resync", None)
    return model, wavelet.Wavelet(model, momentum(model.parameters()), loss_function, **options)
