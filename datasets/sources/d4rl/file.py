"""A D4RL file: what it holds (`survey`).

    observations, actions                        [N, ...]
    rewards, terminals                           [N] or [N, 1]
    timeouts                                     the same; not in every file
    next_observations                            as observations; not in every file
    infos/<name>, or infos itself                [N, ...]
    metadata/...                                 strings, numbers, policy weights: not per step

The file is not trusted: links out of it, arrays kept in other files, and shapes that its bytes cannot hold are
refused before anything is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import CorruptSourceError
from ....storage.leaf import DTYPES
from ...formats.hdf5 import ChunkedRows, arrays_below, attributes, check_storage, damage_reported
from ...formats.limits import LARGEST_ROW, check_row_bytes, check_rows
from ...ingest.trajectories import to_flags

if TYPE_CHECKING:
    import h5py


REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations")
#: One number a step.
SCALARS = ("rewards", "terminals", "timeouts")

#: Metadata of up to this many values, and bytes, are kept.
_FEW, _LONGEST_TEXT, _LARGEST_METADATA = 64, 4096, 1 << 20
#: Chunks that two blocks share are unpacked once.
_CHUNK_CACHE = 16 << 20
#: Rows to train a dictionary on, in runs spread over the file: chunks are unpacked whole.
_SAMPLE_ROWS, _SAMPLE_RUNS, _SAMPLE_BYTES = 3000, 16, 64 << 20


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
    found, size = dict(arrays_below(file, name)), file.id.get_filesize()
    missing = [key for key in REQUIRED if key not in found]
    if missing:
        message = f"{name} is not a D4RL file: it has no {', '.join(missing)}"
        there = ", ".join(sorted(found)[:12]) or "nothing"
        raise CorruptSourceError(message, hint=f"it holds {there}; --source arrays reads any file of arrays")
    stored = sum(check_storage(one.id, f"{name}: {path}", least=1 << 16, size=size) for path, one in found.items())
    if stored > size:
        raise CorruptSourceError(f"{name}: its arrays claim {stored} bytes of a file that has {size}")
    rows = check_rows(found["observations"].shape[0], size, name) if found["observations"].shape else 0
    if rows < 1:
        raise CorruptSourceError(f"{name} holds no rows")
    main = [key for key in (*REQUIRED, *OPTIONAL) if key in found]
    contents = FileContents(rows, {key: _main_array(found.pop(key), key, rows, name) for key in main}, [])
    here, after = contents.arrays["observations"], contents.arrays.get("next_observations")
    if after is not None and (here.shape, here.dtype) != (after.shape, after.dtype):
        message = f"{name}: next_observations are {after.dtype} {after.shape}, observations {here.dtype} {here.shape}"
        raise CorruptSourceError(message)
    for path, dataset in found.items():
        if f"{path}/".startswith("metadata/"):
            contents.metadata[path.removeprefix("metadata/")] = _metadata(dataset)
        elif why := _why_not(dataset, rows):
            contents.left_out[path] = why
        else:
            contents.infos.append(_array(dataset))
    check_row_bytes(sum(one.row_bytes for one in (*contents.arrays.values(), *contents.infos)), name)
    contents.metadata |= {f"attributes/{key}": _plain(np.asarray(value)) for key, value in attributes(file).items()}
    return contents


def read_flags(file: h5py.File, name: str, key: str) -> np.ndarray:
    """One flag per row, bool ``[N]``, from any stored dtype. Raises CorruptSourceError for other values than 0 and 1."""
    return to_flags(ChunkedRows(file[key], None, 0, name).read(0, len(file[key])), f"{name}: {key}")


def _main_array(dataset: h5py.Dataset, key: str, rows: int, name: str) -> Array:
    if why := _why_not(dataset, rows):
        raise CorruptSourceError(f"{name}: {key} cannot be used: {why}")
    array = _array(dataset)
    if key in SCALARS and array.shape not in ((), (1,)):
        raise CorruptSourceError(f"{name}: {key} has shape {dataset.shape}, not one number a row")
    if key.endswith("observations") and not array.shape:
        return replace(array, shape=(1,))  # TED wants a dimension for a single number
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


def _metadata(dataset: h5py.Dataset) -> Any:
    """Numbers and texts, as JSON; of large arrays, such as the weights of policies, shape and dtype."""
    if dataset.shape is None:
        return None
    if dataset.size > _FEW or dataset.nbytes > _LARGEST_METADATA:
        return {"shape": list(dataset.shape), "dtype": str(dataset.dtype)}
    return _plain(np.asarray(dataset[()]))


def _plain(values: np.ndarray) -> Any:
    def text(value: Any) -> str:
        return (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))[:_LONGEST_TEXT]

    return json.loads(json.dumps(values.tolist(), default=text), parse_constant=str)  # no NaN in JSON


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
