"""A D4RL file: what it holds (`survey`), and its rows, as columns of the dataset (`RowWriter`) or state rows (`PixelSource`).

    observations, actions                        [N, ...]
    rewards, terminals                           [N] or [N, 1]
    timeouts                                     the same; not in every file
    next_observations                            as observations; not in every file
    infos/<name>, or infos itself                [N, ...]
    metadata/...                                 strings, numbers, policy weights: not per step

The file is not trusted: links out of it, arrays kept in other files, and shapes that its bytes cannot hold are
refused before anything is read.

Large observations (CARLA's flattened images) are state rows. Those of an episode are the observations of its steps and, last,
its final state: the stated successor, the observation of a row that was given up, or zeros after a terminal.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import CorruptSourceError
from ....storage.checksums import crc32c
from ....storage.leaf import DTYPES
from ....storage.schema import Leaf
from ....storage.writer import ColumnWriter
from ...formats.hdf5 import ChunkedRows, arrays_below, attributes, check_storage, damage_reported
from ...formats.limits import LARGEST_ROW, check_row_bytes, check_rows
from ...ingest.row_source import Block, RowSource
from ...ingest.trajectories import TransitionRows, compare_successors, reward_columns, to_flags, to_rewards

if TYPE_CHECKING:
    import h5py


REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations")
#: One number a step.
SCALARS = ("rewards", "terminals", "timeouts")

#: Metadata up to this many values are kept as they are; of larger arrays shape, dtype and checksum.
_FEW, _LONGEST_TEXT, _LARGEST_METADATA = 64, 4096, 64 << 20
#: Chunks that two blocks share are unpacked once.
_CHUNK_CACHE = 16 << 20


@dataclass(frozen=True)
class Array:
    """A per-step array: its path in the file, dtype (in native byte order) and row shape."""

    path: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass
class FileContents:
    """What a file holds. ``infos`` are all per-step arrays that have no meaning of their own here."""

    rows: int
    arrays: dict[str, Array]
    infos: list[Array]
    metadata: dict[str, Any] = field(default_factory=dict)
    #: Paths of arrays that are not taken, and why.
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def has_next(self) -> bool:
        """Whether it states the successor of every row."""
        return "next_observations" in self.arrays


@contextmanager
def open_file(path: Path, name: str) -> Iterator[h5py.File]:
    """The file, open for reading; HDF5's errors become a CorruptSourceError that calls it ``name``."""
    import h5py

    with damage_reported(name), h5py.File(path, "r", locking=False, rdcc_nbytes=_CHUNK_CACHE, rdcc_w0=0.0) as file:
        yield file


def survey(file: h5py.File, name: str) -> FileContents:
    """Look through a file without reading its rows.

    Raises CorruptSourceError for arrays that are missing, have the wrong length, dtype or shape, or point outside the file.
    """
    found = dict(arrays_below(file, name))
    missing = [key for key in REQUIRED if key not in found]
    if missing:
        there = ", ".join(sorted(found)[:12]) or "nothing"
        message = f"{name} is not a D4RL file: it has no {', '.join(missing)}"
        raise CorruptSourceError(message, hint=f"it holds {there}; --source arrays reads any file of arrays")
    size, stored = file.id.get_filesize(), 0
    for path, dataset in found.items():
        stored += check_storage(dataset.id, f"{name}: {path}", least=1 << 16, size=size)
    if stored > size:
        raise CorruptSourceError(f"{name}: its arrays claim {stored} bytes of a file that has {size}")
    shape = found["observations"].shape
    rows = check_rows(shape[0], size, name) if shape else 0
    if rows < 1:
        raise CorruptSourceError(f"{name} holds no rows")
    contents = FileContents(rows, {}, [])
    for key in (*REQUIRED, *OPTIONAL):
        if key in found:
            contents.arrays[key] = _main_array(found[key], key, rows, name)
    here, after = contents.arrays["observations"], contents.arrays.get("next_observations")
    if after is not None and (here.shape, here.dtype) != (after.shape, after.dtype):
        message = f"{name}: next_observations are {after.dtype} {after.shape}, observations {here.dtype} {here.shape}"
        raise CorruptSourceError(message)
    for path, dataset in found.items():
        if path in contents.arrays:
            continue
        if path == "metadata" or path.startswith("metadata/"):
            contents.metadata[path.removeprefix("metadata/")] = _metadata(dataset, name)
        elif why := _why_not(dataset, rows):
            contents.left_out[path] = why
        else:
            contents.infos.append(_array(dataset))
    check_row_bytes(sum(one.row_bytes for one in (*contents.arrays.values(), *contents.infos)), name)
    for key, value in attributes(file).items():
        contents.metadata[f"attributes/{key}"] = _plain(np.asarray(value))
    return contents


def read_flags(file: h5py.File, name: str, key: str) -> np.ndarray:
    """One flag per row, bool ``[N]``, from any stored dtype. Raises CorruptSourceError for other values than 0 and 1."""
    return to_flags(ChunkedRows(file[key], None, 0, name).read(0, len(file[key])), f"{name}: {key}")


def _main_array(dataset: h5py.Dataset, key: str, rows: int, name: str) -> Array:
    if not dataset.shape or dataset.shape[0] != rows:
        message = f"{name}: {key} has shape {dataset.shape}, the file has {rows} rows of observations"
        raise CorruptSourceError(message)
    if why := _why_not(dataset, rows):
        raise CorruptSourceError(f"{name}: {key} cannot be used: {why}")
    array = _array(dataset)
    if key in SCALARS and array.shape not in ((), (1,)):
        raise CorruptSourceError(f"{name}: {key} has shape {dataset.shape}, not one number a row")
    if key.endswith("observations") and not array.shape:
        return Array(array.path, array.dtype, (1,))  # TED wants a dimension for a single number
    return array


def _why_not(dataset: h5py.Dataset, rows: int) -> str | None:
    """Why a dataset is not a per-step array of numbers; None when it is one."""
    shape = dataset.shape
    if not shape or shape[0] != rows:
        return f"its shape is {shape}, not one row a step"
    if dataset.dtype.newbyteorder("=").name not in DTYPES:
        return f"its dtype is {dataset.dtype}"
    if 0 in shape:
        return f"its shape {shape} is empty"
    if dataset.nbytes // rows > LARGEST_ROW:
        return f"one row has {dataset.nbytes // rows} bytes"
    return None


def _array(dataset: h5py.Dataset) -> Array:
    return Array(dataset.name.lstrip("/"), dataset.dtype.newbyteorder("="), tuple(dataset.shape[1:]))


def _metadata(dataset: h5py.Dataset, name: str) -> Any:
    if dataset.shape is None:
        return None
    if dataset.nbytes > _LARGEST_METADATA or (dataset.size > _FEW and dataset.dtype.hasobject):
        return {"shape": list(dataset.shape), "dtype": str(dataset.dtype)}
    if dataset.dtype.hasobject and dataset.shape:  # texts one by one: each may be as long as the file
        texts = [_plain(np.asarray(dataset[place])) for place in np.ndindex(dataset.shape)]
        return np.array(texts, object).reshape(dataset.shape).tolist()
    if not dataset.shape or not dataset.size:
        return _plain(np.asarray(dataset[()]))
    return _plain(ChunkedRows(dataset, None, 0, name).read(0, len(dataset)))


def _plain(value: np.ndarray) -> Any:
    """Metadata as JSON."""
    if value.size > _FEW:
        return {"shape": list(value.shape), "dtype": str(value.dtype), "crc32c": crc32c(value.tobytes())}
    return _json(value.tolist())


def _json(value: Any) -> Any:
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    if isinstance(value, float) and not np.isfinite(value):
        return repr(value)
    if isinstance(value, (bool, int, float, type(None))):
        return value
    return str(value)[:_LONGEST_TEXT]


#: Bytes of observations in a block, and the most rows.
_BLOCK_BYTES, _BLOCK_ROWS = 8 << 20, 1 << 16
#: Bytes of all columns in a block.
_ALL_BYTES = 64 << 20
#: Bytes of large observations in a block.
_PIXEL_BLOCK_BYTES = 16 << 20
#: Rows to train a dictionary on, in runs spread over the file: chunks are unpacked whole.
_SAMPLE_ROWS, _SAMPLE_RUNS, _SAMPLE_BYTES = 3000, 16, 64 << 20


class RowWriter:
    """Appends a file's steps to columns, and counts what it meets."""

    def __init__(
        self,
        file: h5py.File,
        name: str,
        contents: FileContents,
        transitions: TransitionRows,
        keys: Mapping[str, str],
        jump: float | None,
        pool: Executor,
    ) -> None:
        self._name, self._contents, self._transitions = name, contents, transitions
        self._keys, self._jump = keys, jump
        every = sum(array.row_bytes for array in (*contents.arrays.values(), *contents.infos))
        most = min(_BLOCK_BYTES // contents.arrays["observations"].row_bytes, _ALL_BYTES // every)
        self._block = max(1, min(_BLOCK_ROWS, most))
        self._arrays = {path: ChunkedRows(file[path], pool, self._block, name) for path in [*contents.arrays, *keys]}
        self.counts = {"seams": 0, "rounded_successors": 0, "rows_not_finite": 0, "position_jumps": 0}

    def write(self, columns: ColumnWriter, *, observations: bool, inner_key: str | None) -> np.ndarray:
        """Append all steps; returns their rewards, float32 ``[steps]``.

        ``observations``: whether they are among the columns. ``inner_key``: the column for terminals inside trajectories.
        """
        transitions = self._transitions
        rewards = [np.zeros(0, np.float32)]
        for low in range(0, self._contents.rows, self._block):
            high = min(low + self._block, self._contents.rows)
            if observations or self._contents.has_next:
                states, successors = self._states(low, high)
            kept: Any = transitions.keep[low:high]
            kept = slice(None) if kept.all() else kept
            block: dict[str, np.ndarray] = {}
            if observations:
                block["observation"], block["next/observation"] = states[kept], successors[kept]
            block["action"] = self._read("actions", low, high)[kept]
            reward = to_rewards(self._read("rewards", low, high), self._name, "row", low)[kept]
            rewards.append(reward)
            flags = (transitions.terminated[low:high][kept], transitions.truncated[low:high][kept])
            block.update(reward_columns(reward, *flags))
            if inner_key is not None:
                terminals = transitions.inner[low:high] | transitions.terminated[low:high]
                block[inner_key] = terminals[kept, None]
            for path, key in self._keys.items():
                block[key] = self._read(path, low, high)[kept]
            if len(reward):
                columns.append(block)
        return np.concatenate(rewards)

    def _read(self, path: str, low: int, high: int) -> np.ndarray:
        return self._arrays[path].read(low, high)

    def _states(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """Observations of these rows, and their successors."""
        shape = self._contents.arrays["observations"].shape
        beyond = min(high + 1, self._contents.rows)
        states = self._read("observations", low, beyond).reshape(beyond - low, *shape)
        here, after = states[: high - low], states[1:]
        self._count_odd(here, after, low)
        if not self._contents.has_next:
            successors = np.zeros_like(here)
            successors[: len(after)] = after
            successors[self._transitions.blank[low:high]] = 0
            return here, successors
        successors = self._read("next_observations", low, high).reshape(high - low, *shape)
        # Inside an episode the successor of a row is the next row's observation; where it is not, the episode ends.
        # Successors that differ by rounding alone become the observation that the next row states.
        inside = ~self._transitions.last[low : low + len(after)]
        other, rounded = (found & inside for found in compare_successors(after, successors[: len(after)]))
        successors[: len(after)][rounded] = after[rounded]
        self._transitions.cut_after(low + np.flatnonzero(other))
        self.counts["rounded_successors"] += int(rounded.sum())
        self.counts["seams"] += int(other.sum())
        return here, successors

    def _count_odd(self, here: np.ndarray, after: np.ndarray, low: int) -> None:
        if here.dtype.kind == "f" and not np.isfinite(here).all():
            self.counts["rows_not_finite"] += int((~np.isfinite(here.reshape(len(here), -1)).all(1)).sum())
        if self._jump is not None and here.ndim == 2 and here.shape[1] >= 2:
            moved = np.abs(after[:, :2] - here[: len(after), :2]).max(1) > self._jump
            self.counts["position_jumps"] += int((moved & ~self._transitions.end[low : low + len(after)]).sum())


@dataclass(frozen=True)
class PixelSource(RowSource):
    """The observations of a file; progress counts its rows. ``has_next``: the file states the successor of every row."""

    path: Path
    name: str
    transitions: TransitionRows
    has_next: bool

    @property
    def rows(self) -> int:
        return len(self.transitions.keep)

    def blocks(self, leaves: Sequence[Leaf], threads: int) -> Generator[Block, None, None]:
        (leaf,) = leaves
        size = max(1, min(1 << 14, _PIXEL_BLOCK_BYTES // leaf.row_bytes))
        position = 0
        pool = ThreadPoolExecutor(max(1, threads), "rbdata-d4rl")
        try:
            with open_file(self.path, self.name) as file:
                here = ChunkedRows(file["observations"], pool, size, self.name)
                after = ChunkedRows(file["next_observations"], pool, size, self.name) if self.has_next else None
                for low in range(0, self.rows, size):
                    high = min(low + size, self.rows)
                    blocks = [here.read(low, min(high + 1, self.rows))]
                    if after is not None:
                        blocks.append(after.read(low, high))
                    buffer = np.concatenate(
                        [np.ascontiguousarray(block, leaf.np_dtype).view(np.uint8).reshape(-1) for block in blocks]
                        + [np.zeros(leaf.row_bytes, np.uint8)]
                    )
                    rows = self.transitions.state_rows(low, high, len(blocks[0]), has_next=self.has_next)
                    yield Block(leaf.name, buffer, [(position, rows * leaf.row_bytes)], high)
                    position += len(rows)
        finally:
            pool.shutdown(cancel_futures=True)


def sample(path: Path, name: str, rows: int) -> np.ndarray:
    """Observations spread over the file, uint8 ``[n, row_bytes]``, to train a dictionary on."""
    blocks = []
    with open_file(path, name) as file:
        observations = file["observations"]
        most = max(1, min(_SAMPLE_ROWS, rows, _SAMPLE_BYTES // (observations.nbytes // rows)))
        count = max(1, most // _SAMPLE_RUNS)
        chunked = ChunkedRows(observations, None, 0, name)
        for low in np.unique(np.linspace(0, rows - count, min(_SAMPLE_RUNS, most)).astype(int)).tolist():
            block = np.ascontiguousarray(chunked.read(low, low + count))
            block = block.astype(block.dtype.newbyteorder("<"), copy=False)
            blocks.append(block.view(np.uint8).reshape(len(block), -1))
    return np.concatenate(blocks)
