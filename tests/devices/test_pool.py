"""The pool as torch's CPU allocator: exact counts, blocks that cross threads and forks, builds, and its fallback."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from wavelet.devices import allocator

HERE = Path(__file__).parent
SOURCES = Path(allocator.__file__).parent

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the pool is for Linux"),
    pytest.mark.skipif(allocator.find_compiler() is None, reason="needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder that is empty at first."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(cache):
    """Runs Python code in a process of its own; gives the finished process."""

    def run(code, **environment):
        full = {**os.environ, "XDG_CACHE_HOME": str(cache), allocator.VARIABLE: "system", **environment}
        command = [sys.executable, "-c", textwrap.dedent(code)]
        return subprocess.run(command, env=full, capture_output=True, text=True, timeout=150, check=False)

    return run


def check(done):
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr  # torch's profiler writes there too
    return json.loads(done.stdout) if done.stdout else None


def test_two_processes_build_at_once(tmp_path):
    """Neither sees a library that is half there, and nothing else is left."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    code = "from wavelet.devices import allocator; allocator.install_pool(); print(allocator.pool_in_use())"
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=150)[0] for process in both] == ["True\n"] * 2
    (library,) = (tmp_path / "wavelet").iterdir()
    assert library.suffix == ".so"


def test_counts_are_exact(run):
    """Small blocks and large ones, in the unit that was asked for; installing twice changes nothing."""
    counts = check(run("""
        import json, torch
        from wavelet.devices import allocator
        assert allocator.pool_stats() is None
        before = torch.empty(10_000_000, dtype=torch.uint8)
        allocator.install_pool()
        allocator.install_pool()
        counts = [allocator.pool_stats()]
        held = [torch.empty(size, dtype=torch.uint8) for size in (0, 1, 65_535, 65_536, 65_537, 5_000_001)]
        counts.append(allocator.pool_stats())
        del held[-1], before
        counts.append(allocator.pool_stats())
        allocator.reset_peak()
        counts.append(allocator.pool_stats())
        print(json.dumps(counts))
    """))  # fmt: skip
    small = 1 + 65_535 + 65_536 + 65_537
    assert [count[:2] for count in counts] == [
        [0, 0],
        [small + 5_000_001] * 2,
        [small, small + 5_000_001],
        [small, small],
    ]
    assert [count[2] for count in counts] == [0, 2**26, 2**26, 2**26]


def test_blocks_freed_by_other_threads(run):
    """Random sizes; each block keeps its content and is aligned, and in the end all is given back."""
    check(run("""
        import queue, random, threading, torch
        from wavelet.devices import allocator
        allocator.install_pool()
        before = allocator.pool_stats().allocated

        def make(seed, outbox):
            choice = random.Random(seed)
            for step in range(150):
                size = choice.choice([0, 1, 100, 4_000, 65_536, choice.randrange(2**20), choice.randrange(2**24)])
                block = torch.full((size,), step % 251, dtype=torch.uint8)
                assert block.data_ptr() % 64 == 0
                outbox.put((step % 251, block))
            outbox.put(None)

        def end(inbox, errors):
            held = []
            while (item := inbox.get()) is not None:
                held.append(item)
                if len(held) > 5:
                    value, block = held.pop(random.randrange(len(held)))
                    if not bool((block == value).all()):
                        errors.append(value)

        errors, threads = [], []
        for seed in range(3):
            between = queue.Queue(4)
            threads += [threading.Thread(target=make, args=(seed, between)),
                        threading.Thread(target=end, args=(between, errors))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert allocator.pool_stats().allocated == before, allocator.pool_stats()
    """))  # fmt: skip


def test_memory_is_reused_from_round_to_round(run):
    """What is free has merged; a new thread takes it, and its pages can go back."""
    check(run("""
        import threading, torch
        from pathlib import Path
        from wavelet.devices import allocator
        allocator.install_pool()

        def work(sizes):
            held = [torch.ones(size * 2**18) for size in sizes]

        def in_a_thread(sizes):
            thread = threading.Thread(target=work, args=(sizes,))
            thread.start()
            thread.join()

        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

        seen = set()
        for sizes in [(9, 5, 17, 40, 3), (40, 17, 3, 9, 5), (74,), (1,) * 74] * 3:
            in_a_thread(sizes)
            seen.add(allocator.pool_stats().reserved)
        assert len(seen) == 1, seen
        before = resident()
        allocator.give_back()
        assert resident() < before - 60 * 2**20
        in_a_thread((74,))
        assert allocator.pool_stats().reserved in seen
    """))  # fmt: skip


def test_pages_free_at_the_peak_go_back_by_themselves(run):
    """A first step takes 200 MiB, the ones after it 20: the rest does not stay for ever."""
    check(run("""
        import time, torch
        from pathlib import Path
        from wavelet.devices import allocator
        allocator.install_pool()
        resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        torch.ones(200 * 2**18)
        high = resident()
        end = time.monotonic() + 60
        while resident() > high - 16 * 2**20:
            torch.ones(20 * 2**18)
            assert time.monotonic() < end
    """))  # fmt: skip


def test_memory_from_before_is_freed_right(run):
    """oneDNN frees through the allocator of the day what it took from the one before; results stay."""
    check(run("""
        import torch
        from wavelet.devices import allocator
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3))
        images = torch.randn(8, 3, 40, 40)

        def step():
            model.zero_grad()
            model(images).square().sum().backward()
            return [parameter.grad.clone() for parameter in model.parameters()]

        first = step()
        packed = [images.to_mkldnn(), torch.randn(2, 3).to_mkldnn()]
        allocator.install_pool()
        del packed
        for _ in range(3):
            assert all(map(torch.equal, first, step()))
        other = images.to_mkldnn().to_dense()
        assert torch.equal(other, images)
        clone = model[0].weight._lazy_clone() if hasattr(torch.Tensor, "_lazy_clone") else model[0].weight.clone()
        clone.data.add_(1)
        images.untyped_storage().resize_(2 * images.untyped_storage().nbytes())
        before = allocator.pool_stats().allocated
        del first, other, clone, model, images
        assert allocator.pool_stats().allocated < before
    """))  # fmt: skip


def test_the_profiler_sees_every_block(run):
    check(run("""
        import torch
        from wavelet.devices import allocator
        allocator.install_pool()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            for size in (100, 10**5, 10**7):
                torch.ones(size, dtype=torch.uint8)
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        changes = sorted(event.nbytes() for event in events)
        assert changes == [-10**7, -10**5, -100, 100, 10**5, 10**7], changes
    """))  # fmt: skip


def test_forks_while_threads_allocate(run):
    """A child must not inherit the arena's mutex from a thread that it has not."""
    check(run("""
        import os, signal, threading, torch
        from wavelet.devices import allocator
        allocator.install_pool()
        stop = threading.Event()

        def work():
            while not stop.is_set():
                torch.empty(2**17, dtype=torch.uint8)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(40):
            child = os.fork()
            if not child:
                signal.alarm(10)
                torch.empty(2**17, dtype=torch.uint8).fill_(1)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
    """))  # fmt: skip


def test_out_of_memory_is_torchs_own_error(run):
    message = check(run("""
        import json, torch
        from wavelet.devices import allocator
        allocator.install_pool()
        messages = []
        for size in (2**46, 2**62):
            try:
                torch.empty(size, dtype=torch.uint8)
            except RuntimeError as error:
                messages.append(str(error))
        assert allocator.pool_stats().allocated == 0
        print(json.dumps(messages))
    """))  # fmt: skip
    assert all(f"can't allocate memory: you tried to allocate {2**power} bytes" in text
               for power, text in zip((46, 62), message, strict=True))  # fmt: skip


MAKE_TWO = """
    import torch
    from wavelet.devices import allocator, make_device
    for _ in range(2):
        make_device(torch.device("cpu"), 2)
    print(str(allocator.pool_in_use()).lower())
"""


def test_a_device_installs_what_the_environment_says(run):
    assert check(run(MAKE_TWO, WAVELET_CPU_ALLOCATOR="pool")) is True
    assert check(run(MAKE_TWO, WAVELET_CPU_ALLOCATOR="system")) is False
    done = run(MAKE_TWO, WAVELET_CPU_ALLOCATOR="tcmalloc")
    assert done.stderr.splitlines()[-1] == (
        "ValueError: WAVELET_CPU_ALLOCATOR='tcmalloc' is not known: use 'pool' or 'system'."
    )


def test_a_build_that_fails_leaves_the_systems_allocator(run, tmp_path):
    """One warning, that says why; and nothing half-built in the cache."""
    done = run(MAKE_TWO, WAVELET_CPU_ALLOCATOR="pool", CXX="false", XDG_CACHE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "false\n")
    assert done.stderr.count("RuntimeWarning") == 1
    assert "WAVELET_CPU_ALLOCATOR=pool: false failed" in done.stderr
    assert "the system's allocator stays." in done.stderr
    assert list((tmp_path / "wavelet").iterdir()) == []
    done = run(MAKE_TWO, WAVELET_CPU_ALLOCATOR="pool", CXX="", PATH="/nowhere", XDG_CACHE_HOME=str(tmp_path))
    assert "there is no C++ compiler: install g++" in done.stderr


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_arena_under_sanitizers(tmp_path, sanitizers):
    program = tmp_path / "fuzz"
    flags = ["-std=c++17", "-g", "-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-pthread"]
    source = [str(HERE / "pool_fuzz.cpp"), f"-I{SOURCES}", "-o", str(program)]
    built = subprocess.run(
        [*allocator.find_compiler(), *flags, *source], capture_output=True, text=True, timeout=150, check=False
    )
    if built.returncode != 0 and "cannot find" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
