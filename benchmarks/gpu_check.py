"""Six minutes on a machine with one GPU: are waves correct there, what do they gain, and what do they hold?

Every measurement runs in a fresh process, because the allocator's back end is fixed before CUDA starts: first the
update rules against the serial oracle of the tests (bitwise, with deterministic algorithms), each also with the
exchange of ranks over NCCL, where one rank sums with nobody; then for four jobs the plain loop (eager, compiled) and
two waves with each stream mode and each back end: samples/s, and the peak of allocated and of reserved memory. Prints
a table and writes JSON.

    python benchmarks/gpu_check.py --json benchmarks/gpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
JOBS = {"char-lstm": 256, "char-gpt": 128, "digits-cnn": 512, "digits-mobile": 512}
"""The jobs and their samples per batch on a GPU."""
BACKENDS = {"native": "backend:native", "cudaMallocAsync": "backend:cudaMallocAsync"}
RULES = ("neighbour", "synchronous", "delayed")


def specs(steps: int) -> list[dict[str, Any]]:
    """What is run, most important first: the time limit cuts the end."""
    checks = [
        {"check": rule, "streams": streams, "backend": backend}
        for streams, backend in (("separate", "cudaMallocAsync"), ("shared", "native"))
        for rule in RULES
    ]
    checks += [{**check, "exchange": "nccl"} for check in checks]
    speeds: list[dict[str, Any]] = []
    for job in JOBS:
        common = {"job": job, "steps": steps}
        speeds.append({**common, "system": "plain", "backend": "native"})
        for streams in ("separate", "shared"):
            speeds += [{**common, "system": "waves", "streams": streams, "backend": backend} for backend in BACKENDS]
    compiled = [{"job": job, "steps": steps, "system": "plain, compiled", "backend": "native"} for job in JOBS]
    return [*checks, *speeds, *compiled]


def worker(spec: dict[str, Any]) -> dict[str, Any]:
    """One measurement in this process."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    torch.set_flush_denormal(True)
    return check(spec) if "check" in spec else speed(spec)


def check(spec: dict[str, Any]) -> dict[str, Any]:
    """One rule against the serial oracle, on the GPU."""
    import wavelet

    if "exchange" in spec:
        meet_alone()
    oracle: Any = import_module("tests.oracle")
    models: Any = import_module("tests.models")
    torch.use_deterministic_algorithms(True)
    data = [tuple(part.to(spec["device"]) for part in batch) for batch in models.batches(24)]
    worst = 0.0
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.01),
    ):
        model = models.mlp().to(spec["device"])
        torch.manual_seed(3)
        expected = oracle.train(model, make, models.loss, data, rule=spec["check"], waves=2)
        torch.manual_seed(3)
        resync: dict[str, Any] = {"resync": None} if spec["check"] == "neighbour" else {}
        optimizer = make(model.parameters())
        engine = wavelet.Wavelet(model, optimizer, models.loss, update=spec["check"], streams=spec["streams"], **resync)
        with engine:
            for batch in data:
                engine.step(batch)
        for mine, theirs in zip(model.parameters(), expected.weights, strict=True):
            worst = max(worst, (mine - theirs).abs().max().item())
    return {**spec, "largest_difference": worst}


def meet_alone() -> None:
    """Let one rank exchange over NCCL, in many small buckets, where it would train alone."""
    import torch.distributed as dist

    from wavelet.exchange import AllReduce

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    engine: Any = import_module("wavelet.engine")
    engine.check_exchange = lambda *_: AllReduce(bucket_mb=0.001)


def speed(spec: dict[str, Any]) -> dict[str, Any]:
    """Samples a second and peak memory of one system on one job."""
    import wavelet
    from wavelet.jobs import load

    job = load(spec["job"], seed=0, batch_size=JOBS[spec["job"]])
    job.model.to(spec["device"])
    on_gpu = spec["device"] == "cuda"
    data = chain.from_iterable(repeat(job.loader))
    warm_up = 10
    if spec["system"] == "waves":
        clip = job.clip_grad_norm
        engine = wavelet.Wavelet(job.model, job.optimizer, job.loss, streams=spec["streams"], clip_grad_norm=clip)
        run: Callable[[Any], Any] = engine.step
        finish: Callable[[], Any] = engine.drain
    else:
        model = torch.compile(job.model) if "compiled" in spec["system"] else job.model
        run = plain_step(model, job, spec["device"])
        finish = torch.cuda.synchronize if on_gpu else lambda: None
    for batch in islice(data, warm_up):
        run(batch)
    finish()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    for batch in islice(data, spec["steps"]):
        run(batch)
    finish()
    seconds = time.perf_counter() - started
    return {
        **spec,
        "samples_per_second": spec["steps"] * job.samples_per_batch / seconds,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else 0,
    }


def plain_step(model: Any, job: Any, device: str) -> Any:
    """A step of the plain loop, with the batch moved to the GPU as its users do."""
    from wavelet.devices import move

    def step(batch: Any) -> None:
        value = job.loss(model, move(batch, torch.device(device)))
        job.optimizer.zero_grad()
        (value["loss"] if isinstance(value, dict) else value).backward()
        if job.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(job.model.parameters(), job.clip_grad_norm)
        job.optimizer.step()

    return step


def run_in_process(spec: dict[str, Any], limit: float) -> dict[str, Any]:
    """The result of :func:`worker` in a fresh process, or what went wrong."""
    environment = {
        **os.environ,
        "PYTORCH_CUDA_ALLOC_CONF": BACKENDS[spec["backend"]],
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    command = [sys.executable, __file__, "--worker", json.dumps({"device": "cuda", **spec})]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {**spec, "error": f"not finished in {limit:.0f} s"}
    if done.returncode:
        return {**spec, "error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message"}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def line(result: dict[str, Any]) -> str:
    """A result as a line of the table."""
    name = f"{result.get('job', result.get('check'))}, {result.get('system', 'against the oracle')}"
    name += ", over NCCL" if "exchange" in result else ""
    how = f"{result.get('streams', '')} {result['backend']}"
    if "error" in result:
        return f"{name:<44}{how:<26}{result['error']}"
    if "check" in result:
        return f"{name:<44}{how:<26}largest difference {result['largest_difference']:g}"
    allocated, reserved = (result[f"peak_{kind}_bytes"] / 2**20 for kind in ("allocated", "reserved"))
    rate = result["samples_per_second"]
    return f"{name:<44}{how:<26}{rate:>10.0f} samples/s{allocated:>9.0f} MiB allocated{reserved:>9.0f} MiB reserved"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="timed steps of each measurement (default 60)")
    parser.add_argument("--minutes", type=float, default=6.0, help="time limit of the whole check (default 6)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(worker(json.loads(options.worker))))
        return 0
    if not torch.cuda.is_available():
        print("gpu_check needs a CUDA device, and torch sees none here.", file=sys.stderr)
        return 2
    results = []
    deadline = time.monotonic() + 60 * options.minutes
    for spec in specs(options.steps):
        left = deadline - time.monotonic()
        result = run_in_process(spec, left) if left > 5 else {**spec, "error": "no time left"}
        results.append(result)
        print(line(result), flush=True)
    if options.json:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
        text = json.dumps({"schema_version": 1, **machine, "command": sys.argv, "results": results}, indent=1)
        options.json.with_suffix(".tmp").write_text(text + "\n")
        options.json.with_suffix(".tmp").replace(options.json)
    return int(any("error" in result or result.get("largest_difference") for result in results))


if __name__ == "__main__":
    sys.exit(main())
