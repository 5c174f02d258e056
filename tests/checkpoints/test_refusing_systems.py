"""A system that refuses or interrupts: what could not be saved is said, and what is there is whole."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

import wavelet
from wavelet.checkpoints import folder as folders

from .folders import fill, names, refuse_writing, steps_in


def refuse_renaming(monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folders, "_sync", full)


@pytest.mark.parametrize("surfaces", ["wait", "close", "latest", "load", "save"])
@pytest.mark.parametrize("refuse", [refuse_writing, refuse_renaming])
def test_a_full_disk(refuse, surfaces, tmp_path, monkeypatch):
    checkpoints = wavelet.Checkpoints(tmp_path / "run")
    checkpoints.save(10, number=10)
    checkpoints.wait()
    with monkeypatch.context() as patch:
        refuse(patch)
        checkpoints.save(20, number=20)
        call = getattr(checkpoints, surfaces)
        with pytest.raises(
            wavelet.CheckpointError, match=r"step 20 was not saved in .*run \(No space left on device\)"
        ):
            call(30, number=30) if surfaces == "save" else call()
    assert steps_in(tmp_path / "run") == names(10)
    checkpoints.wait()  # it was said once
    if surfaces != "close":
        assert checkpoints.load().values["number"] == 10
        checkpoints.save(30, number=30)
        checkpoints.close()
        assert steps_in(tmp_path / "run") == names(10, 30)


def test_a_disk_that_is_really_full(tmp_path):
    tmp_path = tmp_path / "small"
    tmp_path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(tmp_path)]
    if not sys.platform.startswith("linux") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted")
    try:
        checkpoints = wavelet.Checkpoints(tmp_path / "run", asynchronous=False)
        checkpoints.save(10, number=10, tensor=torch.ones(10_000))
        with pytest.raises(wavelet.CheckpointError, match="No space left on device"):
            checkpoints.save(20, number=20, tensor=torch.ones(60_000))
        assert steps_in(tmp_path / "run") == names(10)
        assert torch.equal(checkpoints.load().values["tensor"], torch.ones(10_000))
        checkpoints.save(20, number=20, tensor=torch.ones(10_000))
        assert steps_in(tmp_path / "run") == names(10, 20)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_error_of_the_training_goes_before_one_of_saving(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        refuse_writing(patch)
        with pytest.warns(UserWarning, match="step 1 was not saved"), pytest.raises(KeyError, match="mine"):
            with wavelet.Checkpoints(tmp_path) as checkpoints:
                checkpoints.save(1, number=1)
                raise KeyError("mine")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file: give a folder"):
        wavelet.Checkpoints(tmp_path / "file")
    checkpoints = wavelet.Checkpoints(tmp_path / "file" / "run")
    with pytest.raises(wavelet.CheckpointError, match=r"step 1 was not saved in .* \(Not a directory\)"):
        checkpoints.save(1, number=1)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do all")
def test_a_folder_without_permission(tmp_path):
    fill(tmp_path / "run", 1)
    (tmp_path / "run").chmod(0o500)
    checkpoints = wavelet.Checkpoints(tmp_path / "run")
    checkpoints.load()
    with pytest.raises(wavelet.CheckpointError, match="Permission denied"):
        checkpoints.save(2, number=2)
        checkpoints.wait()
    (tmp_path / "run").chmod(0o700)
    assert steps_in(tmp_path / "run") == names(1)


def test_ctrl_c_waits_until_a_checkpoint_is_whole(slow_writing, tmp_path):
    """Nothing is half-written, and the training's memory is not read any more when the loop sees the interrupt."""
    checkpoints = wavelet.Checkpoints(tmp_path, asynchronous=False)
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(1, number=1)
        timer.join()
    timer.join()
    assert steps_in(tmp_path) == names(1)
    assert checkpoints.load().values["number"] == 1


def test_ctrl_c_at_the_moment_when_writing_begins(tmp_path, monkeypatch):
    """Somebody then knows of what is being written: it is waited for, and appears."""
    from wavelet.checkpoints import storage

    write = storage.write

    def interrupted(*arguments):
        upload = write(*arguments)
        signal.raise_signal(signal.SIGINT)
        return upload

    with pytest.raises(KeyboardInterrupt), wavelet.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr(storage, "write", interrupted)
            checkpoints.save(1, number=1)
    assert steps_in(tmp_path) == names(1)
