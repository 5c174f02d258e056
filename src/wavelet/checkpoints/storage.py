"""Named tensors in a folder, in the format of torch.distributed.checkpoint (DCP), which also reads them.

They are written here, and not by DCP, which takes long in Python; the waves then wait for the interpreter's lock.
"""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import (
    CURRENT_DCP_VERSION,
    FileSystem,
    FileSystemReader,
    _StorageInfo,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load

from wavelet.checkpoints.errors import CheckpointError, reason
from wavelet.checkpoints.outline import Place
from wavelet.checkpoints.ranks import Ranks

__all__ = ["Stored", "write"]


class _Entry(NamedTuple):
    """Where in a rank's file a tensor lies, in bytes."""

    key: str
    dtype: torch.dtype
    size: tuple[int, ...]
    offset: int
    length: int


def write(path: Path, tensors: dict[str, Tensor], ranks: Ranks) -> Future[None]:
    """Begin to write this rank's tensors into the folder ``path``; the names must differ between ranks.

    They are on the disk, and so are those of all ranks, when the future is done.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
    try:
        return executor.submit(_write, path, tensors, ranks)
    finally:
        executor.shutdown(wait=False)


def _write(path: Path, tensors: dict[str, Tensor], ranks: Ranks) -> None:
    entries: list[_Entry] = []
    error = None
    try:
        path.mkdir(parents=True, exist_ok=True)
        entries = _write_file(path / _name_of(ranks.rank), tensors)
    except Exception as refused:
        error = refused
    found = ranks.gather((entries, None if error is None else reason(error)))
    if error is not None:
        raise error
    for _, refusal in found:
        if refusal is not None:
            raise CheckpointError(refusal)
    if ranks.rank == 0:
        _write_index(path, [entries for entries, _ in found])


def _write_file(path: Path, tensors: dict[str, Tensor]) -> list[_Entry]:
    entries = []
    offset = 0
    with FileSystem().create_stream(path, "wb") as stream:
        for key, tensor in tensors.items():
            dense = _dense(tensor)
            header = _header(dense.dtype, dense.shape, dense.stride())
            stream.write(header)
            stream.write(_elements(dense))
            length = len(header) + dense.nbytes
            entries.append(_Entry(key, dense.dtype, tuple(dense.shape), offset, length))
            offset += length
        _flush_to_disk(stream)
    return entries


def _write_index(path: Path, entries_of_ranks: list[list[_Entry]]) -> None:
    described: dict[str, Any] = {}
    stored = {}
    for rank, entries in enumerate(entries_of_ranks):
        file = _name_of(rank)
        for key, dtype, size, offset, length in entries:
            described[key] = _described(dtype, size)
            stored[MetadataIndex(key, described[key].chunks[0].offsets, 0)] = _StorageInfo(file, offset, length)
    index = Metadata(described, storage_data=stored, storage_meta=StorageMeta(), version=CURRENT_DCP_VERSION)
    with FileSystem().create_stream(path / ".metadata", "wb") as stream:
        stream.write(pickle.dumps(index))
        _flush_to_disk(stream)


@lru_cache(maxsize=4096)
def _described(dtype: torch.dtype, size: tuple[int, ...]) -> TensorStorageMetadata:
    """One for all such tensors, so that it is pickled once."""
    whole = ChunkStorageMetadata(torch.Size([0] * len(size)), torch.Size(size))
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(size), [whole])


def _name_of(rank: int) -> str:
    return f"__{rank}_0.distcp"


def _flush_to_disk(stream: Any) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _dense(tensor: Tensor) -> Tensor:
    """A tensor on the CPU that has a memory of its own, as large as its elements."""
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _elements(tensor: Tensor) -> memoryview:
    """The bytes of a dense tensor as they lie in memory."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage()).numpy().data


@lru_cache(maxsize=4096)
def _header(dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...]) -> bytes:
    """What `torch.save` writes before the elements of such a tensor, in the format in which they come last."""
    tensor = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
    beginning = _Beginning()
    torch.save(tensor, cast(IO[bytes], beginning), _use_new_zipfile_serialization=False)
    return bytes(beginning.kept[: beginning.length - tensor.nbytes])


class _Beginning(io.RawIOBase):
    """A stream that keeps of each piece the beginning alone: headers come in small pieces, elements in large ones."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.length = 0

    def write(self, piece: Any) -> int:
        self.kept += memoryview(piece)[:65536]
        self.length += len(piece)
        return len(piece)


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
