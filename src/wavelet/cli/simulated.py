"""What `wavelet simulate` trains: the layers of a cluster's file, of a profile, or of a job that is profiled now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavelet.cli.options import Refusal, first_batches, load_job, refusing, set_threads
from wavelet.report.progress import Bar

if TYPE_CHECKING:
    from wavelet.planning.cluster_file import ClusterFile
    from wavelet.planning.layers import Layers
    from wavelet.profiling.profile import Profile

__all__ = ["Model", "measure_profile", "model_of_file", "model_of_profile", "read_profile"]


@dataclass(frozen=True)
class Model:
    """What is trained: for each number of waves its seconds, and an interlock or None."""

    name: str
    layers: dict[int, Layers]
    interlocks: dict[int, Any]


def model_of_file(path: Path, described: ClusterFile, counts: Sequence[int], budget: str | None) -> Model:
    """The layers that the file gives.

    Raises:
        Refusal: it gives none, or a budget is asked for.
    """
    if described.model is None:
        raise Refusal(f"{path} has no [model]: give one, or a JOB, or the JSON of wavelet profile")
    if budget is not None:
        raise Refusal("--budget needs the memory of each layer: give a JOB, or the JSON of wavelet profile")
    return Model(described.name, dict.fromkeys((1, *counts), described.model), dict.fromkeys(counts))


def measure_profile(
    job: str, counts: Sequence[int], *, seed: int, batch_size: int | None, threads: int | None
) -> Profile:
    """Of one wave and of so many, measured now."""
    from wavelet.alternatives import profile_job

    set_threads(threads)
    loaded = load_job(job, seed=seed, batch_size=batch_size)
    with Bar(f"profiling {loaded.name}", None):
        return profile_job(loaded, first_batches(loaded, 1)[0], waves=tuple(sorted({1, *counts})))


def read_profile(path: Path, counts: Sequence[int]) -> Profile:
    """From a file of `wavelet profile`.

    Raises:
        Refusal: the file is none, or the profile lacks a number of waves.
    """
    from wavelet.profiling.profile import Profile

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refusal(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Refusal(f"{path} is no JSON: give what wavelet profile JOB --json FILE has written") from error
    if not isinstance(document, dict) or "profile" not in document:
        raise Refusal(f"{path} has no profile in it: give what wavelet profile JOB --json FILE has written")
    with refusing(ValueError):
        found = Profile.from_json(document["profile"])
    missing = sorted({1, *counts} - found.timings.keys())
    if missing:
        wanted = ",".join(map(str, sorted({1, *counts})))
        raise Refusal(f"{path} was not measured with waves={missing[0]}: profile the job with --waves {wanted}")
    return found


def model_of_profile(name: str, found: Profile, counts: Sequence[int], budget: str | None) -> Model:
    """The layers of a profile; with a budget, the interlocks that keep it."""
    from wavelet.planning.layers import layers_of
    from wavelet.planning.plan import make_plan

    interlocks: dict[int, Any] = dict.fromkeys(counts)
    with refusing(ValueError):
        if budget is not None:
            wanted = int(budget) if budget.isdecimal() else budget
            interlocks = {count: make_plan(found, wanted, count).interlock for count in counts}
        layers = {count: layers_of(found, count, interlocks.get(count)) for count in {1, *counts}}
    return Model(name, layers, interlocks)
