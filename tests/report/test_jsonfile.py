"""A JSON file is refused before the work, never seen half written, and holds no NaN."""

import json
import os
from pathlib import Path

import pytest

from wavelet.report.jsonfile import JsonFile


def test_schema_version_comes_first_and_nan_becomes_null(tmp_path):
    path = tmp_path / "result.json"
    JsonFile(path).write({"loss": float("nan"), "losses": [1.0, float("inf")], "rows": [{"x": (2.0,)}]})
    assert path.read_text().startswith('{\n "schema_version": 1,')
    assert json.loads(path.read_text()) == {
        "schema_version": 1,
        "loss": None,
        "losses": [1.0, None],
        "rows": [{"x": [2.0]}],
    }
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        JsonFile(path, force=True).write({"value": object()})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_refusals(tmp_path):
    existing = tmp_path / "result.json"
    existing.write_text("old")
    with pytest.raises(ValueError, match="exists; add --force"):
        JsonFile(existing)
    JsonFile(existing, force=True)
    with pytest.raises(ValueError, match="there is no folder"):
        JsonFile(tmp_path / "missing" / "result.json")
    with pytest.raises(ValueError, match="is a folder"):
        JsonFile(tmp_path, force=True)
    with pytest.raises(ValueError, match="cannot be written"):
        JsonFile(tmp_path / ("long" * 64))
    assert list(tmp_path.iterdir()) == [existing]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_devices_and_pipes_are_refused_even_by_force(tmp_path):
    """Renaming over a device would replace it by a file."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(ValueError, match="is a device or a pipe"):
            JsonFile(path, force=True)


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    JsonFile(link, force=True).write({"value": 1})
    assert link.is_symlink()
    assert json.loads(target.read_text())["value"] == 1
