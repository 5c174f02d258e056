"""Which checkpoints stay in the folder, and whose they are."""

import pytest

import wavelet
from wavelet.checkpoints import folder as folders

from .folders import fill, names, steps_in


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_last_ones_stay(keep, tmp_path):
    fill(tmp_path, 2, 4, 6, 8, 100_000_000, keep=keep)
    assert steps_in(tmp_path) == sorted(names(4, 6, 8, 100_000_000)[-keep:])
    assert wavelet.Checkpoints(tmp_path).latest() == 100_000_000


def test_only_one_copy_is_held(slow_writing, tmp_path, monkeypatch):
    """A save that comes while the one before is being written waits before it copies."""
    from wavelet.checkpoints import checkpoints as module

    events = []
    contents, publish = module.Contents, folders.Folder.publish

    def copying(*arguments, **named):
        events.append("copied")
        return contents(*arguments, **named)

    def published(*arguments):
        publish(*arguments)
        events.append("published")

    monkeypatch.setattr(module, "Contents", copying)
    monkeypatch.setattr(folders.Folder, "publish", published)
    fill(tmp_path, 1, 2, 3)
    assert events == ["copied", "published"] * 3


def test_a_run_goes_on_from_an_older_one(tmp_path):
    """What came after it is of a past that did not happen: it goes when the next is complete, not before."""
    fill(tmp_path, 10, 20, 30)
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.load(10)
        assert steps_in(tmp_path) == names(10, 20, 30)
        checkpoints.save(15, number=15)
        checkpoints.wait()
        assert steps_in(tmp_path) == names(10, 15)
        assert checkpoints.latest() == 15


def test_another_run_is_not_overwritten_by_mistake(tmp_path):
    fill(tmp_path, 10, 20)
    checkpoints = wavelet.Checkpoints(tmp_path)
    with pytest.raises(ValueError, match=r"holds checkpoints of another run \(the newest of step 20\)"):
        checkpoints.save(30, number=30)
    checkpoints.start_over()
    checkpoints.save(5, number=5)
    checkpoints.close()
    assert steps_in(tmp_path) == names(5)


def test_the_same_step_may_be_saved_again(tmp_path):
    with wavelet.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, number=1)
        checkpoints.save(5, number=2)
        assert checkpoints.load(5).values["number"] == 2
        with pytest.raises(ValueError, match="step=4 comes after step 5"):
            checkpoints.save(4, number=3)
    assert steps_in(tmp_path) == names(5)
