"""The serial oracle of ranks that train apart: one process plays all of them, one after the other.

Written from the definitions: a rank updates its replicas by the update rule with its own gradients; after an update of
trajectory t (and before it, for layer-wise mixing) a *mixer* may write the weights of trajectory t of all ranks.
"""

import copy

import torch


class Rank:
    """One rank: its replicas, its optimizers, and its gradients."""

    def __init__(self, model, make_optimizer, loss, batches, *, rule, waves, accumulate=1, resync=None, clip=None):
        self.model, self.loss, self.batches = copy.deepcopy(model), loss, list(batches)
        self.live = list(self.model.parameters())
        start = [p.detach().clone() for p in self.live]
        self.rule, self.waves, self.accumulate, self.resync, self.clip = rule, waves, accumulate, resync, clip
        self.trajectories = []
        for _ in range(waves if rule == "neighbour" else 1):
            parameters = [torch.nn.Parameter(t.clone()) for t in start]
            self.trajectories.append((parameters, make_optimizer(parameters)))
        self.seen = [[t.clone() for t in start] for _ in range(waves)]
        self.history, self.num_updates, self.newest = [], [0] * waves, 0
        self.sums, self.counts = {}, {}
        self.position = 0

    def weights(self, trajectory):
        return self.trajectories[trajectory][0]

    def gradient(self, weights, batch):
        with torch.no_grad():
            for p, w in zip(self.live, weights, strict=True):
                p.copy_(w)
                p.grad = None
        self.loss(self.model, batch).backward()
        return [None if p.grad is None else p.grad.clone() for p in self.live]

    def fold(self, batch):
        """Take a micro-batch; the wave that updates now, or None."""
        wave = self.position % self.waves
        if self.rule == "neighbour":
            weights = self.weights(wave)
        else:
            weights = self.seen[wave] if self.rule == "delayed" else self.weights(0)
        gradient = self.gradient([w.detach() for w in weights], batch)
        key = 0 if self.rule == "synchronous" else wave
        old = self.sums.get(key)
        self.sums[key] = gradient if old is None else [b if a is None else a if b is None else a + b
                                                       for a, b in zip(old, gradient, strict=True)]  # fmt: skip
        self.counts[key] = self.counts.get(key, 0) + 1
        self.position += 1
        size = self.waves * self.accumulate
        updates = self.position == size if self.rule == "synchronous" else self.position > size - self.waves
        self.position %= size
        return wave if updates else None

    def pending(self):
        """The waves that still have micro-batches of an open round."""
        return [0] if self.rule == "synchronous" and self.sums else sorted(self.sums)

    def update(self, wave):
        """The update of ``wave``; gives its trajectory."""
        key = 0 if self.rule == "synchronous" else wave
        total, count = self.sums.pop(key), self.counts.pop(key)
        mean = [None if g is None else g / count for g in total]
        trajectory = wave if self.rule == "neighbour" else 0
        if self.rule == "neighbour":
            self.history.append(mean)
            joint = []
            for parts in zip(*self.history[-self.waves :], strict=True):
                value = None
                for part in parts:
                    if part is not None:
                        value = part.clone() if value is None else value + part
                joint.append(None if value is None else value / self.waves if self.waves > 1 else value)
            mean = joint
        parameters, optimizer = self.trajectories[trajectory]
        for p, g in zip(parameters, mean, strict=True):
            p.grad = None if g is None else g.clone()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self.clip)
        optimizer.step()
        self.num_updates[wave] += 1
        if self.rule == "neighbour" and self.resync and self.num_updates[wave] % self.resync == 0:
            self._average(self.trajectories[wave], self.trajectories[wave - 1])
        self.newest = trajectory
        return trajectory

    def see(self, wave):
        """The batch buffer of ``wave`` becomes the newest version."""
        self.seen[wave] = [p.detach().clone() for p in self.weights(0)]

    @staticmethod
    @torch.no_grad()
    def _average(mine, other):
        for p, q in zip(mine[0], other[0], strict=True):
            p.copy_((p + q) / 2)
            for name, value in mine[1].state.get(p, {}).items():
                if torch.is_tensor(value) and value.dim():
                    value.copy_((value + other[1].state[q][name]) / 2)


def train(ranks, mixer):
    """Let all ranks train to their ends and close; gives each one's newest weights.

    ``mixer.before(t, ranks, live)`` and ``mixer.after(t, ranks, live)`` are called around the updates of trajectory t
    of all ranks that have one, ``live`` being those; ``mixer.close(t, ranks)`` at the end. All ranks have a batch for
    an update together, or those without one have none any more.
    """
    longest = max(len(rank.batches) for rank in ranks)
    for number in range(longest):
        live, wave = [], None
        for rank in ranks:
            if number < len(rank.batches):
                updates = rank.fold(rank.batches[number])
                if updates is not None:
                    live.append(rank)
                    wave = updates
        if live:
            _update(ranks, live, wave, mixer)
        for rank in ranks:
            if number + 1 == len(rank.batches) and rank.pending():
                assert len({len(other.batches) for other in ranks}) == 1, "an open round needs even ranks here"
    for wave in ranks[0].pending():
        _update(ranks, ranks, wave, mixer)
    newest = ranks[0].newest
    for trajectory in range(len(ranks[0].trajectories)):
        mixer.close(trajectory, ranks)
    return [[p.detach().clone() for p in rank.weights(newest)] for rank in ranks]


def _update(ranks, live, wave, mixer):
    trajectory = wave if ranks[0].rule == "neighbour" else 0
    mixer.before(trajectory, ranks, live)
    for rank in live:
        rank.update(wave)
    mixer.after(trajectory, ranks, live)
    for rank in live:
        if rank.rule == "delayed":
            rank.see(wave)


class Mean:
    """Every ``period`` updates of a trajectory the mean, weighted, over the ranks that have something new."""

    def __init__(self, ranks, period, weights=None, warm=0):
        self.period = period if callable(period) else lambda number: period
        self.weights = weights or [1.0] * len(ranks)
        self.phase, self.number = {}, {}
        self.fresh = {}

    def before(self, trajectory, ranks, live):
        pass

    def after(self, trajectory, ranks, live):
        for rank in live:
            self.fresh[trajectory, id(rank)] = True
        number = self.number.setdefault(trajectory, 0)
        self.phase[trajectory] = self.phase.get(trajectory, 0) + 1
        if self.phase[trajectory] == self.period(number):
            self.phase[trajectory], self.number[trajectory] = 0, number + 1
            self.mix(trajectory, ranks)

    def close(self, trajectory, ranks):
        if any(self.fresh.get((trajectory, id(rank))) for rank in ranks):
            self.mix(trajectory, ranks, closes=True)
        else:
            self.left_open(trajectory, ranks)

    def left_open(self, trajectory, ranks):
        pass

    @torch.no_grad()
    def mix(self, trajectory, ranks, closes=False):
        shares = [w if self.fresh.pop((trajectory, id(rank)), False) else 0.0
                  for rank, w in zip(ranks, self.weights, strict=True)]  # fmt: skip
        means = []
        for parts in zip(*(rank.weights(trajectory) for rank in ranks), strict=True):
            total = sum((part * share for part, share in zip(parts, shares, strict=True) if share), torch.zeros(()))
            means.append(total / sum(shares))
        self.write(trajectory, ranks, means, closes)

    def write(self, trajectory, ranks, means, closes):
        for rank in ranks:
            for p, mean in zip(rank.weights(trajectory), means, strict=True):
                p.copy_(mean)


class BlockMomentum(Mean):
    """BMUF: G = mean − start, Δ = mΔ + ζG, W = W + Δ; Nesterov's start is W + mΔ, but not after a close."""

    def __init__(self, ranks, period, m, zeta, nesterov):
        super().__init__(ranks, period)
        self.m, self.zeta, self.nesterov = m, zeta, nesterov
        self.model = {t: [p.detach().clone() for p in ranks[0].weights(t)] for t in range(len(ranks[0].trajectories))}
        self.start = {t: [w.clone() for w in model] for t, model in self.model.items()}
        self.change = {t: [torch.zeros_like(w) for w in model] for t, model in self.model.items()}

    def write(self, trajectory, ranks, means, closes):
        model, change, start = self.model[trajectory], self.change[trajectory], self.start[trajectory]
        for index, mean in enumerate(means):
            change[index] = torch.add(self.m * change[index], mean - start[index], alpha=self.zeta)  # rounds once
            model[index] = model[index] + change[index]
            ahead = self.nesterov and not closes
            start[index] = torch.add(model[index], change[index], alpha=self.m) if ahead else model[index]
        super().write(trajectory, ranks, start, closes)

    @torch.no_grad()
    def left_open(self, trajectory, ranks):
        super().write(trajectory, ranks, self.model[trajectory], True)


class LayerWise:
    """DreamDDP: before update u of a trajectory the parameters of ``assignment[u % H]`` become their mean.

    The mean is over the ranks that have an update, and those whose last one is at most H mixings ago.
    """

    def __init__(self, ranks, assignment):
        self.assignment, self.phase, self.fresh = assignment, {}, {}

    def before(self, trajectory, ranks, live):
        phase = self.phase.get(trajectory, 0)
        self.phase[trajectory] = (phase + 1) % len(self.assignment)
        counted = [rank for rank in ranks if rank in live or self.fresh.get((trajectory, id(rank)), 0) > 0]
        for rank in ranks:
            self.fresh[trajectory, id(rank)] = max(0, self.fresh.get((trajectory, id(rank)), 0) - 1)
        self.mix(trajectory, ranks, counted, self.assignment[phase])

    def after(self, trajectory, ranks, live):
        for rank in live:
            self.fresh[trajectory, id(rank)] = len(self.assignment)

    def close(self, trajectory, ranks):
        counted = [rank for rank in ranks if self.fresh.get((trajectory, id(rank)), 0) > 0]
        if counted:
            self.mix(trajectory, ranks, counted, range(len(ranks[0].live)))

    @torch.no_grad()
    def mix(self, trajectory, ranks, counted, indices):
        for index in indices:
            mean = sum(rank.weights(trajectory)[index] for rank in counted) / len(counted)
            for rank in ranks:
                rank.weights(trajectory)[index].copy_(mean)
