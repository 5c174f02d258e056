"""``examples/ray_train.py`` on two ranks, with a module that does what Ray's documentation says of Ray Train."""

import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from .ranks import run

ROOT = Path(__file__).resolve().parents[2]

EXAMPLE = ROOT / "examples" / "ray_train.py"


def ray(rank, size, reports):
    """Ray's modules, whose trainer runs the function in this process, which is one of its workers."""

    class TorchTrainer:
        def __init__(self, train_loop_per_worker, *, train_loop_config, scaling_config):
            assert scaling_config.num_workers == 4
            self._work = lambda: train_loop_per_worker(train_loop_config)

        def fit(self):
            self._work()
            return types.SimpleNamespace(metrics=reports[-1])

    def prepare_data_loader(loader):
        sampler = DistributedSampler(loader.dataset, size, rank, shuffle=True)
        return DataLoader(loader.dataset, batch_size=loader.batch_size, sampler=sampler)

    modules = {name: types.ModuleType(name) for name in ("ray", "ray.train", "ray.train.torch")}
    top, train, its_torch = modules.values()
    top.train, train.torch = train, its_torch
    train.ScalingConfig = lambda *, num_workers: types.SimpleNamespace(num_workers=num_workers)
    train.get_context = lambda: types.SimpleNamespace(get_world_size=lambda: size)
    train.report = reports.append
    its_torch.TorchTrainer, its_torch.prepare_data_loader = TorchTrainer, prepare_data_loader
    its_torch.get_device = lambda: torch.device("cpu")
    return modules


def work(rank, size):
    """What is reported on this rank, and the weights in the end."""
    reports, made = [], []
    sys.modules.update(ray(rank, size, reports))
    spec = importlib.util.spec_from_file_location("ray_train", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    real = example.wavelet.Wavelet
    example.wavelet.Wavelet = lambda model, *others: made.append(model) or real(model, *others)
    example.main()
    return reports, [weight.detach().clone() for weight in made[0].parameters()]


@pytest.mark.distributed
def test_the_example_trains_one_model_on_all_workers():
    (first, weights), (second, others) = run(work, 2)
    assert [report["epoch"] for report in first] == [report["epoch"] for report in second] == [0, 1, 2]
    assert first[-1]["loss"] < 0.7 * first[0]["loss"]
    assert first != second, "each has data of its own"
    assert all(map(torch.equal, weights, others))


def test_without_ray_it_says_what_to_install():
    code = f"import sys, runpy; sys.modules['ray'] = None; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, 'this example needs Ray Train: pip install "ray[train]"\n')
