"""A cluster in a TOML file: the table ``[cluster]``, and perhaps ``[model]`` with seconds and bytes layer by layer."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavelet.planning.cluster import Cluster
from wavelet.planning.costs import Link
from wavelet.planning.layers import SHARED, Layers
from wavelet.planning.quantities import bits_per_second, seconds_in
from wavelet.profiling.profile import Contention

__all__ = ["ClusterFile", "parse_cluster", "read_cluster"]

_CLUSTER = {
    "hosts": int,
    "ranks_per_host": int,
    "bandwidth": str,
    "latency": str,
    "intra_bandwidth": str,
    "intra_latency": str,
    "allreduce": str,
    "speeds": list,
    "straggler_probability": float,
    "straggler_slowdown": float,
    "seed": int,
    "cpu_seconds_per_byte": float,
    "bucket_mb": float,
}
_MODEL = {
    "name": str,
    "forward": list,
    "backward": list,
    "bytes": list,
    "update": float,
    "input": float,
    "copy": float,
    "samples": int,
    "contention": float,
}
_KINDS = {int: "a whole number", float: "a number", str: "text in quotes", list: "a list of numbers"}
_MB = 2**20


@dataclass(frozen=True)
class ClusterFile:
    """What the file says.

    Args:
        cluster: the hosts and their links.
        bucket_bytes: bytes of gradients after which a bucket is closed.
        model: None where the file has no ``[model]``.
        name: of the model.
    """

    cluster: Cluster
    bucket_bytes: float
    model: Layers | None
    name: str


def read_cluster(path: Path) -> ClusterFile:
    """Read and check a file.

    Raises:
        ValueError: it cannot be read, or something in it makes no sense: one sentence that begins with its name.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8") from error
    try:
        return parse_cluster(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_cluster(text: str) -> ClusterFile:
    """The same from text.

    Raises:
        ValueError: it is no TOML, or something in it makes no sense.
    """
    document = _toml(text)
    unknown = sorted(document.keys() - {"cluster", "model"})
    if unknown:
        raise ValueError(f"[{unknown[0]}] is not known: there are [cluster] and [model]")
    if "cluster" not in document:
        raise ValueError("there is no [cluster]: it needs at least hosts, bandwidth and latency")
    given = _table(document["cluster"], "cluster", _CLUSTER, ("hosts", "bandwidth", "latency"))
    bucket_mb = given.pop("bucket_mb", 25)
    if bucket_mb <= 0:
        raise ValueError(f"[cluster] bucket_mb is {bucket_mb:g}: it must be above 0")
    model = _model(document["model"]) if "model" in document else None
    name = document["model"].get("name", "model") if model else ""
    return ClusterFile(_cluster(given), bucket_mb * _MB, model, name)


def _toml(text: str) -> dict[str, Any]:
    try:
        tomllib: Any = importlib.import_module("tomllib")
    except ImportError as error:
        raise ValueError("TOML needs Python 3.11 or newer: run this command with one") from error
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"this is no TOML: {error}") from error
    return found


def _table(table: Any, name: str, known: Mapping[str, type], needed: tuple[str, ...]) -> dict[str, Any]:
    """The entries of a table, each of the right type.

    Raises:
        ValueError: one is missing, not known, or of another type.
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"{name} is no table: write [{name}] on a line of its own, and its entries below")
    for key in table:
        if key not in known:
            raise ValueError(f"[{name}] {key} is not known: use {', '.join(known)}")
    for key in needed:
        if key not in table:
            raise ValueError(f"[{name}] has no {key}: it needs {_listed(needed)}")
    return {key: _checked(f"[{name}] {key}", value, known[key]) for key, value in table.items()}


def _checked(name: str, value: Any, kind: type) -> Any:
    if kind is list:
        if not isinstance(value, list) or not value:
            raise ValueError(f"{name} is {value!r}: it must be a list of numbers, such as [1, 0.5]")
        return tuple(float(_checked(f"{name}, entry {place},", each, float)) for place, each in enumerate(value, 1))
    allowed = (int, float) if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise ValueError(f"{name} is {value!r}: it must be {_KINDS[kind]}")
    if kind is float and not math.isfinite(value):  # type: ignore[arg-type]
        raise ValueError(f"{name} is {value}: it must be a finite number")
    return value


def _cluster(given: dict[str, Any]) -> Cluster:
    if ("intra_bandwidth" in given) != ("intra_latency" in given):
        raise ValueError("[cluster] has one of intra_bandwidth and intra_latency: give both, or neither")
    links = {name: _link(given, prefix) for name, prefix in (("inter", ""), ("intra", "intra_"))}
    hosts = given["hosts"]
    speeds = given.get("speeds", ())
    if speeds and len(speeds) != hosts:
        raise ValueError(f"[cluster] speeds has {len(speeds)} numbers for {hosts} hosts: give one for each host")
    if ("straggler_probability" in given) != ("straggler_slowdown" in given):
        raise ValueError("[cluster] has one of straggler_probability and straggler_slowdown: give both, or neither")
    if "allreduce" in given:
        given["all_reduce"] = given.pop("allreduce")
    try:
        return Cluster(**given, **links)  # type: ignore[arg-type]
    except ValueError as error:
        raise ValueError(f"[cluster] {error}") from error


def _link(given: dict[str, Any], prefix: str) -> Link | None:
    if f"{prefix}bandwidth" not in given:
        return None
    try:
        rate = bits_per_second(given.pop(f"{prefix}bandwidth"))
        return Link(rate / 8, seconds_in(given.pop(f"{prefix}latency")))
    except ValueError as error:
        raise ValueError(f"[cluster] {error}") from error


def _model(table: Any) -> Layers:
    given = _table(table, "model", _MODEL, ("forward", "backward", "bytes"))
    given.pop("name", None)
    contention = given.pop("contention", SHARED.forward)
    try:
        return Layers(**given, contention=Contention(contention, contention))
    except ValueError as error:
        raise ValueError(f"[model] {error}") from error


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
