"""The serial oracle of several ranks: one process evaluates the batches of all, one after the other.

Written from the definition: the gradient of update n is the sum over ranks of each rank's own sum over its
micro-batches, oldest first, divided once by the number of all of them. Ranks without a batch give nothing.
"""

import copy

import torch


def train(model, make_optimizer, loss, batches_of_ranks, *, rule, waves, accumulate=1, clip=None, resync=None):
    """Weights after all ranks have trained their batches. ``batches_of_ranks[r]`` may differ in length."""
    model = copy.deepcopy(model)
    live = list(model.parameters())
    start = [p.detach().clone() for p in live]
    K, A = waves, accumulate

    def gradient(weights, batch):
        with torch.no_grad():
            for p, w in zip(live, weights, strict=True):
                p.copy_(w)
                p.grad = None
        loss(model, batch).backward()
        return [None if p.grad is None else p.grad.clone() for p in live]

    def total(lists):
        """Sum of lists of gradients in order; missing counts as zero, unless all are missing."""
        result = None
        for one in lists:
            result = one if result is None else [
                b if a is None else a if b is None else a + b for a, b in zip(result, one, strict=True)
            ]  # fmt: skip
        return result

    def apply(parameters, optimizer, mean):
        for p, g in zip(parameters, mean, strict=True):
            p.grad = None if g is None else g.clone()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()

    def pair():
        parameters = [torch.nn.Parameter(t.clone()) for t in start]
        return parameters, make_optimizer(parameters)

    replicas = [pair() for _ in range(K if rule == "neighbour" else 1)]
    seen = [[t.clone() for t in start] for _ in range(K)]
    history, own_updates, newest = [], [0] * K, replicas[0][0]
    longest = max(map(len, batches_of_ranks))
    for first in range(0, longest, K * A):
        rounds = [batches[first : first + K * A] for batches in batches_of_ranks]
        groups = [list(range(K * A))] if rule == "synchronous" else [list(range(k, K * A, K)) for k in range(K)]
        means = []
        for k, members in enumerate(groups):
            if rule == "neighbour":
                weights = [p.detach() for p in replicas[k][0]]
            else:
                weights = seen[k] if rule == "delayed" else [p.detach() for p in replicas[0][0]]
            sums, count = [], 0
            for mine in rounds:
                found = [gradient(weights, mine[m]) for m in members if m < len(mine)]
                if found:
                    sums.append(total(found))
                    count += len(found)
            if not count:
                continue
            mean = [None if g is None else g / count for g in total(sums)]
            if rule == "synchronous":
                means.append((0, mean))
            elif A == 1:
                means = [(k, mean)]
            else:
                means.append((k, mean))
                continue
            _update(means, rule, K, replicas, seen, history, own_updates, resync, apply)
            newest, means = replicas[k % len(replicas)][0], []
        if means:
            _update(means, rule, K, replicas, seen, history, own_updates, resync, apply)
            newest = replicas[means[-1][0] % len(replicas)][0]
    return [p.detach().clone() for p in newest]


def _update(means, rule, K, replicas, seen, history, own_updates, resync, apply):
    for k, mean in means:
        if rule == "neighbour":
            history.append(mean)
            window = history[-K:]
            joint = []
            for parts in zip(*window, strict=True):
                value = None
                for part in parts:
                    if part is not None:
                        value = part.clone() if value is None else value + part
                joint.append(None if value is None else value / K if K > 1 else value)
            apply(*replicas[k], joint)
            own_updates[k] += 1
            if resync and own_updates[k] % resync == 0:
                _average(replicas[k], replicas[k - 1])
        else:
            apply(*replicas[0], mean)
            seen[k][:] = [p.detach().clone() for p in replicas[0][0]]


@torch.no_grad()
def _average(mine, other):
    for p, q in zip(mine[0], other[0], strict=True):
        p.copy_((p + q) / 2)
        for name, value in mine[1].state.get(p, {}).items():
            if torch.is_tensor(value) and value.dim():
                value.copy_((value + other[1].state[q][name]) / 2)
