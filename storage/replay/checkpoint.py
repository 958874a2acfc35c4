"""States in files: tensors as ``TensorDict.memmap`` writes them, everything else as one JSON. No pickle.

    state.json           values; a tensor is {"": "tensor", "name": "3"}, a short one in a list has its place in "short"
    tensors/             a folder that ``TensorDict.load_memmap`` opens, with the tensors by name
    storage/             with save hooks (`ted_hooks`): what they made of the rows

A checkpoint is written to a temporary folder beside its place and renamed, so that the one before stays until then. Parts and
buffers are saved alike: a state is what ``state_dict`` returns, and also what ``torch.save`` takes. Other types than those
below are refused when a state is written.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_non_tensor, is_tensor_collection, is_tensorclass

from ...errors import (
    DamagedDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    DiskError,
    RbdataError,
    UsageError,
    reason,
)
from ..durable import allocate, is_full
from ..folder import beside
from ..memory_map import element_bytes
from ..tensordict_folder import READ_BACK, read_json, read_memmap

FORMAT_VERSION = 3
STATE, TENSORS, ROWS = "state.json", "tensors", "storage"
#: The entry of a JSON object that names the type it stands for.
TYPE = ""
#: Tensors of up to this many bytes in a list (of records, say) share the tensor "short", uint8.
SHORT = 1 << 20


def write_state(folder: Path, state: dict[str, Any], rows: Any = None) -> None:
    """Write a state in place of the folder; ``rows(path)`` writes further files.

    Raises UsageError for other types, DatasetExistsError for a folder with other files, DiskError.
    """
    folder = folder.absolute()
    tensors = _Tensors()
    record = {"format_version": FORMAT_VERSION, "state": _encoded(state, tensors, "state")}
    try:
        with _replaced(folder) as new:
            tensors.write(new / TENSORS)
            if rows is not None:
                rows(new / ROWS)
            (new / STATE).write_text(json.dumps(record))
    except OSError as error:
        if is_full(error):
            message = f"the checkpoint {folder} was not written: the disk is full"
            raise DiskError(message, hint="make room, or name a folder on another disk") from error
        raise


class _Tensors:
    """The tensors of a state: TensorDicts and tensors by name; short ones of lists joined to one."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._short: list[bytes] = []
        self._length = 0

    def name(self, tensor: Any) -> str:
        self._named[name := str(len(self._named))] = tensor
        return name

    def place(self, tensor: torch.Tensor) -> int:
        """Where the bytes of a tensor begin in "short"; each begins at a multiple of 16."""
        data, place = element_bytes(tensor).tobytes(), self._length
        self._short.append(data + bytes(-len(data) % 16))
        self._length += len(self._short[-1])
        return place

    def write(self, folder: Path) -> None:
        if self._short:
            self._named["short"] = torch.frombuffer(bytearray(b"".join(self._short)), dtype=torch.uint8)
        tensors = TensorDict(self._named, [])
        for name, leaf in tensors.items(True, True):
            if str(leaf.dtype) not in READ_BACK:
                message = (
                    f"{name if isinstance(name, str) else name[-1]} is {leaf.dtype}, which tensordict cannot read back"
                )
                raise UsageError(message, hint="convert it, or save it with torch.save")
        total = sum(leaf.nbytes for leaf in tensors.values(True, True))
        # What is written through maps of files would end the process on a full disk: its space is asked for before.
        (folder.parent / "reserved").touch()
        allocate(folder.parent / "reserved", max(1, total))
        (folder.parent / "reserved").unlink()
        tensors.memmap(folder)


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of ``folder`` where the block ends without an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / STATE).exists():
        raise DatasetExistsError(f"{folder} is not empty, and not a checkpoint", hint="name another folder")
    _restore(folder)
    with beside(folder) as scratch:
        new = scratch / "new"
        new.mkdir()
        yield new
        if folder.exists():
            folder.rename(scratch / _OLD)
        new.rename(folder)


#: The checkpoint that is being replaced, in the folder beside it.
_OLD = "old"


def _restore(folder: Path) -> None:
    """Put back the checkpoint that a process was replacing when it was killed."""
    old = folder.with_name(f".{folder.name}.part") / _OLD
    if not folder.exists() and old.is_dir():
        old.rename(folder)


def read_state(folder: Path) -> dict[str, Any]:
    """Return a state that `write_state` wrote; large tensors are mapped. Raises DamagedDatasetError."""
    folder = folder.absolute()
    _restore(folder)
    if not (folder / STATE).exists() and not (folder / TENSORS).exists():
        raise DatasetNotFoundError(f"{folder} is not a checkpoint")
    record = read_json(folder / STATE)
    try:
        if record["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format version {record['format_version']!r}")
        if (folder / TENSORS).is_symlink():
            raise ValueError(f"{TENSORS} is a link")
        tensors = read_memmap(folder / TENSORS)
        state = _decoded(record["state"], tensors)
        if not isinstance(state, dict):
            raise TypeError("it is no state")
        return state
    except RbdataError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, RecursionError, OverflowError) as error:
        raise DamagedDatasetError(f"{folder / STATE} is damaged: {reason(error)}") from error


@contextmanager
def loading(what: Any) -> Iterator[None]:
    """Raise UsageError for a state whose values are missing or of another type."""
    try:
        yield
    except RbdataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise UsageError(f"the state is not that of a {type(what).__name__}: {reason(error)}") from error


def _encoded(value: Any, tensors: _Tensors, name: str, *, listed: bool = False) -> Any:
    """A value as JSON; its tensors are added to ``tensors``."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {TYPE: "float", "value": repr(value)}
    if type(value) in (list, tuple):
        items = [_encoded(item, tensors, name, listed=True) for item in value]
        return items if type(value) is list else {TYPE: "tuple", "items": items}
    if isinstance(value, dict):
        if all(type(key) is str and key != TYPE for key in value):
            return {key: _encoded(item, tensors, f"{name}/{key}", listed=listed) for key, item in value.items()}
        pairs = [[_encoded(part, tensors, name, listed=listed) for part in pair] for pair in value.items()]
        return {TYPE: "dict", "items": pairs}
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.device.type == "meta":
            message = f"{name.rpartition('/')[2]} is a tensor that no file holds ({value.layout} on {value.device})"
            raise UsageError(message, hint="keep dense tensors")
        return _encoded_tensor(value.detach(), tensors, listed)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {TYPE: kind, "tensor": _encoded_tensor(torch.from_numpy(np.array(value)), tensors, listed)}
    if is_non_tensor(value):
        return {TYPE: "value", "value": _encoded(value.tolist(), tensors, name, listed=listed)}
    if is_tensor_collection(value):
        if is_tensorclass(value):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            data = _encoded(value.to_tensordict(), tensors, name, listed=listed)
            return {TYPE: "tensorclass", "class": kind, "data": data}
        if not listed and isinstance(value, TensorDict) and not any(map(is_non_tensor, value.values(True))):
            return {TYPE: "tensor", "name": tensors.name(value.detach().cpu())}
        entries = {key: _encoded(item, tensors, f"{name}/{key}", listed=listed) for key, item in value.items()}
        return {TYPE: "tensordict", "batch_size": list(value.batch_size), "items": entries}
    message = f"{name} holds a {type(value).__module__}.{type(value).__qualname__}, which only pickle could write"
    raise UsageError(message, hint="keep tensors, arrays, numbers and text, or save it yourself")


def _encoded_tensor(tensor: torch.Tensor, tensors: _Tensors, listed: bool) -> dict[str, Any]:
    if tensor.numel() and not (listed and tensor.nbytes <= SHORT):
        return {TYPE: "tensor", "name": tensors.name(tensor.cpu().resolve_conj().resolve_neg().contiguous())}
    return {TYPE: "short", "dtype": str(tensor.dtype), "shape": list(tensor.shape), "place": tensors.place(tensor)}


def _decoded(record: Any, tensors: TensorDict) -> Any:
    if isinstance(record, list):
        return [_decoded(item, tensors) for item in record]
    if not isinstance(record, dict):
        return record
    if TYPE not in record:
        return {key: _decoded(item, tensors) for key, item in record.items()}
    kind = record[TYPE]
    if kind == "tensor":
        return tensors[record["name"]]
    if kind == "short":
        return _decoded_tensor(record, tensors.get("short", None))
    if kind in ("array", "scalar"):
        array = _decoded(record["tensor"], tensors).numpy()
        return array if kind == "array" else array[()]
    if kind == "tensordict":
        return TensorDict(_decoded(record["items"], tensors), record["batch_size"])
    if kind == "tensorclass":  # of a class that this process knows: nothing is imported
        module, _, name = record["class"].rpartition(".")
        made, data = getattr(sys.modules.get(module), name, None), _decoded(record["data"], tensors)
        return made.from_tensordict(data) if made is not None and is_tensorclass(made) else data
    if kind == "value":
        return _decoded(record["value"], tensors)
    if kind == "float":
        return float(record["value"])
    make: Any = {"tuple": tuple, "dict": dict}[kind]
    return make([_decoded(item, tensors) for item in record["items"]])


def _decoded_tensor(record: dict[str, Any], short: torch.Tensor | None) -> torch.Tensor:
    dtype, shape = getattr(torch, record["dtype"].removeprefix("torch.")), record["shape"]
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{record['dtype']} is no dtype")
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype, device="cpu")
    if short is None or not 0 <= record["place"] <= len(short) - size or record["place"] % 16:
        raise ValueError("a tensor lies outside of its file")
    return short[record["place"] : record["place"] + size].clone().view(dtype).view(shape)
