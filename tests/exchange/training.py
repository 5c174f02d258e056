"""What several tests over ranks train."""

import torch
from torch import nn

import wavelet

from .. import models


def sgd(parameters, lr=0.05):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


def model():
    return models.mlp(dropout=0.0, norm=False)


def trained(rank, size, options, counts=(12, 12), sizes=(12, 12)):
    """Weights of a small model; ``options`` are the engine's, with the exchange as its class and arguments."""
    net = model()
    kind, arguments = options["exchange"]
    more = {name: value for name, value in options.items() if name != "exchange"}
    exchange = kind(**arguments)
    with wavelet.Wavelet(net, sgd(net.parameters()), models.loss, exchange=exchange, **more) as engine:
        for batch in models.batches(counts[rank], size=sizes[rank], seed=100 + rank):
            engine.step(batch)
    return models.trained_weights(net)
