"""What is recorded about the machine, and this process's own peak memory."""

import subprocess
import sys

import torch

import wavelet
from wavelet.report.machine import available_cores, machine, peak_resident_bytes, versions


def test_machine_and_versions():
    about = machine()
    assert about.keys() == {"cpu", "cores", "memory_bytes", "system"}
    assert about["cores"] == available_cores() >= 1
    assert about["cpu"]
    found = versions()
    assert found.keys() == {"python", "torch", "wavelet", "git_commit"}
    assert (found["torch"], found["wavelet"]) == (torch.__version__, wavelet.__version__)


def test_peak_follows_what_is_touched():
    before = peak_resident_bytes()
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    del block
    assert peak_resident_bytes() >= before
    assert peak_resident_bytes() > 64 * 2**20


def test_a_small_child_does_not_report_its_parents_peak():
    """`ru_maxrss` survives exec on Linux: a child of this process would start at this process's peak."""
    code = "import wavelet.report.machine as m; print(m.peak_resident_bytes())"
    large = torch.ones(700 * 2**20, dtype=torch.uint8)
    peak = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert peak < large.numel()
