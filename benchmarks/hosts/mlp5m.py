"""A job for links: five million parameters, 20 MB of gradients, in layers of equal size, on made-up data.

wavelet bench benchmarks/hosts/mlp5m.py --ranks 2 --rate 500mbit
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import wavelet
from wavelet.jobs.batches import RandomBatches, ordered_batches

WIDTH, NUM_LAYERS, NUM_OUTPUTS = 1024, 5, 16
NUM_SAMPLES, NUM_KEPT = 16_384, 1024


def job(*, seed: int = 0, batch_size: int = 768) -> wavelet.Job:
    """A perceptron learns what a smaller one, with fixed random weights, makes of random inputs."""
    made_up = torch.Generator().manual_seed(0)  # the same data for every seed and on every rank
    inputs = torch.randn(NUM_SAMPLES + NUM_KEPT, WIDTH, generator=made_up)
    inner = torch.randn(WIDTH, NUM_OUTPUTS, generator=made_up) / WIDTH**0.5
    targets = torch.tanh(inputs @ inner) @ (torch.randn(NUM_OUTPUTS, NUM_OUTPUTS, generator=made_up) / 4)

    def gather(numbers: Tensor) -> tuple[Tensor, Tensor]:
        return inputs[numbers], targets[numbers]

    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # PyTorch's own lets the signal fade on its way
    hidden = [module for layer in layers for module in (layer, nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(WIDTH, NUM_OUTPUTS))
    return wavelet.Job(
        model,
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        lambda model, batch: mse_loss(model(batch[0]), batch[1]),
        RandomBatches(NUM_SAMPLES, batch_size, gather),
        validation=ordered_batches(NUM_KEPT, NUM_KEPT, lambda numbers: gather(NUM_SAMPLES + numbers)),
        seed=seed,
        name="mlp5m",
    )
