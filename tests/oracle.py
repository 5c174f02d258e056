"""The serial oracle of the update rules: plain PyTorch, no threads, one batch after the other.

Written from the rules' definitions alone. Weights are kept as lists of tensors; one model object evaluates every batch,
so buffers and random numbers pass from batch to batch as in a plain loop.
"""

import copy
from dataclasses import dataclass, field

import torch


@dataclass
class Trained:
    losses: list = field(default_factory=list)
    weights: list = field(default_factory=list)
    buffers: list = field(default_factory=list)
    rng: object = None


def _optimizer_on(tensors, make_optimizer):
    parameters = [torch.nn.Parameter(t.clone()) for t in tensors]
    return parameters, make_optimizer(parameters)


def _mean(gradients, divisor):
    """Oldest first; missing counts as zero, unless all are missing."""
    total = None
    for gradient in gradients:
        if gradient is not None:
            total = gradient.clone() if total is None else total + gradient
    return None if total is None else (total / divisor if divisor > 1 else total)


def train(
    model,
    make_optimizer,
    loss,
    batches,
    *,
    rule,
    waves,
    accumulate=1,
    clip=None,
    resync=None,
    before_step=None,
    flush=True,
):
    """Train ``model`` (not changed) on ``batches`` by ``rule``; ``make_optimizer(parameters)`` in the model's order.

    ``before_step(update_number, optimizer)`` may change rates, as a scheduler does.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // waves))
    try:
        return _train(model, make_optimizer, loss, batches, rule, waves, accumulate, clip, resync, before_step, flush)
    finally:
        torch.set_num_threads(threads)


def _train(model, make_optimizer, loss, batches, rule, K, A, clip, resync, before_step, flush):
    model = copy.deepcopy(model)
    live = list(model.parameters())
    out = Trained()
    start = [p.detach().clone() for p in live]

    def gradient_at(weights, batch):
        with torch.no_grad():
            for p, w in zip(live, weights, strict=True):
                p.copy_(w)
                p.grad = None
        value = loss(model, batch)
        value.backward()
        out.losses.append(value.item())
        return [None if p.grad is None else p.grad.clone() for p in live]

    def apply(parameters, optimizer, mean, number):
        if before_step is not None:
            before_step(number, optimizer)
        for p, g in zip(parameters, mean, strict=True):
            p.grad = None if g is None else g.clone()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        for p in parameters:
            p.grad = None

    size = K * A
    rounds = [batches[i : i + size] for i in range(0, len(batches), size)]
    number = 0
    if rule == "synchronous":
        parameters, optimizer = _optimizer_on(start, make_optimizer)
        for batch_list in rounds:
            if len(batch_list) < size and not flush:
                for batch in batch_list:
                    gradient_at([p.detach() for p in parameters], batch)
                break
            total = None
            for batch in batch_list:
                new = gradient_at([p.detach() for p in parameters], batch)
                total = [[g] for g in new] if total is None else [[*t, g] for t, g in zip(total, new, strict=True)]
            apply(parameters, optimizer, [_mean(t, len(batch_list)) for t in total], number)
            number += 1
        newest = parameters
    elif rule == "delayed":
        parameters, optimizer = _optimizer_on(start, make_optimizer)
        seen = [[t.clone() for t in start] for _ in range(K)]
        for batch_list in rounds:
            gradients = [[] for _ in range(K)]
            for k, batch in _visits(batch_list, K, A, flush):
                if batch is not None:
                    gradients[k].append(gradient_at(seen[k], batch))
                if len(gradients[k]) == A or batch is None:
                    mean = [_mean(list(parts), len(gradients[k])) for parts in zip(*gradients[k], strict=True)]
                    apply(parameters, optimizer, mean, number)
                    number += 1
                    seen[k] = [p.detach().clone() for p in parameters]
        newest = parameters
    else:
        replicas = [_optimizer_on(start, make_optimizer) for _ in range(K)]
        own_updates = [0] * K
        history = []
        newest = replicas[0][0]
        for batch_list in rounds:
            gradients = [[] for _ in range(K)]
            for k, batch in _visits(batch_list, K, A, flush):
                parameters, optimizer = replicas[k]
                if batch is not None:
                    gradients[k].append(gradient_at([p.detach() for p in parameters], batch))
                if len(gradients[k]) == A or batch is None:
                    history.append([_mean(list(parts), len(gradients[k])) for parts in zip(*gradients[k], strict=True)])
                    mean = [_mean(list(parts), K) for parts in zip(*history[-K:], strict=True)]
                    apply(parameters, optimizer, mean, number)
                    number += 1
                    own_updates[k] += 1
                    if resync and own_updates[k] % resync == 0:
                        _average(replicas[k], replicas[(k - 1) % K])
                    newest = parameters
    out.weights = [p.detach().clone() for p in newest]
    out.buffers = [b.clone() for b in model.buffers()]
    out.rng = torch.get_rng_state()
    return out


def _visits(batch_list, K, A, flush):
    """(wave, micro-batch) in order; then, where the round is closed early, (wave, None) where an update is due."""
    yield from ((m % K, batch) for m, batch in enumerate(batch_list))
    if flush:
        for k in range(K):
            if 0 < len(batch_list[k::K]) < A:
                yield k, None


@torch.no_grad()
def _average(mine, other):
    for p, q in zip(mine[0], other[0], strict=True):
        state, others = mine[1].state.get(p, {}), other[1].state.get(q, {})
        for name, value in state.items():
            if torch.is_tensor(value) and value.dim() > 0 and torch.is_tensor(others.get(name)):
                state[name].copy_((value + others[name]) / 2)
        p.copy_((p + q) / 2)
