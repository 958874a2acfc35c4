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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import CorruptSourceError, SchemaError
from ....storage.leaf import DTYPES
from ....storage.schema import clean_keys
from ...formats.hdf5 import ChunkedRows, arrays_below, attributes, check_storage, open_file
from ...formats.limits import LARGEST_ROW, check_row_bytes, check_rows
from ...ingest.spaces import TakenKeys
from ...ingest.trajectories import Column, to_flags

if TYPE_CHECKING:
    import h5py

#: One number a step.
_SCALARS = ("rewards", "terminals", "timeouts")
_REQUIRED = ("observations", "actions", "rewards", "terminals")
_MAIN = (*_REQUIRED, "timeouts", "next_observations")
#: The leaves of those that become some.
_KEYS = {"observations": "observation", "actions": "action"}

#: Metadata of up to this many values, and bytes, are kept.
_FEW, _LONGEST_TEXT, _LARGEST_METADATA = 64, 4096, 1 << 20
#: Chunks that two blocks share are unpacked once.
CACHE: dict[str, Any] = {"rdcc_nbytes": 16 << 20, "rdcc_w0": 0.0}
#: Rows to train a dictionary on, in runs spread over the file: chunks are unpacked whole.
_SAMPLE_ROWS, _SAMPLE_RUNS, _SAMPLE_BYTES = 3000, 16, 64 << 20


@dataclass
class FileContents:
    """What a file holds. ``columns``: what its per-step arrays become, by their paths; of those with another use there are
    ``rewards``, the dtype of the rewards, and whether it has the ``timeouts`` and the successor of every row (``has_next``)."""

    rows: int
    rewards: str
    timeouts: bool
    has_next: bool
    columns: dict[str, Column] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    #: Paths of arrays that are not taken, and why.
    left_out: dict[str, str] = field(default_factory=dict)


def survey(file: h5py.File, name: str) -> FileContents:
    """Look through a file without reading its rows.

    Raises CorruptSourceError for arrays that are missing, have the wrong length, dtype or shape, or point outside the file.
    """
    found, size = dict(arrays_below(file, name)), file.id.get_filesize()
    missing = [key for key in _REQUIRED if key not in found]
    if missing:
        message = f"{name} is not a D4RL file: it has no {', '.join(missing)}"
        there = ", ".join(sorted(found)[:12]) or "nothing"
        raise CorruptSourceError(message, hint=f"it holds {there}; --source arrays reads any file of arrays")
    stored = sum(check_storage(one.id, f"{name}: {path}", size) for path, one in found.items())
    if stored > size:
        raise CorruptSourceError(f"{name}: its arrays claim {stored} bytes of a file that has {size}")
    here, after = found["observations"], found.get("next_observations")
    rows = check_rows(here.shape[0], size, name) if here.shape else 0
    if rows < 1:
        raise CorruptSourceError(f"{name} holds no rows")
    if after is not None and (here.shape, here.dtype) != (after.shape, after.dtype):
        message = f"{name}: next_observations are {after.dtype} {after.shape}, observations {here.dtype} {here.shape}"
        raise CorruptSourceError(message)
    contents = FileContents(rows, found["rewards"].dtype.name, "timeouts" in found, after is not None)
    taken, row_bytes = TakenKeys(()), 0
    for path in sorted(found, key=lambda path: _MAIN.index(path) if path in _MAIN else len(_MAIN)):
        dataset, key = found[path], _KEYS.get(path, "")
        if f"{path}/".startswith("metadata/"):
            contents.metadata[path.removeprefix("metadata/")] = _metadata(dataset)
            continue
        why, shape = _why_not(dataset, rows), tuple(dataset.shape or ())[1:]
        if path in _SCALARS and shape not in ((), (1,)):
            why = f"its shape is {dataset.shape}, not one number a row"
        if why and path in _MAIN:
            raise CorruptSourceError(f"{name}: {path} cannot be used: {why}")
        if not why and path not in _MAIN:
            key = _info_key(path, name)
            why = f"its key {key} is taken" if key in taken else ""
        if why:
            contents.left_out[path] = why
            continue
        row_bytes += dataset.nbytes // rows
        if key:
            taken.add(key)
            is_state = path == "observations"
            shape = shape or (1,) * is_state  # TED wants a dimension for a single number
            dtype = dataset.dtype.newbyteorder("=").name
            contents.columns[path] = Column(key, dtype, shape, "state" if is_state else "step")
    check_row_bytes(row_bytes, name)
    contents.metadata |= {f"attributes/{key}": _plain(np.asarray(value)) for key, value in attributes(file).items()}
    return contents


def read_flags(file: h5py.File, name: str, key: str) -> np.ndarray:
    """One flag per row, bool ``[N]``, from any stored dtype. Raises CorruptSourceError for other values than 0 and 1."""
    return to_flags(ChunkedRows(file[key], name).all(), f"{name}: {key}")


def _why_not(dataset: h5py.Dataset, rows: int) -> str:
    """Why a dataset is not a per-step array of numbers; empty when it is one."""
    shape = dataset.shape
    if not shape or shape[0] != rows:
        return f"its shape is {shape}, not one row a step"
    if dataset.dtype.newbyteorder("=").name not in DTYPES:
        return f"its dtype is {dataset.dtype}"
    if 0 in shape:
        return f"its shape {shape} is empty"
    size = dataset.nbytes // rows
    return f"one row has {size} bytes" if size > LARGEST_ROW else ""


def _info_key(path: str, name: str) -> str:
    """The key of an array without a meaning of its own: ``infos/qpos`` -> ``info/qpos``, ``infos`` -> ``info/infos``."""
    wanted = "info/" + path.removeprefix("infos/")
    try:
        return clean_keys([wanted])[wanted]
    except SchemaError as error:
        raise CorruptSourceError(f"{name}: {path}: {error.message}") from error


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
    with open_file(path, name, **CACHE) as file:
        observations = file["observations"]
        most = max(1, min(_SAMPLE_ROWS, rows, _SAMPLE_BYTES // (observations.nbytes // rows)))
        count = max(1, most // _SAMPLE_RUNS)
        chunked = ChunkedRows(observations, name)
        for low in np.unique(np.linspace(0, rows - count, min(_SAMPLE_RUNS, most)).astype(int)).tolist():
            block = np.ascontiguousarray(chunked.read(low, low + count))
            block = block.astype(block.dtype.newbyteorder("<"), copy=False)
            blocks.append(block.view(np.uint8).reshape(len(block), -1))
    return np.concatenate(blocks)
