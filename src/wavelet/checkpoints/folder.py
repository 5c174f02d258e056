"""The folder: names, which checkpoints are whole, and the rename that makes one appear at once."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Folder"]

_NAME = re.compile(r"step-(\d{8,})")


class Folder:
    """Checkpoints ``step-00000050``; what is being written or removed is ``.step-00000050.partial``.

    Args:
        path: made at the first save.

    Raises:
        ValueError: there is a file of this name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file: give a folder for the checkpoints.")

    def of(self, step: int) -> Path:
        """The checkpoint of a step."""
        return self.path / f"step-{step:08d}"

    def partial(self, step: int) -> Path:
        """Where that is written first."""
        return self.path / f".step-{step:08d}.partial"

    def steps(self) -> list[int]:
        """The steps of all checkpoints, torn ones too, in order."""
        try:
            names = [entry.name for entry in self.path.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)

    def split(self) -> tuple[list[int], dict[int, str]]:
        """The steps of the whole checkpoints, in order; and of the torn ones, with what is wrong with each."""
        flaws = {step: flaw(self.of(step)) for step in self.steps()}
        whole = [step for step, found in flaws.items() if found is None]
        return whole, {step: found for step, found in flaws.items() if found is not None}

    def prepare(self) -> None:
        """Make the folder, and remove what saves that did not end have left in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        for left in self.path.glob(".step-*.partial"):
            _remove(left)

    def publish(self, step: int, replaced: Iterable[int], keep: int) -> None:
        """Let the checkpoint that was written appear, in place of ``replaced``; then remove all but the last ``keep``.

        Raises:
            OSError: it is not whole, or the system refuses. Whole ones are then where they were.
        """
        found = flaw(self.partial(step))
        if found is not None:
            raise OSError(f"{found}; all ranks must see the same folder")
        _sync(self.partial(step))
        away: dict[int, Path] = {}
        try:
            for old in replaced:
                away[old] = self._set_aside(old)
            self.partial(step).rename(self.of(step))
        except OSError:
            for old, path in away.items():
                path.rename(self.of(old))
            raise
        _sync(self.path)
        with contextlib.suppress(OSError):  # what cannot be removed is in nobody's way, and the next save tries again
            steps = self.steps()
            whole = [old for old in steps if old == step or flaw(self.of(old)) is None]
            for old in steps:
                if old < min(whole[-keep:]):
                    away[old] = self._set_aside(old)
            for path in away.values():
                _remove(path)

    def give_up(self, step: int) -> None:
        """Remove what was written of a checkpoint, as far as the system lets us."""
        shutil.rmtree(self.partial(step), ignore_errors=True)

    def _set_aside(self, step: int) -> Path:
        """Rename a checkpoint that is to be removed: one that is removed in part must not look like a torn one."""
        path = self.path / f".step-{step:08d}.old.partial"
        if path.exists():
            _remove(path)
        return self.of(step).rename(path)


def flaw(path: Path) -> str | None:
    """What is wrong with the checkpoint in ``path``; None if every file is there and long enough."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        metadata = FileSystemReader(path).read_metadata()
    except (FileNotFoundError, NotADirectoryError):
        return "it has no .metadata"
    except OSError:
        raise
    except Exception:
        return "its .metadata cannot be read"
    ends: dict[str, int] = {}
    for place in metadata.storage_data.values():
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    for name, end in ends.items():
        file = path / name
        if not file.is_file():
            return f"its file {name} is missing"
        if file.stat().st_size < end:
            return f"its file {name} is {end - file.stat().st_size} bytes too short"
    return None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _sync(path: Path) -> None:
    """Let the names in a folder reach the disk, where the system can do that."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
