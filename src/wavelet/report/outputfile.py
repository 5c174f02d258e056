"""A file of results: refused before the work if it cannot be written, complete whenever it exists."""

import os
from pathlib import Path

__all__ = ["OutputFile"]


class OutputFile:
    """A file that will be written at the end of some work.

    Args:
        path: where to write.
        force: overwrite a file that is there already.

    Raises:
        ValueError: the folder does not exist or cannot be written, `path` is no possible name, a folder, a device or
            a pipe, or a file without `force`.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        path = Path(os.path.realpath(path)) if os.path.islink(path) else path  # noqa: PTH114  # where a link leads
        folder = path.parent
        if not folder.is_dir():
            raise ValueError(f"{path}: there is no folder {folder}")
        if os.path.isdir(path):  # noqa: PTH112  # that of Path raises for names that are too long
            raise ValueError(f"{path} is a folder, not a file")
        exists = os.path.exists(path)  # noqa: PTH110
        if exists and not path.is_file():
            raise ValueError(f"{path} is a device or a pipe, not a file")
        if exists and not force:
            raise ValueError(f"{path} exists; add --force to overwrite it")
        self.path = path
        part = self._part()
        try:
            part.touch()
            part.unlink()
        except OSError as error:
            raise ValueError(f"{path}: the folder {folder} cannot be written ({error.strerror})") from error

    def write_text(self, text: str) -> None:
        """Write beside the file, then rename, so that a reader never sees half of it."""
        part = self._part()
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)

    def _part(self) -> Path:
        """The file that is written first."""
        return self.path.with_name(f".{self.path.name}.{os.getpid()}")
