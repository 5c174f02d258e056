"""How soon, and with what words, the other ranks end when one fails: two hosts, each with one rank.

python benchmarks/failures/run.py
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from wavelet.bench.hosts import Hosts, why_not
from wavelet.report.jsonfile import JsonFile
from wavelet.report.machine import machine, versions
from wavelet.report.progress import Bar

HERE = Path(__file__).resolve().parent
CASES = {
    "kill": "kill -9 of rank 1",
    "kill first": "kill -9 of rank 0, whose host keeps the store",
    "stop": "rank 1 stopped (SIGSTOP)",
    "cut": "the link of rank 1 cut",
    "forward": "an exception in rank 1's forward",
    "backward": "an exception in rank 1's backward",
    "memory": "out of memory on rank 1",
    "disk": "the disk full while saving",
    "interrupt": "Ctrl-C on rank 1",
}
BATCH = 150
LONGEST = 150.0
"""Seconds after which a case is called a hang."""


def main() -> int:
    """Measure the cases that are asked for; the others stay as they are in results.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"among {', '.join(CASES)} (all)")
    asked = parser.parse_args().cases or list(CASES)
    reason = why_not()
    if reason is not None or set(asked) - set(CASES):
        print(f"failures: {reason or 'there is no such case'}", file=sys.stderr)
        return 2
    path = HERE / "results.json"
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.exists() else {}
    with Bar("failures", len(asked)) as bar:
        for number, kind in enumerate(asked):
            bar.update(number, CASES[kind])
            with tempfile.TemporaryDirectory() as folder, Hosts(2) as hosts:
                cases[kind] = _case(kind, Path(folder), hosts)
    found = {"command": "python benchmarks/failures/run.py", "cases": cases}
    JsonFile(path, force=True).write({**found, "machine": machine(), "versions": versions()})
    (HERE / "README.md").write_text(_readme(cases), encoding="utf-8")
    return 0


def _case(kind: str, folder: Path, hosts: Hosts) -> dict[str, Any]:
    """Start two ranks, let one fail, and wait for those that are left."""
    failing = 0 if kind == "kill first" else 1
    inside = {"kill first": "kill", "cut": "outside", "interrupt": "outside", "disk": "outside"}.get(kind, kind)
    marker = folder / "marker"
    arguments = ["train", str(HERE / "mortal.py"), "--steps", "100000"]
    if kind == "disk":
        (folder / "small").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", folder / "small"], check=True)
        arguments += ["--save", str(folder / "small" / "run"), "--every", str(BATCH)]
    processes = []
    try:
        for rank, host in enumerate(hosts):
            environment = {
                **os.environ, **host.environment(), "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                "MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29500",
                "FAIL": f"{inside} {failing} {BATCH} {marker}",
            }  # fmt: skip
            command = host.command([sys.executable, "-m", "wavelet", *arguments])
            output = (folder / f"output{rank}").open("w")
            processes.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
        start = _begin(kind, marker, hosts, processes)
        left = [rank for rank in range(2) if not (rank == failing and kind in ("kill", "kill first", "stop"))]
        ended = {rank: _ended(processes[rank], start) for rank in left}
    finally:
        for process in processes:
            process.kill()
            process.wait()
        if kind == "disk":
            subprocess.run(["umount", "--lazy", folder / "small"], check=True)
    said = {rank: _last_words(folder / f"output{rank}") for rank in left}
    return {
        str(rank): {"seconds": ended[rank], "exit_code": processes[rank].returncode, "says": said[rank]}
        for rank in left
    }


def _begin(kind: str, marker: Path, hosts: Hosts, processes: list[subprocess.Popen[bytes]]) -> float:
    """Wait for the moment, and do what is done from outside."""
    deadline = time.monotonic() + LONGEST
    while not marker.exists() or not marker.read_text(encoding="utf-8"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{kind}: the ranks never came to batch {BATCH}")
        time.sleep(0.01)
    if kind == "cut":
        hosts.cut(1)
    if kind == "interrupt":
        processes[1].send_signal(signal.SIGINT)
    if kind in ("cut", "interrupt"):
        return time.monotonic()
    return float(marker.read_text(encoding="utf-8"))  # one clock for all processes of a machine


def _ended(process: subprocess.Popen[bytes], start: float) -> float | None:
    """Seconds until it ended; None if it never did."""
    try:
        process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        return None
    return time.monotonic() - start


def _last_words(output: Path) -> str:
    lines = [line for line in output.read_text(encoding="utf-8").splitlines() if line.startswith("wavelet")]
    return lines[-1] if lines else ""


def _readme(cases: dict[str, Any]) -> str:
    rows = []
    for kind, title in CASES.items():
        for rank, ended in cases.get(kind, {}).items():
            seconds = "never" if ended["seconds"] is None else f"{ended['seconds']:.1f}"
            rows.append(f"| {title} | {rank} | {seconds} | {ended['exit_code']} | {ended['says']} |")
    return "\n".join(
        [
            "# When a rank fails\n",
            "Two hosts (network namespaces) with one rank each train; one of them fails. Seconds until each process that "
            "is left has ended, its exit code, and its last line. The exchange's timeout is the default, 60 s. Without a "
            "launcher, which would end the others as soon as one has.\n",
            "    python benchmarks/failures/run.py\n",
            "| failure | rank | ended after, s | exit code | and said |",
            "|---|--:|--:|--:|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
