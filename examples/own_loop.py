"""The trainer of ``plain_loop.py`` in two waves: evaluation between epochs, a scheduler, saving and resuming.

    python examples/own_loop.py --epochs 3
    python examples/own_loop.py --epochs 6 --save run.pt     # again: goes on from run.pt

``diff examples/plain_loop.py examples/own_loop.py`` shows the change: a line makes the engine, a line replaces the
three of the step, ``drain`` comes before the weights are read, and the engine's state takes the place of three others.
Batches are half as large, because two waves of 16 samples update like a plain loop with 32.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import wavelet


def make_model():
    def block(channels):
        return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())

    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        *(block(32) for _ in range(4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32, 10),
    )


def make_data(batch_size):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    train, validation = Subset(data, range(1437)), Subset(data, range(1437, 1797))
    return DataLoader(train, batch_size, shuffle=True, drop_last=True), DataLoader(validation, batch_size=120)


def loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    model.train()
    return right / len(loader.dataset)


def train(num_epochs, path):
    torch.manual_seed(0)
    loader, validation = make_data(batch_size=16)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    engine = wavelet.Wavelet(model, optimizer, loss)
    first = 0
    if path and path.exists():
        saved = torch.load(path, weights_only=True)
        engine.load_state_dict(saved["engine"])
        scheduler.load_state_dict(saved["scheduler"])
        first = saved["epochs"]

    for epoch in range(first, num_epochs):
        for batch in loader:
            engine.step(batch)
        engine.drain()
        scheduler.step()
        print(f"epoch {epoch + 1}: accuracy {accuracy(model, validation):.4f}")
        if path:
            saved = {
                "engine": engine.state_dict(),
                "scheduler": scheduler.state_dict(),
                "epochs": epoch + 1,
            }
            torch.save(saved, path)
    engine.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save", type=Path, help="saved after every epoch; continued from where it exists")
    arguments = parser.parse_args()
    train(arguments.epochs, arguments.save)
