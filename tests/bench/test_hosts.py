"""Hosts are real: links have their rate, a cable can be pulled, and nothing is left in whatever way their owner ends.

Times are lower bounds: what a limit of the rate implies. No test asks how fast something is.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wavelet.bench import hosts as module
from wavelet.bench.hosts import Hosts, bits_per_second, cores_of, why_not
from wavelet.bench.namespaces import NetworkError, ip, sweep

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.distributed
needs_namespaces = pytest.mark.skipif(why_not() is not None, reason=f"needs_namespaces: {why_not()}")

RECEIVE = """
import socket, time
server = socket.create_server(("", 5000))
print("ready", flush=True)
connection, _ = server.accept()
start, count = time.monotonic(), 0
while piece := connection.recv(1 << 16):
    count += len(piece)
print(count, time.monotonic() - start)
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""
OWN = """
import subprocess, sys, time
from wavelet.bench.hosts import Hosts
with Hosts(2, rate="1gbit") as hosts:
    child = subprocess.Popen(hosts[1].command(["sleep", "1000"]), start_new_session=True)
    print(child.pid, *(host.name for host in hosts), flush=True)
    {then}
"""


def namespaces():
    return set(ip("netns", "list").split())


def runs(pid):
    """Whether a process is there and no zombie, which a machine without an init may keep."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def send(hosts, num_bytes):
    """Host 1 sends to host 0; gives the bytes that arrived and the seconds that they took."""
    receiver = subprocess.Popen(hosts[0].command([sys.executable, "-c", RECEIVE]), stdout=subprocess.PIPE, text=True)
    with receiver:
        assert receiver.stdout.readline() == "ready\n"
        sender = hosts[1].command([sys.executable, "-c", SEND, hosts[0].address, str(num_bytes)])
        subprocess.run(sender, check=True, timeout=60)
        count, seconds = receiver.stdout.read().split()
    return int(count), float(seconds)


@pytest.fixture
def owner():
    """Starts a process that makes two hosts with a command in one; gives it, the command's id and the hosts' names."""
    started = []

    def start(then="time.sleep(1000)"):
        process = subprocess.Popen(
            [sys.executable, "-c", OWN.format(then=then)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        pid, *names = process.stdout.readline().split()
        return process, int(pid), names

    yield start
    for process in started:
        process.kill()
        process.wait()
    if started:
        sweep()  # ends the commands in the hosts too, which have the pipes
    for process in started:
        process.communicate()


@needs_namespaces
def test_a_link_has_its_rate():
    """4 MB at 40 Mbit/s need 0.8 s, less what the buckets of the links let through at once."""
    with Hosts(2, rate="40mbit") as hosts:
        before = hosts[1].sent_bytes()
        count, seconds = send(hosts, 4_000_000)
        sent = hosts[1].sent_bytes() - before
    assert count == 4_000_000
    assert seconds > 0.7
    assert 4_000_000 < sent < 4_600_000, "headers and what was lost, but nothing else"


@needs_namespaces
def test_hosts_have_addresses_and_cores_of_their_own():
    with Hosts(2) as hosts:
        assert len(hosts) == len({host.name for host in hosts}) == len({host.address for host in hosts}) == 2
        show = "import os; print(*os.sched_getaffinity(0)); print(*os.listdir('/sys/class/net'))"
        for host in hosts:
            shown = subprocess.check_output(host.command([sys.executable, "-c", show]), text=True).splitlines()
            assert set(map(int, shown[0].split())) == set(host.cores)
            assert {"lo", host.interface} <= set(shown[1].split())
            assert host.environment()["GLOO_SOCKET_IFNAME"] == host.interface
        assert send(hosts, 1000)[0] == 1000


@needs_namespaces
def test_a_pulled_cable():
    """With the cable out nobody is reached; mended, the hosts reach each other."""
    connect = "import socket, sys; socket.create_connection((sys.argv[1], 5000), timeout=0.5)"
    with Hosts(2) as hosts:
        hosts.cut(0)
        refused = subprocess.run(
            hosts[1].command([sys.executable, "-c", connect, hosts[0].address]),
            capture_output=True,
            text=True,
            check=False,
        )
        assert "timed out" in refused.stderr or "No route" in refused.stderr
        hosts.mend(0)
        assert send(hosts, 1000)[0] == 1000


@needs_namespaces
def test_several_live_side_by_side():
    with Hosts(2) as first, Hosts(2) as second:
        assert not {host.name for host in first} & {host.name for host in second}
        assert send(first, 1000)[0] == send(second, 1000)[0] == 1000


@needs_namespaces
def test_nothing_is_left_after_an_exception(monkeypatch):
    before, links = namespaces(), ip("-brief", "link")
    with pytest.raises(ZeroDivisionError):
        with Hosts(2) as hosts:
            child = subprocess.Popen(hosts[0].command(["sleep", "1000"]))
            assert ip("-brief", "link") == links, "hosts are only seen from inside"
            1 / 0  # noqa: B018
    assert child.wait(5) == -signal.SIGKILL
    assert namespaces() <= before  # what an earlier run had left may be gone

    def fails(self, namespace, link):
        raise NetworkError("no more links")

    monkeypatch.setattr(Hosts, "_limit", fails)
    with pytest.raises(NetworkError, match="no more links"):
        Hosts(2).__enter__()
    assert namespaces() <= before  # what an earlier run had left may be gone


@needs_namespaces
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_nothing_is_left_after_a_signal(owner, number, code):
    process, child, names = owner()
    assert set(names) <= namespaces()
    process.send_signal(number)
    process.wait(30)
    assert process.returncode == code
    assert not set(names) & namespaces()
    assert not runs(child)


@needs_namespaces
def test_the_next_start_removes_what_a_killed_one_has_left(owner):
    """And leaves alone what is in use."""
    process, child, names = owner()
    living, _, others = owner()
    process.kill()
    process.wait()
    assert set(names) <= namespaces()
    assert runs(child)
    with Hosts(1):
        assert not set(names) & namespaces()
        assert not runs(child)
        assert set(others) <= namespaces()
    assert living.poll() is None


@needs_namespaces
def test_a_forked_child_leaves_its_parents_hosts_alone():
    with Hosts(1) as hosts:
        child = os.fork()
        if child == 0:
            hosts.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        assert hosts[0].name in namespaces()


WORKER = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (1 + dist.get_rank())
dist.all_reduce(total)
print(f"rank {dist.get_rank()} has {total.item():.0f}", flush=True)
dist.destroy_process_group()
sys.exit(int(sys.argv[1]))
"""


def run_hosts(tmp_path, *arguments, code=0):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    command = [sys.executable, ROOT / "benchmarks/hosts/run.py", *arguments, "--", worker, str(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


@needs_namespaces
def test_torchrun_on_hosts(tmp_path):
    before = namespaces()
    done = run_hosts(tmp_path, "--hosts", "2", "--rate", "1gbit")
    assert (done.returncode, done.stdout) == (0, "rank 0 has 3\n"), done.stderr
    assert "host 1: rank 1 has 3\n" in done.stderr
    failed = run_hosts(tmp_path, "--hosts", "2", "--grace", "1", code=3)
    assert failed.returncode == 1, "torchrun's code"
    assert "hosts: host 1 ended with exit code 1" in failed.stderr
    assert namespaces() <= before  # what an earlier run had left may be gone


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="0 hosts are not possible: give 1 to 250"):
        Hosts(0)
    for rate in ("500", "fast", "-1mbit", "0mbit"):
        with pytest.raises(ValueError, match=f"the rate '{rate}' makes no sense"):
            Hosts(2, rate=rate)
    assert [bits_per_second(rate) for rate in ("8kbit", "1.5mbit", "10gbit")] == [8000, 1_500_000, 10**10]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/hosts/run.py", "--rate", "5", "--", "x"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "'5' makes no sense" in done.stderr


def test_reasons_why_there_can_be_none(monkeypatch):
    why_not.cache_clear()
    try:
        monkeypatch.setattr(module.shutil, "which", lambda command: None if command == "tc" else command)
        assert why_not() == "the command tc is not there: install iproute2" or sys.platform != "linux"
    finally:
        why_not.cache_clear()


def test_shares_of_the_cores(monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: {0, 2, 4, 6, 8}, raising=False)
    assert [cores_of(number, 2) for number in range(2)] == [(0, 2), (4, 6)]
    assert [cores_of(number, 7) for number in range(7)] == [(0,), (2,), (4,), (6,), (8,), (0,), (2,)]
