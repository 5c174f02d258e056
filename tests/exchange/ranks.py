"""Runs a function in several processes, one a rank, and gives what each returned."""

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_MAIN = """
import os, pickle, sys
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import torch, torch.distributed as dist
from datetime import timedelta
folder, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(2)
function, arguments = pickle.load(open(f"{folder}/work", "rb"))
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size,
                        timeout=timedelta(seconds=60))
result = function(rank, size, *arguments)
pickle.dump(result, open(f"{folder}/result{rank}", "wb"))
dist.destroy_process_group()
"""


def run(function, size, *arguments, timeout=150, codes=(0,)):
    """``function(rank, size, *arguments)`` on each of ``size`` ranks; their results in order.

    ``function`` must be importable. Fails with what a rank printed if one does not end with one of ``codes``.
    """
    with started(function, size, *arguments) as (folder, processes):
        outputs = [process.communicate(timeout=timeout)[0].decode(errors="replace") for process in processes]
        for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
            assert process.returncode in codes, f"rank {rank} ended with {process.returncode}:\n{output[-3000:]}"
        return [pickle.loads((folder / f"result{rank}").read_bytes()) for rank in range(size)]


@contextlib.contextmanager
def started(function, size, *arguments):
    """The processes of `run`, and the folder of their results; those that still run at the end are killed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "work").write_bytes(pickle.dumps((function, arguments)))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        environment["GLOO_SOCKET_IFNAME"] = "lo"
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", _MAIN, name, str(rank), str(size)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            for rank in range(size)
        ]
        try:
            yield folder, processes
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
