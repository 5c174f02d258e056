"""What the engine itself costs a step: a model of 300 one-element parameters, against the plain loop.

Both train the same model with the same optimizer, in turn, round by round, on one thread; the difference of the medians
is the engine's own cost. With one wave nothing overlaps, so it is all there to be seen.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

import wavelet
from wavelet.devices import make_device
from wavelet.planning import Interlock
from wavelet.profiling.edges import BlockEdges
from wavelet.waves.gates import Passage
from wavelet.waves.turns import Turns

NUM_PARAMETERS = 300
NUM_BLOCKS = 50


class Many(nn.Module):
    """300 parameters of one element, used in one operator, so that the step is little but bookkeeping."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(NUM_PARAMETERS)])

    def forward(self, x: Tensor) -> Tensor:
        return (torch.cat(list(self.parts)) * x).sum()


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    value: Tensor = model(batch)
    return value


def plain(steps: int, batch: Tensor) -> float:
    """Seconds a step of the plain loop."""
    model = Many()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    for step in range(steps + 10):
        if step == 10:
            started = time.perf_counter()
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    return (time.perf_counter() - started) / steps


def waves(steps: int, batch: Tensor, num_waves: int, update: str) -> float:
    """Seconds a step of the engine."""
    model = Many()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    with wavelet.Wavelet(model, optimizer, loss, waves=num_waves, update=update) as engine:
        for _ in range(10):
            engine.step(batch)
        engine.drain()
        started = time.perf_counter()
        for _ in range(steps):
            engine.step(batch)
        engine.drain()
        return (time.perf_counter() - started) / steps


class Chain(nn.Module):
    """As many blocks as there can be: each multiplies by a number."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(*[Times() for _ in range(NUM_BLOCKS)])

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x).sum()  # type: ignore[no-any-return]


class Times(nn.Module):
    """A block of one operator."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def step_of_chain(steps: int, *, gates: bool) -> float:
    """Seconds of a forward and backward of the chain, perhaps with a gate at each block and a watch on each edge."""
    model = Chain()
    names = (None, *(f"parts.{block}" for block in range(1, NUM_BLOCKS)))
    edges = BlockEdges(model, names, {name: 1 for name, _ in model.named_modules()}) if gates else None
    interlock = Interlock(tuple((block,) for block in range(1, NUM_BLOCKS + 1)))
    turns, device = Turns(60.0), make_device(torch.device("cpu"), 2)
    done = Passage(0, 0, interlock, (), turns, device)
    done.turned()
    x = torch.ones(1)
    started = time.perf_counter()
    for _ in range(steps):
        passage = Passage(1, 1, interlock, (done,), turns, device)
        with edges.forward(passage) if edges else nullcontext():
            value = model(x)
        value.backward()
    return (time.perf_counter() - started) / steps


def show_gates(steps: int, rounds: int) -> dict[str, list[float]]:
    """Print what the gate and the watch of a block cost, where nobody has to wait."""
    figures: dict[str, list[float]] = {"without gates": [], "with gates": []}
    for _ in range(rounds):
        figures["without gates"].append(step_of_chain(steps, gates=False))
        figures["with gates"].append(step_of_chain(steps, gates=True))
    pairs = zip(figures["with gates"], figures["without gates"], strict=True)
    each = sorted((with_gates - without) / NUM_BLOCKS * 1e6 for with_gates, without in pairs)
    print(
        f"\na gate and the watch of its edge: {statistics.median(each):.1f} µs a block ({each[0]:.1f}–{each[-1]:.1f})"
    )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    batch = torch.full((NUM_PARAMETERS,), 1e-3)
    systems = [(k, rule) for rule in ("neighbour", "synchronous", "delayed") for k in (1, 2)]
    figures: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        figures.setdefault("plain", []).append(plain(options.steps, batch))
        for num_waves, rule in systems:
            figures.setdefault(f"{rule}, K={num_waves}", []).append(waves(options.steps, batch, num_waves, rule))
    base = statistics.median(figures["plain"])
    print(f"{'system':<18}{'µs a step':>12}{'over plain':>12}{'spread':>16}")
    for name, seconds in figures.items():
        middle = statistics.median(seconds)
        spread = f"{min(seconds) * 1e6:.0f}–{max(seconds) * 1e6:.0f}"
        print(f"{name:<18}{middle * 1e6:>12.0f}{(middle - base) * 1e6:>+12.0f}{spread:>16}")
    figures |= show_gates(options.steps, options.rounds)
    if options.json:
        machine = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
        options.json.write_text(json.dumps({"schema_version": 1, **machine, "seconds": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
