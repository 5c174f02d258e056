"""Kills a random rank at a random batch, lets torchrun start again, and compares the final weights bit for bit.

python benchmarks/failures/restarts.py --kills 20
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from wavelet.report.progress import Bar

HERE = Path(__file__).resolve().parent
STEPS, EVERY = 60, 7


def main() -> int:
    """Give 0 if every run ended with the weights of an undisturbed one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="runs with one kill each (20)")
    kills = parser.parse_args().kills
    equal = 0
    with tempfile.TemporaryDirectory() as name, Bar("kills", kills) as bar:
        folder = Path(name)
        expected = final_weights(folder, "undisturbed", "")
        for seed in range(kills):
            chance = random.Random(seed)
            rank, batch = chance.randrange(2), chance.randrange(STEPS)
            found = final_weights(folder, f"run{seed}", f"kill {rank} {batch} {folder}/killed{seed}")
            was_killed = (folder / f"killed{seed}").exists()
            equal += was_killed and same(found, expected)
            bar.update(seed + 1, f"rank {rank} at batch {batch}")
    print(f"{equal} of {kills} random kills ended with the same weights, bit for bit.")
    return 0 if equal == kills else 1


def final_weights(folder: Path, name: str, fail: str) -> dict[str, torch.Tensor]:
    """All tensors of the last checkpoint of a run on two ranks, during which what ``fail`` says happens.

    Raises:
        RuntimeError: the run did not end well.
    """
    saved = folder / name
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "-m", "wavelet", "train", str(HERE / "mortal.py"), "--steps", str(STEPS)]
    command += ["--save", str(saved), "--every", str(EVERY), "--resume", "auto"]
    environment = {**os.environ, "FAIL": fail, "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    if run.returncode:
        raise RuntimeError(f"{name} ended with {run.returncode}:\n{run.stderr[-3000:]}")
    single = folder / f"{name}.pt"
    dcp_to_torch_save(saved / f"step-{STEPS:08d}", single)
    return dict(_tensors(torch.load(single, weights_only=False)))


def _tensors(value: object, name: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [pair for key, item in items for pair in _tensors(item, f"{name}/{key}")]


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Whether both have the same names with the same values."""
    return bool(left) and left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


if __name__ == "__main__":
    sys.exit(main())
