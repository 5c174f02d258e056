"""Wavelet under Ray Train: four workers train one model, each in two waves.

    pip install "ray[train]"
    python examples/ray_train.py

Ray starts the workers and initialises torch.distributed in each; the engine that is made there is one rank of them.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wavelet


def loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def train_loop(config):
    """What each worker runs."""
    import ray.train
    import ray.train.torch

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4)).to(ray.train.torch.get_device())
    x = torch.randn(1024, 20)
    data = TensorDataset(x, x[:, :4].argmax(1))
    # Ray gives each worker its part of the data. The model is not prepared: that would wrap it in DDP.
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=32, shuffle=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    with wavelet.Wavelet(model, optimizer, loss) as engine:
        for epoch in range(config["epochs"]):
            if ray.train.get_context().get_world_size() > 1:
                loader.sampler.set_epoch(epoch)
            steps = [engine.step(batch) for batch in loader]
            engine.flush()
            ray.train.report({"epoch": epoch, "loss": sum(step.loss for step in steps) / len(steps)})


def main():
    try:
        from ray.train import ScalingConfig
        from ray.train.torch import TorchTrainer
    except ImportError:
        sys.exit('this example needs Ray Train: pip install "ray[train]"')
    trainer = TorchTrainer(
        train_loop, train_loop_config={"lr": 0.05, "epochs": 3}, scaling_config=ScalingConfig(num_workers=4)
    )
    print(trainer.fit().metrics)


if __name__ == "__main__":
    main()
