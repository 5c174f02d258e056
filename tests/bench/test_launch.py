"""Real worker processes: events, results, failures, and nothing left running."""

import os

import pytest
import torch

from wavelet.bench.allocators import allocator_in_use, environment, find_tcmalloc, standard_allocator
from wavelet.bench.launch import RunFailed, run_side_by_side
from wavelet.bench.systems import System
from wavelet.bench.worker import Spec, reason

JOB = """
import os, sys
import torch
from torch.nn.functional import mse_loss
import wavelet

def job(seed=0):
    print("a job may print")
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    data = [(x, x.sum(1, keepdim=True)) for x in torch.randn(32, 4).split(8)]

    def loss(model, batch):
        {in_loss}
        return mse_loss(model(batch[0]), batch[1])

    return wavelet.Job(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, data, samples_per_batch=8)
"""


def make_spec(folder, system=None, in_loss="pass", **fields):
    path = folder / "job.py"
    path.write_text(JOB.format(in_loss=in_loss))
    defaults = {"seed": 0, "batch_size": None, "warmup": 2, "steps": 3}
    return Spec(str(path), system or System("plain", 1), **{**defaults, **fields})


def test_a_spec_goes_through_json(tmp_path):
    spec = make_spec(tmp_path, System("waves", 2, waves=2, update="delayed", compile=True), rank=1)
    assert Spec.from_json(spec.to_json()) == spec


def test_a_run_under_another_allocator(tmp_path):
    allocator = "tcmalloc" if find_tcmalloc() else standard_allocator()
    events = []
    (result,) = run_side_by_side([make_spec(tmp_path)], environment(allocator), events.append)
    assert events[0]["event"] == "first_step"
    assert result["samples"] == 24
    assert result["end"] > result["start"]
    assert result["validation_loss"] is None
    assert 100 * 2**20 < result["peak_resident_bytes"] < 2**30


@pytest.mark.distributed
def test_ranks_of_ddp_train_on_samples_of_their_own(tmp_path):
    """Two ranks with one batch each agree on one update; both time the same span."""
    system = System("ddp", 1, processes=2)
    specs = [make_spec(tmp_path, system, rank=rank, rendezvous=str(tmp_path / "meet")) for rank in (0, 1)]
    results = run_side_by_side(specs, environment(standard_allocator()), lambda event: None)
    assert [result["samples"] for result in results] == [24, 24]
    assert abs(results[0]["start"] - results[1]["start"]) < 1.0


@pytest.mark.distributed
def test_one_failing_process_ends_the_others(tmp_path):
    """Rank 1 dies without a word while rank 0 waits for it."""
    system = System("ddp", 1, processes=2)
    (tmp_path / "well").mkdir()
    specs = [
        make_spec(tmp_path / "well", system, rank=0, rendezvous=str(tmp_path / "meet")),
        make_spec(tmp_path, system, "print('last words', file=sys.stderr); os._exit(7)", rank=1,
                  rendezvous=str(tmp_path / "meet")),
    ]  # fmt: skip
    with pytest.raises(RunFailed) as failed:
        run_side_by_side(specs, environment(standard_allocator()), lambda event: None)
    assert "exit code 7" in failed.value.reason or "peer" in failed.value.reason.lower()


def test_an_exception_in_the_job_comes_back_with_its_traceback(tmp_path):
    spec = make_spec(tmp_path, in_loss="raise OSError('no more data')")
    with pytest.raises(RunFailed, match="OSError: no more data") as failed:
        run_side_by_side([spec], environment(standard_allocator()), lambda event: None)
    assert 'job.py", line' in failed.value.details


def test_reasons_are_one_line():
    assert reason(ValueError("first\nsecond")) == "ValueError: first"
    assert reason(RuntimeError("backend='inductor' raised:\n\nNo compiler")) == (
        "RuntimeError: backend='inductor' raised: No compiler"
    )
    assert reason(ValueError()) == "ValueError"


def test_environments():
    base = {"HOME": "/home", "LD_PRELOAD": "/lib/libsomething.so"}
    assert environment(standard_allocator(), base) == {"HOME": "/home"}
    with pytest.raises(ValueError, match="unknown allocator 'hoard'"):
        environment("hoard", base)
    library = find_tcmalloc()
    if library:
        assert environment("tcmalloc", base) == {"HOME": "/home", "LD_PRELOAD": str(library)}
    if "LD_PRELOAD" not in os.environ:
        assert allocator_in_use() == standard_allocator()


def test_denormals_are_flushed_by_the_setter():
    assert torch.set_flush_denormal(True)
    try:
        assert float(torch.full((), 1e-38) * 0.01) == 0.0
    finally:
        torch.set_flush_denormal(False)
