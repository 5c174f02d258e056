"""What several tests over ranks train."""

import torch
from torch import nn


def sgd(parameters, lr=0.05):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
