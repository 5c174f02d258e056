"""Small models, losses and batches for tests."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


class Checkpointed(nn.Module):
    def __init__(self, inner, *, reentrant):
        super().__init__()
        self.inner = inner
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def mlp(*, seed=0, dropout=0.2, norm=True, checkpointing=None, depth=3):
    """Linear, BatchNorm, ReLU and dropout, ``depth`` times; ``checkpointing``: None, "reentrant" or "plain"."""
    torch.manual_seed(seed)

    def layer(width):
        parts = [nn.Linear(width, 16), *([nn.BatchNorm1d(16)] if norm else []), nn.ReLU(), nn.Dropout(dropout)]
        inner = nn.Sequential(*parts)
        return inner if checkpointing is None else Checkpointed(inner, reentrant=checkpointing == "reentrant")

    first = nn.Linear(8, 16)
    return nn.Sequential(first, *[layer(16) for _ in range(depth)], nn.Linear(16, 4))


def conv():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(8, 8, 3), nn.Flatten(),
        nn.Linear(8 * 36, 4),
    )  # fmt: skip


def batches(count, *, size=12, seed=1, image=False):
    generator = torch.Generator().manual_seed(seed)
    shape = (size, 1, 8, 8) if image else (size, 8)
    return [
        (torch.randn(shape, generator=generator), torch.randint(0, 4, (size,), generator=generator))
        for _ in range(count)
    ]


def loss(model, batch):
    x, y = batch
    return cross_entropy(model(x), y)


def trained_weights(model):
    return [p.detach().clone() for p in model.parameters()]


def assert_same(left, right):
    """Bitwise equality of two lists of tensors."""
    assert len(left) == len(right)
    for index, (a, b) in enumerate(zip(left, right, strict=True)):
        assert torch.equal(a, b), f"tensor {index} differs by up to {(a.double() - b.double()).abs().max().item()}"
