"""Named tensors in a folder, written and read by torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from wavelet.checkpoints.errors import CheckpointError, reason
from wavelet.checkpoints.outline import Place
from wavelet.checkpoints.ranks import Ranks

__all__ = ["Stored", "write"]


class _Writer(FileSystemWriter):
    """Stages nothing: what is handed in is a copy already, or will not change."""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return state_dict


def write(path: Path, tensors: dict[str, Tensor], ranks: Ranks) -> Future[Any]:
    """Begin to write this rank's tensors into the folder ``path``; the names must differ between ranks.

    They are on the disk, and so are those of all ranks, when the future is done.
    """
    _expect_one_process()
    answer: Any = async_save(
        tensors,
        storage_writer=_Writer(path, sync_files=True),
        planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        process_group=ranks.group,
    )
    done: Future[Any] = getattr(answer, "upload_completion", answer)
    return done


class Stored:
    """The tensors of a checkpoint that was written.

    Args:
        path: its folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = FileSystemReader(path).read_metadata().state_dict_metadata

    def read(self, places: Iterable[Place]) -> dict[str, Tensor]:
        """The tensors in these places, on the CPU, as they lay in memory.

        Raises:
            CheckpointError: they cannot be read.
        """
        found = {key: self._empty(key, stride) for key, stride in places}
        if not found:
            return found
        _expect_one_process()
        try:
            planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
            load(found, storage_reader=FileSystemReader(self._path), planner=planner, no_dist=True)
        except (CheckpointException, RuntimeError, OSError) as error:
            raise CheckpointError(f"{self._path} cannot be read ({reason(error)}).") from error
        return found

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def _empty(self, key: str, stride: list[int] | None) -> Tensor:
        entry = self._entries.get(key)
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{self._path} lacks {key!r}.")
        size, dtype = entry.size, entry.properties.dtype
        return torch.empty(size, dtype=dtype) if stride is None else torch.empty_strided(size, stride, dtype=dtype)


def _expect_one_process() -> None:
    """DCP warns of what is meant: to write from one process, and to read in each by itself."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
