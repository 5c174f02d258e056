"""What saving costs: `wavelet train` with a checkpoint every so many batches, and without, in turn.

python benchmarks/saving.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from wavelet.report.progress import Bar


def main() -> None:
    """Print samples/s with and without saving, medians over rounds, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="char-gpt")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rates: dict[bool, list[float]] = {False: [], True: []}
    with Bar(arguments.job, 2 * arguments.rounds) as bar:
        for number in range(2 * arguments.rounds):
            saves = bool(number % 2)
            rates[saves].append(_rate(arguments.job, arguments.steps, arguments.every if saves else None))
            bar.update(number + 1, "saving" if saves else "not saving")
    for saves, found in rates.items():
        how = f"saving every {arguments.every}" if saves else "not saving"
        print(f"{how}: {median(found):.1f} samples/s ({min(found):.1f} to {max(found):.1f})")
    print(f"saving keeps {median(rates[True]) / median(rates[False]):.1%} of the speed")


def _rate(job: str, steps: int, every: int | None) -> float:
    """Samples a second of one run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, "-m", "wavelet", "train", job, "--steps", str(steps), "--json", str(result)]
        if every:
            command += ["--save", str(Path(folder, "run")), "--every", str(every)]
        subprocess.run(command, check=True, capture_output=True)
        return float(json.loads(result.read_text(encoding="utf-8"))["samples_per_second"])


if __name__ == "__main__":
    main()
