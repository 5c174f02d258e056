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
from pathlib import Path

import torch
from torch import Tensor, nn

import wavelet

NUM_PARAMETERS = 300


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
    if options.json:
        machine = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
        options.json.write_text(json.dumps({"schema_version": 1, **machine, "seconds": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
