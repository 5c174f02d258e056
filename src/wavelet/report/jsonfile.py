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
        ValueError: the folder does not exist or cannot be written, `path` is a folder, or a file without `force`.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        folder = path.parent
        if not folder.is_dir():
            raise ValueError(f"{path}: there is no folder {folder}")
        if path.is_dir():
            raise ValueError(f"{path} is a folder, not a file")
        if path.exists() and not force:
            raise ValueError(f"{path} exists; add --force to overwrite it")
        if not os.access(folder, os.W_OK):
            raise ValueError(f"{path}: the folder {folder} cannot be written")
        self.path = path

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write beside the file, then rename, so that a reader never sees half of it. NaN and infinity become null."""
        document = finite({"schema_version": SCHEMA_VERSION, **fields})
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            part.write_text(
                json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
            )
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """`value` with every NaN and infinity, which JSON does not have, replaced by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value
