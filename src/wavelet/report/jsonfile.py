"""A JSON file of results."""

import json
import math
from collections.abc import Mapping
from typing import Any

from wavelet.report.outputfile import OutputFile

__all__ = ["SCHEMA_VERSION", "JsonFile"]

SCHEMA_VERSION = 1


class JsonFile(OutputFile):
    """A file that will hold one JSON object, with `schema_version` as its first field."""

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write all at once. NaN and infinity become null."""
        document = finite({"schema_version": SCHEMA_VERSION, **fields})
        self.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """`value` with every NaN and infinity, which JSON does not have, replaced by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value
