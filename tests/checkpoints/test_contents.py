"""What a checkpoint holds: values of all kinds, parts that load themselves, and what is refused."""

import numpy
import pytest
import torch

import wavelet

from ..models import assert_same, batches, loss, mlp, trained_weights
from ..test_saving import make
from .folders import Numbered, fill, names, steps_in


def test_values_of_all_kinds_come_back(tmp_path):
    grid = torch.arange(24.0).view(1, 2, 3, 4)
    values = {
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3, dtype=torch.int16),
        "half": torch.randn(5).bfloat16(),
        "channels_last": grid.contiguous(memory_format=torch.channels_last),
        "transposed": torch.randn(3, 4).T,
        "part": torch.randn(10)[2:5],
        "expanded": torch.randn(3, 1).expand(3, 4),
        "sparse": torch.sparse_coo_tensor([[0, 0, 2]], [1.0, 2.0, 3.0], (4,), check_invariants=True),
        "nested": {1: [torch.ones(2), (torch.zeros(1), None)], "1": torch.full((2,), 7.0), "a/b": torch.ones(1)},
        "a": {"b": torch.zeros(1)},
        "plain": {"pair": (1, 2.5), "words": ["a", "b"], "infinite": float("inf"), "numpy": numpy.float64(0.1)},
        "nothing": None,
    }
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, **values)
        found = checkpoints.load().values

    def check(saved, loaded):
        if isinstance(saved, torch.Tensor):
            assert loaded.dtype == saved.dtype and torch.equal(loaded.to_dense(), saved.to_dense())
        elif isinstance(saved, dict):
            assert saved.keys() == loaded.keys()
            for name in saved:
                check(saved[name], loaded[name])
        elif isinstance(saved, (list, tuple)):
            assert type(saved) is type(loaded)
            for one, other in zip(saved, loaded, strict=True):
                check(one, other)
        else:
            assert saved == loaded

    check(values, found)
    assert found["channels_last"].stride() == values["channels_last"].stride()
    assert found["transposed"].stride() == (1, 4)
    assert found["sparse"]._nnz() == 3


def test_what_is_stored_is_tensors(tmp_path):
    """So nothing is unpickled but the index, and other programs can read the weights."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    _, engine = make("neighbour")
    engine.step(batches(1)[0])
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, engine=engine, epoch=3)
    engine.close()
    entries = FileSystemReader(tmp_path / "step-00000001").read_metadata().state_dict_metadata
    assert all(isinstance(entry, TensorStorageMetadata) for entry in entries.values())
    assert entries["shared/engine/weights/0/0"].size == (16, 8)


def test_other_programs_can_read_it(tmp_path):
    """Torch's own converter gives one file with every tensor, whatever its layout and size."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    tensors = {
        "large": torch.randn(300, 400),
        "bytes": torch.arange(100_000).to(torch.uint8),
        "number": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "half": torch.randn(7).bfloat16(),
        "transposed": torch.randn(3, 4).T,
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conjugate": torch.randn(5, dtype=torch.complex64).conj(),
        "part": torch.randn(10, 10)[2:4, ::3],
        "expanded": torch.randn(3, 1).expand(3, 4),
    }
    for step, asynchronous in enumerate((True, False)):
        with wavelet.Checkpoints(tmp_path / "run", asynchronous=asynchronous, keep=9) as checkpoints:
            checkpoints.start_over()
            checkpoints.save(step, tensors=tensors)
        dcp_to_torch_save(tmp_path / "run" / names(step)[0], tmp_path / "one.pt")
        found = torch.load(tmp_path / "one.pt", weights_only=True)
        for name, tensor in tensors.items():
            read = found[f"shared/tensors/{name}"]
            assert read.dtype == tensor.dtype
            assert torch.equal(read, tensor), name


def test_nothing_there(tmp_path):
    checkpoints = wavelet.Checkpoints(tmp_path / "run")
    assert checkpoints.latest() is None
    with pytest.raises(ValueError, match="holds no whole checkpoint"):
        checkpoints.load()
    with pytest.raises(ValueError, match="no checkpoint of step 3: there is none"):
        checkpoints.load(3)
    assert not (tmp_path / "run").exists()


def test_refusals(tmp_path):
    fill(tmp_path, 1)
    checkpoints = wavelet.Checkpoints(tmp_path)
    with pytest.raises(ValueError, match="no checkpoint of step 3: there are 1"):
        checkpoints.load(3)
    model = mlp()
    with pytest.raises(ValueError, match="holds no part 'model' that loads itself: it has number, tensor"):
        checkpoints.load(model=model)
    with pytest.raises(ValueError, match="number has no load_state_dict"):
        checkpoints.load(number=3)
    checkpoints.load()
    with pytest.raises(ValueError, match=r"the part 'thing' holds objects of .*Numbered"):
        checkpoints.save(2, thing=[Numbered()])
    with pytest.raises(ValueError, match="the part 'thing' holds something that cannot be saved"):
        checkpoints.save(2, thing=lambda: 0)
    for step in (-1, 1.5, True):
        with pytest.raises(ValueError, match=r"step=.* is not possible"):
            checkpoints.save(step)
    for keep in (0, 1.5, True):
        with pytest.raises(ValueError, match=r"keep=.* is not possible"):
            wavelet.Checkpoints(tmp_path, keep=keep)
    with pytest.raises(ValueError, match="group was given"):
        wavelet.Checkpoints(tmp_path, group=object())
    assert steps_in(tmp_path) == names(1)


def test_a_state_of_another_engine_is_refused(tmp_path):
    _, engine = make("delayed")
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, engine=engine)
    engine.close()
    _, other = make("delayed", waves=3)
    with pytest.raises(ValueError, match="waves=2, this engine has waves=3"):
        wavelet.Checkpoints(tmp_path).load(engine=other)
    other.close()


def test_a_model_and_an_optimizer_are_parts_too(tmp_path):
    """Whatever has state_dict and load_state_dict, in a loop without the engine."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    loss(model, batches(1)[0]).backward()
    optimizer.step()
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, model=model, optimizer=optimizer)
    other = mlp(seed=1)
    other_optimizer = torch.optim.Adam(other.parameters())
    wavelet.Checkpoints(tmp_path).load(model=other, optimizer=other_optimizer)
    assert_same(trained_weights(other), trained_weights(model))
    for index, state in optimizer.state_dict()["state"].items():
        assert_same(list(state.values()), list(other_optimizer.state_dict()["state"][index].values()))
