"""Runs a command under torchrun on several hosts, which are network namespaces of this machine.

python benchmarks/hosts/run.py --hosts 2 --rate 500mbit -- -m wavelet train char-gpt
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from wavelet.bench.hosts import Host, Hosts, bits_per_second, why_not

_PORT = "29500"
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_LEAVE = 5.0
_INTERRUPTED = 130


def main() -> int:
    """Run it; gives the worst of the hosts' exit codes, and 2 with one sentence where there can be no hosts."""
    arguments = _arguments()
    reason = why_not()
    if reason is not None:
        print(f"hosts: there can be no hosts here: {reason}", file=sys.stderr)
        return 2
    try:
        codes = _run(arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED
    for number, code in enumerate(codes):
        if code:
            print(f"hosts: host {number} ended with exit code {code}", file=sys.stderr)
    return max(codes)


def _run(arguments: argparse.Namespace) -> list[int]:
    """Every host's exit code. In whatever way this ends, nothing of it runs on."""
    started: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    with Hosts(arguments.hosts, rate=arguments.rate) as hosts:
        try:
            for number, host in enumerate(hosts):
                started.append(_start(host, number, _torchrun(arguments, hosts, number)))
                readers += _read(started[-1], f"host {number}: ")
            codes = _wait(started, arguments.grace)
        finally:
            _end(started)
    for reader in readers:
        reader.join(_SECONDS_TO_LEAVE)
    return codes


def _torchrun(arguments: argparse.Namespace, hosts: Hosts, number: int) -> list[str]:
    """The command of one host: everybody meets at host 0."""
    meet = ["--master-addr", hosts[0].address, "--master-port", _PORT, "--node-rank", str(number)]
    if arguments.max_restarts:  # the static rendezvous cannot let a host in again
        here = f"is_host={int(number == 0)}"
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].address}:{_PORT}", "--rdzv-conf", here]
        meet += ["--rdzv-id", "hosts", "--max-restarts", str(arguments.max_restarts)]
    size = ["--nnodes", str(arguments.hosts), "--nproc-per-node", str(arguments.nproc_per_node)]
    # Without an address of its own a host is known by its name, which all of them share.
    own = ["--local-addr", hosts[number].address]
    return [sys.executable, "-m", "torch.distributed.run", *size, *meet, *own, *arguments.command]


def _start(host: Host, number: int, command: Sequence[str]) -> subprocess.Popen[str]:
    """Start it: host 0 prints as it is, what the others print is to be read."""
    return subprocess.Popen(
        host.command(command),
        stdin=subprocess.DEVNULL,
        stdout=None if number == 0 else subprocess.PIPE,
        stderr=None if number == 0 else subprocess.STDOUT,
        env={**os.environ, **host.environment()},
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C comes to this process, which ends them all
    )


def _read(process: subprocess.Popen[str], prefix: str) -> list[threading.Thread]:
    """A thread that prints the lines of a process with a prefix, to standard error; none if it prints them itself."""
    if process.stdout is None:
        return []
    reader = threading.Thread(target=_prefix, args=(process.stdout, prefix), daemon=True)
    reader.start()
    return [reader]


def _prefix(lines: IO[str], prefix: str) -> None:
    for line in lines:
        print(prefix + line, end="", file=sys.stderr, flush=True)


def _wait(started: Sequence[subprocess.Popen[str]], grace: float) -> list[int]:
    """Every host's exit code; when one has failed, the others get `grace` seconds to notice."""
    end = float("inf")
    while any(process.poll() is None for process in started) and time.monotonic() < end:
        if end == float("inf") and any(process.returncode for process in started):
            end = time.monotonic() + grace
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    _end(started)
    return [_code(process.wait()) for process in started]


def _end(started: Sequence[subprocess.Popen[str]]) -> None:
    """Ask those that still run to leave; what does not is killed with its host."""
    running = [process for process in started if process.poll() is None]
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    end = time.monotonic() + _SECONDS_TO_LEAVE
    for process in running:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _code(returned: int) -> int:
    """As a shell counts: a process that a signal has ended has 128 and its number."""
    return 128 - returned if returned < 0 else returned


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=_count, default=2, help="how many (2)")
    parser.add_argument("--rate", type=_rate, help="of each link, as 500mbit; no limit if not given")
    parser.add_argument("--nproc-per-node", type=_count, default=1, help="processes on each host (1)")
    parser.add_argument("--max-restarts", type=int, default=0, help="of torchrun, with the rendezvous c10d (0)")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds for the others when one host fails (30)")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --: what torchrun is to run")
    return parser.parse_args()


def _count(text: str) -> int:
    if not 1 <= int(text) <= 250:
        raise argparse.ArgumentTypeError(f"{text} is not possible: give 1 to 250")
    return int(text)


def _rate(text: str) -> str:
    try:
        bits_per_second(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


if __name__ == "__main__":
    sys.exit(main())
