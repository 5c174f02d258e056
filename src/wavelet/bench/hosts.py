"""Hosts on one machine: network namespaces joined by a switch, with links of a given rate and cores of their own.

For measurements and tests of several ranks where there is only one machine, on Linux and as root.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wavelet.bench.namespaces import Namespaces, NetworkError, ip, sweep, tc
from wavelet.planning.quantities import bits_per_second

__all__ = ["Host", "Hosts", "bits_per_second", "cores_of", "link_sent_bytes", "why_not"]

INTERFACE = "eth0"
"""What every host calls its link."""

_MOST = 250
_SECONDS_OF_BURST = 0.002
_LEAST_BURST = 16_384
_LARGEST_PACKET = 65_536
_SECONDS_IN_QUEUE = "50ms"


@dataclass(frozen=True)
class Host:
    """One of the hosts.

    Args:
        name: its network namespace.
        address: its IPv4 address, which the other hosts reach.
        interface: its link.
        cores: those that its commands may run on; no other host has them unless there are fewer cores than hosts.
    """

    name: str
    address: str
    interface: str
    cores: tuple[int, ...]

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv` as it is to be started here in order to run there."""
        cores = ",".join(map(str, self.cores))
        return ["ip", "netns", "exec", self.name, "taskset", "--cpu-list", cores, *argv]

    def environment(self) -> dict[str, str]:
        """Variables for a command of this host: gloo's interface, and as many threads as cores."""
        return {"GLOO_SOCKET_IFNAME": self.interface, "OMP_NUM_THREADS": str(len(self.cores))}

    def sent_bytes(self) -> int:
        """What has left the host so far, headers included."""
        (link,) = json.loads(ip("-netns", self.name, "-json", "-stats", "link", "show", "dev", self.interface))
        return int(link["stats64"]["tx"]["bytes"])


class Hosts(Sequence[Host]):
    """Hosts that live while this context does; leaving it ends all that runs in them and leaves nothing behind.

    Nothing of them is to be seen outside of their namespaces, and they reach nobody but each other. What a killed
    process has left is removed at the next start.

    Args:
        count: how many.
        rate: of each link, for sending and for receiving, as ``"500mbit"``; None: no limit.

    Raises:
        ValueError: `count` or `rate` makes no sense.
        NetworkError: on entering, where `why_not` has a reason.
    """

    def __init__(self, count: int, *, rate: str | None = None) -> None:
        if not 1 <= count <= _MOST:
            raise ValueError(f"{count} hosts are not possible: give 1 to {_MOST}")
        self._count = count
        self._bits = None if rate is None else bits_per_second(rate)
        self._hosts: list[Host] = []

    def __enter__(self) -> Hosts:
        sweep()
        with contextlib.ExitStack() as stack:
            self._namespaces = stack.enter_context(Namespaces())
            self._make()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._hosts = []

    def __len__(self) -> int:
        return len(self._hosts)

    def __getitem__(self, number: int) -> Host:  # type: ignore[override]  # no slices
        return self._hosts[number]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def cut(self, number: int) -> None:
        """Pull the cable of a host: what it sends is lost, what is sent to it too, and nobody is told."""
        ip("-netns", self._switch, "link", "set", f"port{number}", "down")

    def mend(self, number: int) -> None:
        """Plug it in again."""
        ip("-netns", self._switch, "link", "set", f"port{number}", "up")

    def _make(self) -> None:
        self._switch = self._namespaces.add("switch")
        ip("-netns", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-netns", self._switch, "link", "set", "bridge", "addrgenmode", "none", "up")
        for number in range(self._count):
            self._hosts.append(self._make_host(number))

    def _make_host(self, number: int) -> Host:
        switch, port = self._switch, f"port{number}"
        host = Host(
            self._namespaces.add(f"host{number}"), f"10.77.0.{number + 1}", INTERFACE, cores_of(number, self._count)
        )
        ip("-netns", switch, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", host.name)
        ip("-netns", host.name, "link", "set", "lo", "up")
        ip("-netns", host.name, "address", "add", f"{host.address}/24", "dev", INTERFACE)
        for namespace, link in ((switch, port), (host.name, INTERFACE)):
            # Without link-local addresses there is no traffic but that of the programs.
            ip("-netns", namespace, "link", "set", link, "addrgenmode", "none")
            self._limit(namespace, link)
        ip("-netns", switch, "link", "set", port, "master", "bridge")
        ip("-netns", switch, "link", "set", port, "up")
        ip("-netns", host.name, "link", "set", INTERFACE, "up")
        return host

    def _limit(self, namespace: str, link: str) -> None:
        """Let a link send at the rate; the switch's end is what the host receives."""
        if self._bits is None:
            return
        burst = max(round(self._bits / 8 * _SECONDS_OF_BURST), _LEAST_BURST)
        # A packet larger than the burst would be cut into frames, by the cores that are to compute: a network card does
        # that, and at higher rates packets are smaller than the burst.
        ip("-netns", namespace, "link", "set", link, "gso_max_size", str(min(burst * 5 // 8, _LARGEST_PACKET)))
        limits = ("rate", f"{self._bits}bit", "burst", str(burst), "latency", _SECONDS_IN_QUEUE)
        tc("-netns", namespace, "qdisc", "add", "dev", link, "root", "tbf", *limits)


def link_sent_bytes(interface: str) -> int:
    """What has left this process's own host by `interface` so far, headers included."""
    for line in Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    raise ValueError(f"there is no link {interface} here")


@functools.cache
def why_not() -> str | None:
    """Why there can be no hosts here, as one clause; None where there can, which is found out by trying."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are a thing of Linux"
    for command, package in (("ip", "iproute2"), ("tc", "iproute2"), ("taskset", "util-linux")):
        if shutil.which(command) is None:
            return f"the command {command} is not there: install {package}"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    try:
        with Hosts(1, rate="1gbit"):
            return None
    except NetworkError as error:
        return str(error)


def cores_of(number: int, count: int) -> tuple[int, ...]:
    """The cores of one of `count` equal shares of those that this process has; too few of them go round."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    share = len(cores) // count
    return tuple(cores[number * share : (number + 1) * share]) if share else (cores[number % len(cores)],)
