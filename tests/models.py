"""Small models, losses and batches for tests."""

import copy

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


class Serial:
    """The rules, one batch after the other in one thread, open to the test's hand between batches.

    ``pairs`` holds every trajectory's parameters with their optimizer, ``copies`` every list of weights that exists.
    Modes and ``requires_grad`` are read from ``model``, which evaluates all batches.
    """

    def __init__(self, model, make_optimizer, *, rule, waves, loss=loss, clip=None, scale=None):
        self.model, self.rule, self.waves, self.loss, self.clip = copy.deepcopy(model), rule, waves, loss, clip
        start = [p.detach() for p in model.parameters()]
        self.pairs = []
        for _ in range(waves if rule == "neighbour" else 1):
            parameters = [nn.Parameter(t.clone()) for t in start]
            self.pairs.append((parameters, make_optimizer(parameters)))
        self.copies = [parameters for parameters, _ in self.pairs]
        if rule == "delayed":
            self._seen = [[t.clone() for t in start] for _ in range(waves)]
            self.copies += self._seen
        self.newest = self.pairs[0]
        self.number = 0
        self._gradients = []  # of the open round, or of the last batches
        self.scale = scale  # a dict: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker
        self._scales = [scale["scale"]] * waves if scale else None

    def step(self, batch):
        threads = torch.get_num_threads()
        torch.set_num_threads(max(1, threads // self.waves))
        try:
            return self._step(batch, self.number % self.waves)
        finally:
            torch.set_num_threads(threads)
            self.number += 1

    def _step(self, batch, k):
        weights = self._seen[k] if self.rule == "delayed" else self.pairs[k % len(self.pairs)][0]
        live = list(self.model.parameters())
        with torch.no_grad():
            for p, w in zip(live, weights, strict=True):
                p.copy_(w)
                p.grad = None
        value = self.loss(self.model, batch)
        (value * self._scales[k] if self.scale else value).backward()
        gradients = [p.grad for p in live]
        if self.scale:
            gradients = [None if g is None else g / self._scales[k] for g in gradients]
        self._gradients.append(gradients)
        if self.rule == "synchronous":
            if k == self.waves - 1:
                self._apply(self.pairs[0], self._gradients, range(self.waves))
                self._gradients = []
        else:
            if self.rule == "delayed":
                self._apply(self.pairs[0], [gradients], [k])
                self._seen[k][:] = [p.detach().clone() for p in self.pairs[0][0]]
            else:
                self._apply(self.pairs[k], self._gradients[-self.waves :], [k])
            self._gradients = self._gradients[-self.waves :]
        return value.item()

    def _apply(self, pair, batches_gradients, waves):
        self.newest = pair
        own = batches_gradients if self.rule == "synchronous" else batches_gradients[-1:]
        finite = all(bool(g.isfinite().all()) for gradients in own for g in gradients if g is not None)
        if self.scale:
            self._update_scale(waves, finite)
        if self.scale and not finite:
            own[-1][:] = [None] * len(own[-1])
            return
        parameters, optimizer = pair
        divisor = {"synchronous": self.waves, "neighbour": self.waves, "delayed": 1}[self.rule]
        for index, (p, live) in enumerate(zip(parameters, self.model.parameters(), strict=True)):
            present = [gradients[index] for gradients in batches_gradients if gradients[index] is not None]
            total = None
            for gradient in present if live.requires_grad else []:
                total = gradient.clone() if total is None else total + gradient
            p.grad = None if total is None else total / divisor
        if self.clip is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip)
        optimizer.step()

    def _update_scale(self, waves, finite):
        state = self.scale
        state["_growth_tracker"] = state["_growth_tracker"] + 1 if finite else 0
        if not finite:
            state["scale"] *= state["backoff_factor"]
        elif state["_growth_tracker"] == state["growth_interval"]:
            state["scale"] *= state["growth_factor"]
            state["_growth_tracker"] = 0
        for k in waves:
            self._scales[k] = state["scale"]
