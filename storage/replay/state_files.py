"""Small states in a folder: JSON for values, raw files for tensors (format version 1, no pickle).

state.json        {"format_version": 1, "values": {name: value}, "tensors": {name: {"file", "dtype", "shape"}}}
0.memmap ...      the tensors' elements in row-major order, little-endian
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ...errors import DamagedDatasetError, RbdataError, UsageError, reason
from ..memory_map import element_bytes
from ..tensordict_folder import dtype_named, read_json, regular_size

FORMAT_VERSION = 1
#: A list storage's state holds an entry for each record.
STATE_BYTES = 1 << 30


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Whatever goes wrong while the contents of a folder are taken over is a DamagedDatasetError, if it is no error of ours."""
    try:
        yield
    except RbdataError:
        raise
    except Exception as error:
        raise DamagedDatasetError(f"{folder} is damaged: {type(error).__name__}: {reason(error)}") from error


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a state whose values are JSON or tensors. Raises UsageError for anything else."""
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            file = f"{len(tensors)}.memmap"
            (folder / file).write_bytes(_bytes(value))
            dtype = str(value.dtype).removeprefix("torch.")
            tensors[name] = {"file": file, "dtype": dtype, "shape": list(value.shape)}
        else:
            values[name] = value
    try:
        text = json.dumps({"format_version": FORMAT_VERSION, "values": values, "tensors": tensors})
    except TypeError as error:
        message = f"the state holds something that is neither a number, text nor tensor: {reason(error)}"
        raise UsageError(message) from error
    (folder / "state.json").write_text(text)


def read_state(folder: Path) -> dict[str, Any]:
    """Read what `write_state` wrote. Raises DamagedDatasetError when it is not all there."""
    try:
        record = read_json(folder / "state.json", STATE_BYTES)
        if record["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format version {record['format_version']}")
        tensors = {
            name: _tensor(folder / Path(entry["file"]).name, entry["dtype"], entry["shape"])
            for name, entry in record["tensors"].items()
        }
        return {**record["values"], **tensors}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise DamagedDatasetError(f"the state in {folder} is damaged: {reason(error)}") from error


def _bytes(tensor: torch.Tensor) -> bytes:
    if sys.byteorder != "little":
        raise UsageError("states are written little-endian, which this machine is not")
    return element_bytes(tensor).tobytes()


def _tensor(path: Path, dtype: str, shape: list[int]) -> torch.Tensor:
    kind = dtype_named(dtype, path)
    size = regular_size(path)
    if size != math.prod(shape) * kind.itemsize:
        raise ValueError(f"{path} has {size} bytes, {shape} {dtype} need {math.prod(shape) * kind.itemsize}")
    data = path.read_bytes()
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(kind).reshape(shape)
