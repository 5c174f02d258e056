"""What is torn is never loaded."""

import os
import warnings

import pytest
import torch

import wavelet

from .folders import fill, names, steps_in


def lose_metadata(path):
    (path / ".metadata").unlink()


def cut_metadata(path):
    os.truncate(path / ".metadata", 100)


def empty_metadata(path):
    os.truncate(path / ".metadata", 0)


def lose_data(path):
    (path / "__0_0.distcp").unlink()


def cut_data(path):
    os.truncate(path / "__0_0.distcp", (path / "__0_0.distcp").stat().st_size - 1)


def empty_data(path):
    os.truncate(path / "__0_0.distcp", 0)


def never_rename(path):
    path.rename(path.with_name(f".{path.name}.partial"))


def become_a_file(path):
    path.rename(path.with_name("elsewhere"))
    path.write_text("")


def lose_all(path):
    lose_metadata(path)
    lose_data(path)


TEARS = [lose_metadata, cut_metadata, empty_metadata, lose_data, cut_data, empty_data, become_a_file, lose_all]


@pytest.mark.parametrize("tear", TEARS, ids=lambda tear: tear.__name__)
def test_a_torn_checkpoint_is_never_loaded(tear, tmp_path):
    fill(tmp_path, 10, 20, 30)
    tear(tmp_path / "step-00000030")
    checkpoints = wavelet.Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match=r"step-00000030 is torn, it"):
        assert checkpoints.latest() == 20
    with pytest.warns(UserWarning, match=r"step-00000030 is torn, it"):
        loaded = checkpoints.load()
    assert (loaded.step, loaded.values["number"]) == (20, 20)
    assert torch.equal(loaded.values["tensor"], torch.full((100,), 20.0))
    with pytest.raises(ValueError, match="step-00000030 is torn, it"):
        checkpoints.load(30)


@pytest.mark.parametrize("tear", TEARS, ids=lambda tear: tear.__name__)
def test_a_torn_checkpoint_is_replaced_and_not_counted(tear, tmp_path):
    fill(tmp_path, 10, 20, 30)
    tear(tmp_path / "step-00000030")
    with wavelet.Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.load(20)
        checkpoints.save(25, number=25)
    assert steps_in(tmp_path) == ["elsewhere"] * (tear is become_a_file) + names(20, 25)


def test_one_that_was_never_renamed_is_swept_away(tmp_path):
    fill(tmp_path, 10, 20)
    never_rename(tmp_path / "step-00000020")
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert checkpoints.load().step == 10
        checkpoints.save(30, number=30)
    assert steps_in(tmp_path) == names(10, 30)


def test_of_torn_ones_alone_none_is_loaded(tmp_path):
    fill(tmp_path, 10)
    cut_data(tmp_path / "step-00000010")
    checkpoints = wavelet.Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match="torn"):
        assert checkpoints.latest() is None
    with pytest.warns(UserWarning, match="torn"), pytest.raises(ValueError, match="holds no whole checkpoint"):
        checkpoints.load()
    fill(tmp_path, 5)
    assert steps_in(tmp_path) == names(5)


def test_contents_that_cannot_be_read(tmp_path):
    """Long enough, and yet not what was written: the one before is taken, and nothing was given to a part before."""
    fill(tmp_path, 10, 20)
    file = tmp_path / "step-00000020" / "__0_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))
    checkpoints = wavelet.Checkpoints(tmp_path)
    with pytest.warns(UserWarning, match=r"step-00000020 cannot be read .* The checkpoint before it is taken"):
        assert checkpoints.load().values["number"] == 10
    with pytest.raises(wavelet.CheckpointError, match="step-00000020 cannot be read"):
        checkpoints.load(20)
