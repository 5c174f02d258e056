"""A JSON file of results: refused before the work if it cannot be written, complete whenever it exists."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["SCHEMA_VERSION", "JsonFile"]

SCHEMA_VERSION = 1


class JsonFile:
    """A file that will hold one JSON object, with `schema_version` as its first field.

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

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write beside the file, then rename, so that a reader never sees half of it. NaN and infinity become null."""
        document = finite({"schema_version": SCHEMA_VERSION, **fields})
        part = self._part()
        try:
            part.write_text(
                json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
            )
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)

    def _part(self) -> Path:
        """The file that is written first."""
        return self.path.with_name(f".{self.path.name}.{os.getpid()}")


def finite(value: Any) -> Any:
    """`value` with every NaN and infinity, which JSON does not have, replaced by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value
