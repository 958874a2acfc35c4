"""Small states in a folder: JSON for values, raw files for tensors, no pickle.

    state.json        {"format_version": 1, "values": {name: value}, "tensors": {name: {"file", "dtype", "shape"}}}
    0.memmap ...      the tensors' elements in row-major order, little-endian

Version 2 has further types among the values, each as an object {"rbdata:type": name of the type, ...}: tensors, TensorDicts
and values that are not tensors inside them, NumPy arrays and scalars, tuples, sets, bytes, complex numbers, dicts whose keys
are not text. What is read has the types of what was written; what has none of them is refused when it is written.
"""

from __future__ import annotations

import json
import math
import sys
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    is_tensor_collection,
)

from ...errors import DamagedDatasetError, RbdataError, UsageError, reason
from ..memory_map import element_bytes
from ..tensordict_folder import (
    dtype_named,
    is_known_dtype,
    read_json,
    regular_size,
)
from ..untrusted_json import parse_json

#: Version 1 is written where it is enough.
FORMAT_VERSION, FORMAT_VERSION_OF_TYPES = 1, 2
#: A list storage's state holds an entry for each record.
STATE_BYTES = 1 << 30
TYPE = "rbdata:type"
DEPTH = 32
_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset, "torch.Size": torch.Size}
_STACKS = {"LazyStackedTensorDict": LazyStackedTensorDict, "NonTensorStack": NonTensorStack}
_NUMPY_KINDS = "biufcSUmM"


@contextmanager
def reading(what: object) -> Iterator[None]:
    """What goes wrong while files are read and taken over is a DamagedDatasetError, unless it says what else it is."""
    try:
        yield
    except (RbdataError, MemoryError):
        raise
    except Exception as error:
        raise DamagedDatasetError(f"{what} is damaged: {type(error).__name__}: {reason(error)}") from error


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a state. Raises UsageError, which names the place, for values of other types than those above."""
    folder.mkdir(parents=True, exist_ok=True)
    writer, top = _StateWriter(folder), (folder.name,)
    named = all(type(name) is str for name in state)
    tensors = {
        name: writer.tensor(value, (*top, name))
        for name, value in state.items()
        if named and isinstance(value, torch.Tensor)
    }
    rest = {name: value for name, value in state.items() if name not in tensors}
    values = writer.encode(rest, top)
    version = FORMAT_VERSION_OF_TYPES if writer.has_types else FORMAT_VERSION
    text = json.dumps({"format_version": version, "values": values, "tensors": tensors})
    try:
        if len(text) > STATE_BYTES:
            raise ValueError(f"it has {len(text)} bytes, and may have {STATE_BYTES}")
        parse_json(text)  # as it will be read
    except ValueError as error:
        raise UsageError(f"the state is too large to be read again: {reason(error)}") from error
    (folder / "state.json").write_text(text)


def read_state(folder: Path) -> dict[str, Any]:
    """Read what `write_state` wrote. Raises DamagedDatasetError when it is not all there."""
    with reading(f"the state in {folder}"):
        record = read_json(folder / "state.json", STATE_BYTES)
        version, values = record["format_version"], record["values"]
        if version not in (FORMAT_VERSION, FORMAT_VERSION_OF_TYPES):
            raise ValueError(f"format version {version}")
        tensors = {name: _tensor(folder, entry) for name, entry in record["tensors"].items()}
        values = values if version == FORMAT_VERSION else _decode(folder, values)
        return {**values, **tensors}


# -- writing -----------------------------------------------------------------------------------------------------------


class _StateWriter:
    """Makes JSON of values; what is large goes to files of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, 0
        self.has_types = False

    def encode(self, value: Any, place: tuple[Any, ...]) -> Any:
        """A value as JSON; ``place`` are the keys that lead to it. Raises UsageError where that cannot be."""
        if len(place) > DEPTH:
            raise UsageError(f"{_path(place)} is nested deeper than {DEPTH} levels, or in itself")
        kind = type(value)
        if kind in (type(None), bool, int, float, str):
            return value
        if kind is list:
            return self._each(value, place)
        if kind is dict and TYPE not in value and all(type(key) is str for key in value):
            return {key: self.encode(part, (*place, key)) for key, part in value.items()}
        self.has_types = True
        if isinstance(value, torch.Tensor):
            return {TYPE: "tensor", **self.tensor(value, place)}
        found = self._collection(value, place) or self._value(value)
        if found is None:
            message = f"{_path(place)} is a {kind.__module__}.{kind.__qualname__}, which only pickle could write"
            raise UsageError(
                message, hint="states hold tensors, TensorDicts, numbers, text, bytes, lists, tuples and dicts"
            )
        return found

    def _each(self, values: Any, place: tuple[Any, ...]) -> list[Any]:
        return [self.encode(part, (*place, number)) for number, part in enumerate(values)]

    def _collection(self, value: Any, place: tuple[Any, ...]) -> dict[str, Any] | None:
        kind = type(value)
        if kind in (dict, OrderedDict):
            return {TYPE: kind.__name__, "items": [self._each(pair, place) for pair in value.items()]}
        for name, sequence in _SEQUENCES.items():
            if kind is sequence:
                return {TYPE: name, "items": self._each(value, place)}
        if kind is TensorDict:
            names = list(value.names) if any(value.names) else None
            items = [[key, self.encode(part, (*place, key))] for key, part in value.items()]
            about = {"batch": list(value.batch_size), "cpu": value.device == torch.device("cpu"), "names": names}
            return {TYPE: "TensorDict", **about, "items": items}
        if kind is NonTensorData:
            return {TYPE: "NonTensorData", "batch": list(value.batch_size), "value": self.encode(value.data, place)}
        for name, stack in _STACKS.items():
            if kind is stack:
                return {TYPE: name, "dim": value.stack_dim, "items": self._each(value.tensordicts, place)}
        return None

    def _value(self, value: Any) -> dict[str, Any] | None:
        kind = type(value)
        if kind in (bytes, bytearray):
            return {TYPE: kind.__name__, "value": b64encode(value).decode()}
        if kind is complex:
            return {TYPE: "complex", "value": [value.real, value.imag]}
        if kind in (torch.dtype, torch.device):
            return {TYPE: f"torch.{kind.__name__}", "value": str(value).removeprefix("torch.")}
        if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in _NUMPY_KINDS:
            file = self._write(np.ascontiguousarray(value).tobytes())
            about = {"file": file, "dtype": value.dtype.str, "shape": list(value.shape)}
            return {TYPE: "numpy", "scalar": kind is not np.ndarray, **about}
        return None

    def tensor(self, value: torch.Tensor, place: tuple[Any, ...]) -> dict[str, Any]:
        """Write a tensor to a file; returns what there is to say of it. Raises UsageError for one that no file can hold."""
        if value.layout != torch.strided or value.is_nested or value.is_meta or not is_known_dtype(value.dtype):
            what = "without data" if value.is_meta else f"of {value.dtype}, {value.layout}"
            raise UsageError(f"{_path(place)} is a tensor {what}, which no file can hold")
        dtype = str(value.dtype).removeprefix("torch.")
        return {"file": self._write(_bytes(value)), "dtype": dtype, "shape": list(value.shape)}

    def _write(self, data: bytes) -> str:
        file = f"{self._files}.memmap"
        self._files += 1
        (self._folder / file).write_bytes(data)
        return file


def _path(place: tuple[Any, ...]) -> str:
    return "/".join(map(str, place))


def _bytes(tensor: torch.Tensor) -> bytes:
    if sys.byteorder != "little":
        raise UsageError("states are written little-endian, which this machine is not")
    return element_bytes(tensor).tobytes()


# -- reading -----------------------------------------------------------------------------------------------------------


def _decode(folder: Path, value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(folder, part) for part in value]
    if not isinstance(value, dict):
        return value
    if TYPE not in value:
        return {key: _decode(folder, part) for key, part in value.items()}
    kind = value[TYPE]
    items = [_decode(folder, part) for part in value.get("items", ())]
    if kind == "tensor":
        return _tensor(folder, value)
    if kind in ("dict", "OrderedDict"):
        return {"dict": dict, "OrderedDict": OrderedDict}[kind](items)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](items)
    if kind == "TensorDict":
        device, leaves = "cpu" if value["cpu"] else None, dict(items)
        if not all(isinstance(leaf, torch.Tensor) or is_tensor_collection(leaf) for leaf in leaves.values()):
            raise ValueError("a TensorDict holds something else")
        return TensorDict(leaves, batch_size=value["batch"], device=device, names=value["names"])
    if kind == "NonTensorData":
        return NonTensorData(_decode(folder, value["value"]), batch_size=value["batch"])
    if kind in _STACKS:
        return _STACKS[kind](*items, stack_dim=value["dim"])
    if kind in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[kind](b64decode(value["value"], validate=True))
    if kind == "complex":
        return complex(*value["value"])
    if kind == "torch.dtype":
        return dtype_named(value["value"], folder)
    if kind == "torch.device":
        return torch.device(value["value"])
    if kind == "numpy":
        return _array(folder, value)
    raise ValueError(f"{kind!r} is not a type of value")


def _elements(folder: Path, entry: dict[str, Any], item: int) -> bytearray:
    """The bytes of a tensor or array."""
    path, shape = folder / Path(entry["file"]).name, entry["shape"]
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"{path} has the shape {shape!r}")
    size, need = regular_size(path), math.prod(shape) * item
    if size != need:
        raise ValueError(f"{path} has {size} bytes, {shape} {entry['dtype']} need {need}")
    return bytearray(path.read_bytes())


def _tensor(folder: Path, entry: dict[str, Any]) -> torch.Tensor:
    kind = dtype_named(entry["dtype"], folder / Path(entry["file"]).name)
    data = _elements(folder, entry, kind.itemsize)
    if not data:
        return torch.empty(entry["shape"], dtype=kind)
    return torch.frombuffer(data, dtype=torch.uint8).view(kind).reshape(entry["shape"])


def _array(folder: Path, entry: dict[str, Any]) -> Any:
    dtype = np.dtype(entry["dtype"])
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"{entry['dtype']!r} is not a numeric dtype")
    array = np.frombuffer(_elements(folder, entry, dtype.itemsize), dtype).reshape(entry["shape"])
    return array[()] if entry["scalar"] else array
