"""The promise on the built-in jobs, with memray: the benchmark's own measurement, on few batches."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

pytest.importorskip("memray")

from memory.worker import heap

JOBS = ["digits-cnn", "digits-mobile", "char-gpt", "char-lstm", "mlp-small-ops"]


@pytest.mark.parametrize("budget", ["1.0x", "1.25x", "1.5x", "2.0x"])
@pytest.mark.parametrize("job", JOBS)
def test_memray_sees_no_more_than_was_promised(job, budget):
    found = heap({"job": job, "budget": budget, "batches": 8, "sleeps": "none"})
    assert found["measured_bytes"] <= found["promised_bytes"]
    assert found["measured_step_bytes"] >= 0.5 * found["one_wave_step_bytes"], "or nothing was measured"
