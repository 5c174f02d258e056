"""A job file: all that the command line needs to train a model of your own, and to compare ways to train it.

    wavelet train examples/my_job.py --epochs 2
    wavelet bench examples/my_job.py --against plain

The command line calls ``job()``. Where it takes ``seed`` or ``batch_size``, ``--seed`` and ``--batch-size`` reach it.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wavelet


class RowReader(nn.Module):
    """Reads a digit row by row: images ``(batch, 8, 8)`` → logits ``(batch, 10)``."""

    def __init__(self, width: int = 96):
        super().__init__()
        self.rows = nn.GRU(8, width, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        hidden, _ = self.rows(images)
        return self.head(hidden[:, -1])


def loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def share_of_right_answers(model, batch):
    images, labels = batch
    return model(images).argmax(1).eq(labels).float().mean()


def job(batch_size=16):
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train, validation = TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])
    model = RowReader()
    return wavelet.Job(
        model,
        torch.optim.Adam(model.parameters(), lr=3e-3),
        loss,
        DataLoader(train, batch_size, shuffle=True, drop_last=True),
        validation=DataLoader(validation, batch_size=120),
        metric=share_of_right_answers,
        clip_grad_norm=1.0,
    )
