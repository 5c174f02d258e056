"""The promise of memory, measured: ``python benchmarks/memory/run.py`` writes results.json and README.md beside it.

Every measurement runs in a process of its own; systems that are compared in speed or resident memory run in turn.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from memory.report import write_readme
from wavelet.bench.allocators import environment
from wavelet.report.jsonfile import JsonFile
from wavelet.report.machine import machine, versions
from wavelet.report.progress import Bar

FOLDER = Path(__file__).resolve().parent
JOBS = {"digits-cnn": 120, "digits-mobile": 80, "char-gpt": 60, "char-lstm": 120, "mlp-small-ops": 80}
"""And how many batches a timed run takes: two to three seconds."""
BUDGETS = ("1.0x", "1.25x", "1.5x", "2.0x")
SLEEPS = ("none", "random", "worst")
RESIDENT = ("digits-cnn", "digits-mobile", "char-gpt")
PARTS = ("heap", "speed", "resident")


def main() -> None:
    """Measure the parts and jobs that are asked for; the others stay as they are in results.json."""
    arguments = _arguments()
    path = FOLDER / "results.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for part in arguments.parts:
        others = [row for row in results.get(part, []) if row["job"] not in arguments.jobs]
        results[part] = [*others, *globals()[f"_{part}"](arguments)]
        key = part if len(arguments.jobs) == len(JOBS) else f"{part} of {', '.join(arguments.jobs)}"
        results["commands"] = {**results.get("commands", {}), key: shlex.join(["python", *sys.argv])}
        results["machine"], results["versions"] = machine(), versions()
        results.pop("schema_version", None)
        JsonFile(path, force=True).write(results)
    write_readme(json.loads(path.read_text(encoding="utf-8")), FOLDER / "README.md")


def _heap(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    asked = [(job, budget, sleeps) for job in arguments.jobs for budget in BUDGETS for sleeps in SLEEPS]
    with Bar("heap", len(asked)) as bar:
        for job, budget, sleeps in asked:
            bar.update(len(rows), f"{job} {budget} sleeps: {sleeps}")
            found = _measure(kind="heap", job=job, budget=budget, sleeps=sleeps, batches=40, longest=0.004)
            rows.append({"job": job, "budget": budget, "sleeps": sleeps, **found})
    return rows


def _speed(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One wave with the threads that one of two waves has, two waves freely, and two waves within each budget."""
    systems: dict[str, dict[str, Any]] = {"one wave": {"waves": 1, "threads": 1}, "free": {}}
    systems |= {budget: {"budget": budget} for budget in BUDGETS}
    rows = []
    with Bar("speed", len(arguments.jobs) * arguments.rounds * len(systems)) as bar:
        done = 0
        for job in arguments.jobs:
            predicted = _measure(kind="predictions", job=job, budgets=BUDGETS)
            found: dict[str, list[float]] = {name: [] for name in systems}
            for _ in range(arguments.rounds):
                for name, options in systems.items():
                    run = _measure(kind="speed", job=job, batches=JOBS[job], **options)
                    found[name].append(run["samples_per_second"])
                    done += 1
                    bar.update(done, f"{job} {name}")
            rows.append({"job": job, "samples_per_second": found, "predicted": predicted})
    return rows


def _resident(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Two waves at 1.25x against two processes of DDP, under each allocator."""
    rows = []
    cases = [(allocator, job) for allocator in arguments.allocators for job in arguments.jobs if job in RESIDENT]
    with Bar("resident", len(cases) * arguments.rounds) as bar:
        for number, (allocator, job) in enumerate(cases):
            waves: list[dict[str, Any]] = []
            ddp: list[dict[str, Any]] = []
            for turn in range(arguments.rounds):
                bar.update(number * arguments.rounds + turn, f"{job} {allocator}")
                common = {"kind": "resident", "job": job, "batches": JOBS[job]}
                waves.append(_measure(allocator, **common, system="waves", budget="1.25x"))
                ddp.append(_ddp(allocator, common))
            rows.append({"job": job, "allocator": allocator, "waves": waves, "ddp": ddp})
    return rows


def _ddp(allocator: str, common: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder, "rendezvous"))
        both = [
            _start(allocator, **common, system="ddp", rank=rank, rendezvous=rendezvous, threads=1) for rank in range(2)
        ]
        found = [_result(process) for process in both]
    return {
        "rise_bytes": sum(run["rise_bytes"] for run in found),
        "rest_bytes": sum(run["rest_bytes"] for run in found),
        "samples_per_second": sum(run["samples_per_second"] for run in found),
    }


def _measure(allocator: str = "glibc", **asked: Any) -> dict[str, Any]:
    return _result(_start(allocator, **asked))


def _start(allocator: str, **asked: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(FOLDER / "worker.py"), json.dumps(asked)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(allocator), text=True)


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    text, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a measurement failed: {shlex.join(map(str, process.args))}")  # type: ignore[arg-type]
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--allocators", nargs="+", default=["glibc", "tcmalloc", "pool"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
