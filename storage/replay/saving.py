"""States and trees of tensors in files, without pickle.

**States**: JSON for values, raw files for tensors.

    state.json        {"format_version": 1, "values": {name: value}, "tensors": {name: {"file", "dtype", "shape"}}}
    0.memmap ...      the tensors' elements in row-major order, little-endian

Version 2 has further types among the values, each as an object {"rbdata:type": name of the type, ...}: tensors, TensorDicts
and values that are not tensors inside them, NumPy arrays and scalars, tuples, sets, bytes, complex numbers, dicts whose keys
are not text. Values are read back with the types that they had; other types are refused when a state is written.

**Trees of tensors**: a file for each leaf, mapped.

TensorDicts are in folders as ``TensorDict.load_memmap`` opens them (see `tensordict_folder`). Other trees have files that are
named as TorchRL 0.14 names them, for keys that make file names, and a description of the tree that JSON can hold:

    a/0.memmap                  the first element of the tuple or list under the key "a"
    _-single-tensor-_.memmap    a tensor that is not part of a tree

The contents of a storage are files of as many rows as it has room for, those never written as holes, with a record as TorchRL
0.14 writes and reads it:

    storage_metadata.json       {"metadata": {leaf: {"dtype", "shape"}}, "is_pytree", "len": rows filled,
                                 "newest": row written last, "ordered": rows that are in order of time, those written
                                 last, "tree": description, "class": "module.Name"}; the leaves and "tree" for other trees
                                 only, "ordered" only where some rows are not in order, "class" only for tensorclasses

A storage without records is the state {"leaves": 0}, which TorchRL does not write.
"""

from __future__ import annotations

import json
import math
import sys
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import (
    LazyStackedTensorDict,
    MemoryMappedTensor,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_non_tensor,
    is_tensor_collection,
    is_tensorclass,
)
from torch.utils import _pytree as pytree

from ...errors import DamagedDatasetError, RbdataError, SchemaError, UsageError, reason
from ..durable import allocate
from ..memory_map import element_bytes
from ..tensordict_folder import (
    check_writable,
    dtype_named,
    encoded_name,
    is_known_dtype,
    map_tensor,
    read_json,
    read_memmap,
    regular_size,
)
from ..untrusted_json import parse_json

#: Version 1 is written if it suffices.
FORMAT_VERSION, FORMAT_VERSION_OF_TYPES = 1, 2
#: A list storage's state holds an entry for each record.
STATE_BYTES = 1 << 30
TYPE = "rbdata:type"
DEPTH = 32
_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset, "torch.Size": torch.Size}
_OF_ITEMS: dict[str, Callable[[Any], Any]] = {**_SEQUENCES, "dict": dict, "OrderedDict": OrderedDict}
_STACKS = {"LazyStackedTensorDict": LazyStackedTensorDict, "NonTensorStack": NonTensorStack}
_NUMPY_KINDS = "biufcSUmM"


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Turn errors while files are read and loaded into DamagedDatasetError, except errors that state another cause."""
    try:
        yield
    except (RbdataError, MemoryError):
        raise
    except Exception as error:
        raise DamagedDatasetError(f"{what} is damaged: {type(error).__name__}: {reason(error)}") from error


class Saved:
    """A part of a buffer that is saved on its own: its state goes to a folder, and comes from there."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from ``state_dict`` of this class or of TorchRL's class."""

    def dumps(self, path: Any) -> None:
        """Write the state to a folder for `loads`, without pickle. Raises UsageError for values that cannot be written."""
        write_state(Path(path), self.state_dict())

    def loads(self, path: Any) -> None:
        """Read what `dumps`, or TorchRL's, wrote. Raises DamagedDatasetError if incomplete, UsageError for another kind."""
        with reading(Path(path)):
            self.load_state_dict(self._state_in(Path(path)))

    def _state_in(self, folder: Path) -> dict[str, Any]:
        return read_state(folder)

    def save(self, path: Any) -> None:
        """`dumps` by another name."""
        self.dumps(path)

    def load(self, path: Any) -> None:
        """`loads` by another name."""
        self.loads(path)

    dump = save


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a state. Raises UsageError, naming the place, for values of types not listed above."""
    folder.mkdir(parents=True, exist_ok=True)
    writer, top = _StateWriter(folder), (folder.name,)
    # Keys that are not text are written with their types.
    is_named = all(type(name) is str for name in state)
    alone = {name: value for name, value in state.items() if is_named and isinstance(value, torch.Tensor)}
    tensors = {name: writer.tensor(value, (*top, name)) for name, value in alone.items()}
    values = writer.encode({name: value for name, value in state.items() if name not in tensors}, top)
    version = FORMAT_VERSION_OF_TYPES if writer.has_types else FORMAT_VERSION
    text = json.dumps({"format_version": version, "values": values, "tensors": tensors})
    try:
        if len(text) > STATE_BYTES:
            raise ValueError(f"it has {len(text)} bytes, and may have {STATE_BYTES}")
        parse_json(text)  # as `read_state` will parse it
    except ValueError as error:
        raise UsageError(f"the state is too large to be read again: {reason(error)}") from error
    (folder / "state.json").write_text(text)


def read_state(folder: Path) -> dict[str, Any]:
    """Read what `write_state` wrote. Raises DamagedDatasetError if it is incomplete."""
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
    """Converts values to JSON; tensors and arrays go to separate files."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, 0
        self.has_types = False

    def encode(self, value: Any, place: tuple[Any, ...]) -> Any:
        """A value as JSON; ``place`` is the path of keys to it. Raises UsageError for a value without a JSON form."""
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
            hint = "states hold tensors, TensorDicts, numbers, text, bytes, lists, tuples and dicts"
            raise UsageError(message, hint=hint)
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
        if kind in _STACKS.values():
            return {TYPE: kind.__name__, "dim": value.stack_dim, "items": self._each(value.tensordicts, place)}
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
        """Write a tensor to a file; returns its description. Raises UsageError for a tensor that no file can hold."""
        if value.layout != torch.strided or value.is_nested or value.is_meta or not is_known_dtype(value.dtype):
            what = "without data" if value.is_meta else f"of {value.dtype}, {value.layout}"
            raise UsageError(f"{_path(place)} is a tensor {what}, which no file can hold")
        if sys.byteorder != "little":
            raise UsageError("states are written little-endian, which this machine is not")
        dtype, file = str(value.dtype).removeprefix("torch."), self._write(element_bytes(value).tobytes())
        return {"file": file, "dtype": dtype, "shape": list(value.shape)}

    def _write(self, data: bytes) -> str:
        file = f"{self._files}.memmap"
        self._files += 1
        (self._folder / file).write_bytes(data)
        return file


def _path(place: tuple[Any, ...]) -> str:
    return "/".join(map(str, place))


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
    if kind in _OF_ITEMS:
        return _OF_ITEMS[kind](items)
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
        return torch.empty(entry["shape"], dtype=kind, device="cpu")
    return torch.frombuffer(data, dtype=torch.uint8).view(kind).reshape(entry["shape"])


def _array(folder: Path, entry: dict[str, Any]) -> Any:
    dtype = np.dtype(entry["dtype"])
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"{entry['dtype']!r} is not a numeric dtype")
    array = np.frombuffer(_elements(folder, entry, dtype.itemsize), dtype).reshape(entry["shape"])
    return array[()] if entry["scalar"] else array


# -- trees of tensors --------------------------------------------------------------------------------------------------

METADATA = "storage_metadata.json"
_SINGLE = "_-single-tensor-_"


def create_files(folder: Path, like: Any, taken: Iterable[str] = ()) -> Any:
    """Files for data like these, without their contents; returns the data that are mapped from them.

    ``taken`` are names of other files in the folder. Raises UsageError or SchemaError for data that could not be reopened.
    """
    if is_tensor_collection(like):
        if isinstance(like, TensorDictBase):  # a tensorclass cannot be opened again
            check_writable(like, [METADATA, *taken])
        return like.memmap_like(str(folder))
    for path, leaf in _leaf_paths(like):
        file = folder / f"{path}.memmap"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        if leaf.numel():
            MemoryMappedTensor.empty(leaf.shape, dtype=leaf.dtype, filename=str(file))
    return open_files(folder, describe_tree(like))


def open_files(folder: Path, tree: Any) -> Any:
    """Map the files in a folder; ``tree`` describes the data, see `describe_tree`. Raises DamagedDatasetError."""
    if tree is None:
        return read_memmap(folder)
    with reading(f"the tree in {folder}"):
        return _open_tree(folder, tree)


def write_files(folder: Path, data: Any, rows: Any = ...) -> Any:
    """As `create_files`, and write these rows of the data. Disk space is reserved first: raises OSError if it is full."""
    mapped = create_files(folder, data)
    if is_tensor_collection(data):
        leaves = [(mapped.get(key), leaf) for key, leaf in data.items(include_nested=True, leaves_only=True)]
    else:
        leaves = list(zip(pytree.tree_leaves(mapped), pytree.tree_leaves(data)))
    for target, leaf in leaves:
        # Values that are not tensors are written already, and empty tensors have no file.
        if isinstance(target, MemoryMappedTensor):
            written = leaf[rows]
            allocate(Path(target.filename), written.nbytes)
            target[rows].copy_(written)
    return mapped


# -- trees that are no TensorDicts -------------------------------------------------------------------------------------


def _leaf_paths(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor with its path, in the order of the tree. Raises SchemaError for values that cannot have a path in files."""
    if isinstance(tree, torch.Tensor):
        yield "/".join(path) or _SINGLE, tree
        return
    if type(tree) not in (dict, list, tuple) or len(path) > DEPTH:
        kind = type(tree).__name__
        raise SchemaError(f"a tree in files is made of tensors in tuples, lists and dicts, not of {kind}")
    parts = tree if isinstance(tree, dict) else dict(enumerate(tree))
    names = [_file_name(key) for key in parts]
    if len(set(names)) < len(names):
        raise SchemaError(f"keys that differ by type only cannot be told apart in files: {list(tree)}")
    for name, part in zip(names, parts.values()):
        yield from _leaf_paths(part, (*path, name))


def _file_name(key: Any) -> str:
    if not isinstance(key, (str, int)):
        raise SchemaError(f"keys of a tree in files are text or whole numbers, not {key!r}")
    return encoded_name(str(key)).replace(".", "%2E")


def describe_tree(data: Any) -> Any:
    """The tree as JSON, with dtypes and shapes in place of tensors; None for TensorDicts, whose files state them."""
    if is_tensor_collection(data):
        return None
    if isinstance(data, torch.Tensor):
        return {"dtype": str(data.dtype).removeprefix("torch."), "shape": list(data.shape)}
    if isinstance(data, dict):
        return {"dict": [[key, describe_tree(part)] for key, part in data.items()]}
    return {type(data).__name__: [describe_tree(part) for part in data]}


def _open_tree(folder: Path, tree: Any, path: tuple[str, ...] = ()) -> Any:
    if len(path) > DEPTH:
        raise ValueError("it is nested too deeply")
    if "dtype" in tree:
        file = folder / f"{'/'.join(path) or _SINGLE}.memmap"
        for level in file.relative_to(folder).parents:
            if level.name and (folder / level).is_symlink():
                raise DamagedDatasetError(f"{folder / level} is a link, through which nothing is read")
        return map_tensor(file, tree["dtype"], tree["shape"])
    if "dict" in tree:
        if not all(isinstance(key, (str, int)) for key, _ in tree["dict"]):
            raise ValueError("a key is neither text nor a whole number")
        return {key: _open_tree(folder, part, (*path, _file_name(key))) for key, part in tree["dict"]}
    kind: type[list[Any]] | type[tuple[Any, ...]] = list if "list" in tree else tuple
    return kind(_open_tree(folder, part, (*path, str(number))) for number, part in enumerate(tree[kind.__name__]))


# -- contents of storages ----------------------------------------------------------------------------------------------


def write_contents(folder: Path, data: Any, filled: int, counts: dict[str, int]) -> None:
    """Write the first ``filled`` rows of ``data`` (None: there are none) to a folder; ``counts`` as in `write_metadata`."""
    folder.mkdir(parents=True, exist_ok=True)
    if data is None:
        (folder / METADATA).unlink(missing_ok=True)
        write_state(folder, {"leaves": 0})
        return
    write_files(folder, TensorDict(dict(data.items()), data.batch_size) if is_class(data) else data, slice(filled))
    write_metadata(folder, data, counts)


def write_metadata(folder: Path, data: Any, counts: dict[str, int]) -> None:
    """Write the record of contents whose files are in the folder; ``counts``: len, newest and perhaps ordered."""
    record: dict[str, Any] = {"metadata": {}, "is_pytree": False, **counts}
    tree = describe_tree(data)
    if is_class(data):
        record["class"] = f"{type(data).__module__}.{type(data).__qualname__}"
    if tree is not None:
        for path, leaf in _leaf_paths(data):
            record["metadata"][path.replace("/", ".")] = {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
        record |= {"is_pytree": True, "tree": tree}
    (folder / METADATA).write_text(json.dumps(record))


def read_contents(folder: Path, stored: Any, hooks: Sequence[Any] = ()) -> tuple[Any, int, int | None, int | None]:
    """The data in a folder, mapped, None without any: ``(data, rows filled over all dimensions, newest row, rows in order)``.

    ``stored`` is the present content of the receiving storage: it determines the structure of trees if the folder does not, and
    the class of tensorclasses, which the folder names for a storage without records. Numbers that the folder does not state are
    None. Raises DamagedDatasetError, UsageError.
    """
    if not (folder / METADATA).exists():
        if read_state(folder).get("leaves") != 0:
            raise UsageError(f"{folder} holds no tensors")
        return None, 0, -1, 0
    record = read_json(folder / METADATA)
    rows, newest, ordered = record.get("len"), record.get("newest"), record.get("ordered")
    if type(rows) is not int or rows < 0 or not {type(newest), type(ordered)} <= {int, type(None)}:
        raise DamagedDatasetError(f"{folder / METADATA}: len is {rows!r}, newest {newest!r}, ordered {ordered!r}")
    if record.get("is_pytree"):
        if hooks:
            raise UsageError("load hooks work on TensorDicts, and the folder holds a tree of tensors")
        tree = record.get("tree") or _torchrl_tree(folder, stored, record.get("metadata"))
        return open_files(folder, tree), rows, newest, ordered
    data: Any = read_memmap(folder)
    for hook in hooks:
        data = hook(data, out=None)
    if is_class(stored):
        data = type(stored).from_tensordict(data)
    elif stored is None and "class" in record:
        data = _class_named(record["class"], folder).from_tensordict(data)
    return data, rows, newest, ordered


def is_class(data: Any) -> bool:
    """Whether the data are of a tensorclass of a user's."""
    return is_tensor_collection(data) and not isinstance(data, TensorDictBase) and not is_non_tensor(data)


def _class_named(name: Any, folder: Path) -> Any:
    """A tensorclass that the program has imported already: nothing is imported because a folder names it."""
    module, _, attribute = str(name).rpartition(".")
    found = getattr(sys.modules.get(module), attribute, None)
    if not (isinstance(found, type) and is_tensorclass(found)):
        message = f"{folder} holds records of the tensorclass {name}, which is not imported here"
        raise UsageError(message, hint="import it under this name, or write one record of the class first")
    return found


def _torchrl_tree(folder: Path, stored: Any, leaves: Any) -> Any:
    """The description of a tree that TorchRL wrote: it lists the leaves, and the structure is that of ``stored``."""
    if stored is None or is_tensor_collection(stored):
        message = "a tree of tensors that TorchRL wrote can only be loaded into a storage that knows its structure"
        raise UsageError(message, hint="write one record first")
    paths = [path.replace("/", ".") for path, _ in _leaf_paths(stored)]
    if not isinstance(leaves, dict) or set(leaves) != set(paths):
        raise UsageError(f"{folder} holds the leaves {', '.join(leaves or ())}, the storage {', '.join(paths)}")
    about = [(leaves[path]["shape"], dtype_named(leaves[path]["dtype"], folder)) for path in paths]
    shapes = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in about]
    return describe_tree(pytree.tree_unflatten(shapes, pytree.tree_structure(stored)))
