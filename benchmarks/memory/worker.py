"""One measurement in a process of its own: ``python worker.py '{"job": …}'`` prints one line of JSON."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import wavelet
import wavelet.jobs
from memory.sleeps import Meeting, sleep_at_random
from wavelet.alternatives import profile_job
from wavelet.bench.loops import batches
from wavelet.devices import allocator
from wavelet.planning.plan import make_plan

WARM_UP = 12
POINTS = 5

Made = tuple[wavelet.Job, wavelet.Wavelet, Iterator[Any]]


def main() -> None:
    asked = json.loads(sys.argv[1])
    allocator.install_from_environment()
    torch.set_flush_denormal(True)
    torch.set_num_threads(asked.get("threads", torch.get_num_threads()))
    kind: Callable[[dict[str, Any]], dict[str, Any]] = globals()[asked["kind"]]
    print(json.dumps(kind(asked)), flush=True)
    os._exit(0)  # a broken process group may not end


def predictions(asked: dict[str, Any]) -> dict[str, Any]:
    """What `wavelet.plan` predicts for each budget, from one `wavelet.profile`."""
    job = wavelet.jobs.load(asked["job"], seed=0, batch_size=None)
    start = time.perf_counter()
    profile = profile_job(job, next(iter(job.loader)))
    profiled = time.perf_counter()
    plans = {budget: make_plan(profile, budget, 2) for budget in asked["budgets"]}
    saved = sum(size for size in profile.bytes.saved if size > 0)
    return {
        "profile_seconds": profiled - start,
        "plan_seconds": (time.perf_counter() - profiled) / len(plans),
        "samples_per_second": {budget: plan.samples_per_second for budget, plan in plans.items()},
        "activations_share": saved / (profile.peak + profile.gradient_bytes),
        "num_blocks": profile.num_blocks,
    }


def speed(asked: dict[str, Any]) -> dict[str, Any]:
    """Samples a second of steady steps."""
    job, engine, source = _engine(asked)
    with engine:
        _train(engine, source, 2 * WARM_UP)
        start = time.perf_counter()
        _train(engine, source, asked["batches"])
        seconds = time.perf_counter() - start
    return {"samples_per_second": asked["batches"] * job.samples_per_batch / seconds}


def heap(asked: dict[str, Any]) -> dict[str, Any]:
    """The heap's peak in steady steps, by memray, against the promise; perhaps under sleeps."""
    job = wavelet.jobs.load(asked["job"], seed=0, batch_size=None)
    if asked["sleeps"] == "random":
        sleep_at_random(job.model, asked["longest"], seed=0)
    _, engine, source = _engine(asked, job)
    with engine:
        _train(engine, source, 2 * WARM_UP)
        meeting = Meeting(engine) if asked["sleeps"] == "worst" else None
        held, window = _resting(engine)
        work = partial(_train, engine, source, asked["batches"])
        peak = _peak_of(work if meeting is None else partial(_meet, meeting, engine, source))
    plan = engine.plan
    assert plan is not None
    # The window's gradients were there before and are replaced: the peak counts them a second time.
    measured = held - window + peak
    return {
        "promised_bytes": plan.resting_bytes + plan.peak_step_bytes,
        "measured_bytes": measured,
        "promised_step_bytes": plan.peak_step_bytes,
        "measured_step_bytes": measured - plan.resting_bytes,
        "one_wave_step_bytes": plan.one_wave_step_bytes,
        "met": None if meeting is None else meeting.met,
    }


def resident(asked: dict[str, Any]) -> dict[str, Any]:
    """The rise of proportional resident memory over rest, and samples a second: two waves, or one process of DDP."""
    if asked["system"] == "waves":
        job, engine, source = _engine(asked)
        with engine:
            _train(engine, source, 2 * WARM_UP)
            return _rise(asked, job, lambda count: _train(engine, source, count))
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from wavelet.bench.loops import PlainLoop, drive

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    init = f"file://{asked['rendezvous']}"
    dist.init_process_group("gloo", init_method=init, rank=asked["rank"], world_size=2)
    job = wavelet.jobs.load(asked["job"], seed=0, batch_size=None)
    wavelet.jobs.set_seeds(asked["rank"])
    loop = PlainLoop(job, model=DistributedDataParallel(job.model))
    batches_ = batches(job.loader)
    drive(loop, batches_, WARM_UP)
    return _rise(asked, job, lambda count: drive(loop, batches_, count), dist.barrier)


def _rise(
    asked: dict[str, Any], job: wavelet.Job, train: Callable[[int], Any], barrier: Callable[[], Any] = lambda: None
) -> dict[str, Any]:
    _give_back()
    barrier()
    rest = _pss()
    samples: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.004):
            samples.append(_pss())

    train(4)
    watcher = threading.Thread(target=watch)
    watcher.start()
    train(asked["batches"] // 2)
    ended.set()
    watcher.join()
    barrier()
    start = time.perf_counter()  # without the watcher, which takes the lock of the memory map
    train(asked["batches"])
    seconds = time.perf_counter() - start
    return {
        "rest_bytes": rest,
        "rise_bytes": max(samples) - rest,
        "samples_per_second": asked["batches"] * job.samples_per_batch / seconds,
    }


def _engine(asked: dict[str, Any], job: wavelet.Job | None = None) -> Made:
    job = job or wavelet.jobs.load(asked["job"], seed=0, batch_size=None)
    engine = wavelet.Wavelet(
        job.model, job.optimizer, job.loss, waves=asked.get("waves", 2), budget=asked.get("budget"),
        clip_grad_norm=job.clip_grad_norm, scheduler=job.scheduler,
    )  # fmt: skip
    return job, engine, batches(job.loader)


def _train(engine: wavelet.Wavelet, source: Iterator[Any], count: int) -> None:
    for batch in itertools.islice(source, count):
        engine.step(batch)
    engine.drain()


def _meet(meeting: Meeting, engine: wavelet.Wavelet, source: Iterator[Any]) -> None:
    for newest in range(POINTS):
        for older in range(POINTS):
            meeting.at(newest, older)
            for batch in itertools.islice(source, 3):
                engine.step(batch)


def _resting(engine: wavelet.Wavelet) -> tuple[int, int]:
    """Bytes of all tensors that an idle engine holds, and of them the window's gradients."""
    rule = engine._rule
    window = [g for gradients in rule.kept().get("window", []) for g in gradients if g is not None]
    tensors: list[Any] = [parameter for wave in rule.weights for parameter in wave]
    tensors += [value for copy in rule.optimizers for _, state in copy.states() for value in state.values()]
    tensors += [buffer for buffer in engine._forward.buffers if buffer is not None]
    tensors += [buffer for wave in engine._waves.waves for buffer in wave.replica.model.buffers()]
    tensors += list(engine._face.model.buffers())
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if torch.is_tensor(t)}
    return sum(found.values()) + sum(g.nbytes for g in window), sum(g.nbytes for g in window)


def _peak_of(work: Callable[[], Any]) -> int:
    """The most bytes that memray sees allocated at once during ``work`` and not before it."""
    import memray

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "heap.bin")
        with memray.Tracker(path):
            work()
        records = memray.FileReader(path).get_high_watermark_allocation_records(merge_threads=True)
        # Maps are the arenas of Python's own objects, 1 MiB each.
        return sum(record.size for record in records if record.allocator != memray.AllocatorType.MMAP)


def _pss() -> int:
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def _give_back() -> None:
    """Let the allocator give its free pages to the system, so that rest is rest."""
    if allocator.pool_in_use():
        allocator.give_back()
    process = ctypes.CDLL(None)
    for name in ("malloc_trim", "MallocExtension_ReleaseFreeMemory"):
        if hasattr(process, name):
            getattr(process, name)(0)


if __name__ == "__main__":
    main()
