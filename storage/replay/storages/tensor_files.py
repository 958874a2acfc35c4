"""Trees of tensors in files: a file for each leaf, mapped.

TensorDicts are in folders as ``TensorDict.load_memmap`` opens them (see `tensordict_folder`). Other trees have files that are
named as TorchRL 0.14 names them, for keys that make file names, and a description of the tree that JSON can hold:

    a/0.memmap                  the first element of the tuple or list under the key "a"
    _-single-tensor-_.memmap    a tensor that is not part of a tree

The contents of a storage are files of as many rows as it has room for, those never written as holes, with a record as TorchRL
0.14 writes and reads it:

    storage_metadata.json       {"metadata": {leaf: {"dtype", "shape"}}, "is_pytree", "len": rows filled,
                                 "newest": row written last, "tree": description}; the leaves and "tree" for other trees only

A storage without records is the state {"leaves": 0} (see `state_files`), which TorchRL does not write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import MemoryMappedTensor, TensorDictBase, is_tensor_collection
from torch.utils import _pytree as pytree

from ....errors import DamagedDatasetError, SchemaError, UsageError
from ...durable import allocate
from ...tensordict_folder import check_writable, dtype_named, encoded_name, map_tensor, read_json, read_memmap
from ..state_files import DEPTH, read_state, reading, write_state

METADATA = "storage_metadata.json"
_SINGLE = "_-single-tensor-_"


# -- files -------------------------------------------------------------------------------------------------------------


def create_files(folder: Path, like: Any, taken: Iterable[str] = ()) -> Any:
    """Files for data like these, without their contents; returns the data that are mapped from them.

    ``taken`` are names of other files in the folder. Raises UsageError or SchemaError for what could not be opened again.
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
    """Map the files in a folder; ``tree`` is what `describe_tree` said of the data.

    Raises DamagedDatasetError when they are not there, or the description is malformed.
    """
    if tree is None:
        return read_memmap(folder)
    with reading(f"the tree in {folder}"):
        return _open_tree(folder, tree)


def write_files(folder: Path, data: Any, rows: Any = ...) -> Any:
    """Create files for data and write these rows of them; returns the mapped data.

    The disk is asked for their space before they are written through maps. Raises OSError where it has none, UsageError or
    SchemaError for what could not be opened again.
    """
    mapped = create_files(folder, data)
    if is_tensor_collection(data):
        leaves = [(mapped.get(key), leaf) for key, leaf in data.items(include_nested=True, leaves_only=True)]
    else:
        leaves = list(zip(pytree.tree_leaves(mapped), pytree.tree_leaves(data)))
    for target, leaf in leaves:
        if isinstance(
            target, MemoryMappedTensor
        ):  # values that are not tensors are written, empty tensors have no file
            written = leaf[rows]
            allocate(Path(target.filename), written.nbytes)
            target[rows].copy_(written)
    return mapped


# -- trees that are no TensorDicts -------------------------------------------------------------------------------------


def _leaf_paths(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor with its path, in the order of the tree. Raises SchemaError for what has no path in files."""
    if isinstance(tree, torch.Tensor):
        yield "/".join(path) or _SINGLE, tree
        return
    if type(tree) not in (dict, list, tuple) or len(path) > DEPTH:
        raise SchemaError(
            f"a tree in files is made of tensors in tuples, lists and dicts, not of {type(tree).__name__}"
        )
    names = (
        [_file_name(key) for key in tree] if isinstance(tree, dict) else [str(number) for number in range(len(tree))]
    )
    if len(set(names)) < len(names):
        raise SchemaError(f"keys that differ by type only cannot be told apart in files: {list(tree)}")
    for name, part in zip(names, tree.values() if isinstance(tree, dict) else tree):
        yield from _leaf_paths(part, (*path, name))


def _file_name(key: Any) -> str:
    if not isinstance(key, (str, int)):
        raise SchemaError(f"keys of a tree in files are text or whole numbers, not {key!r}")
    return encoded_name(str(key)).replace(".", "%2E")


def describe_tree(data: Any) -> Any:
    """Dtypes and shapes in the place of tensors, as JSON can hold them; None for TensorDicts, whose files say it."""
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


def write_contents(folder: Path, data: Any, filled: int, newest: int, length: int) -> None:
    """Write the first ``filled`` rows of ``data`` (None: there are none), ``length`` over all dimensions, to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if data is None:
        (folder / METADATA).unlink(missing_ok=True)
        write_state(folder, {"leaves": 0})
        return
    is_class = is_tensor_collection(data) and not isinstance(data, TensorDictBase)
    write_files(folder, data.to_tensordict() if is_class else data, slice(filled))
    write_metadata(folder, data, newest, length)


def write_metadata(folder: Path, data: Any, newest: int, length: int) -> None:
    """Write the record of contents whose files are in the folder."""
    record: dict[str, Any] = {"metadata": {}, "is_pytree": False, "len": length, "newest": newest}
    tree = describe_tree(data)
    if tree is not None:
        leaves = {
            path.replace("/", "."): {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
            for path, leaf in _leaf_paths(data)
        }
        record |= {"metadata": leaves, "is_pytree": True, "tree": tree}
    (folder / METADATA).write_text(json.dumps(record))


def read_contents(folder: Path, stored: Any, hooks: Sequence[Any] = ()) -> tuple[Any, int, int | None]:
    """The data in a folder, mapped: ``(data, rows filled over all dimensions, newest row)``; data None where there are none.

    ``stored`` is what the storage that is to take them holds: it gives trees their structure where the folder does not, and
    its class to tensorclasses. ``newest`` is None where the folder does not say. Raises DamagedDatasetError, UsageError.
    """
    if not (folder / METADATA).exists():
        return _read_older(folder, stored)
    record = read_json(folder / METADATA)
    rows, newest = record.get("len"), record.get("newest")
    if type(rows) is not int or rows < 0 or not (newest is None or type(newest) is int):
        raise DamagedDatasetError(f"{folder / METADATA}: len is {rows!r}, newest {newest!r}")
    if record.get("is_pytree"):
        if hooks:
            raise UsageError("load hooks work on TensorDicts, and the folder holds a tree of tensors")
        tree = record.get("tree") or _torchrl_tree(folder, stored, record.get("metadata"))
        return open_files(folder, tree), rows, newest
    data: Any = read_memmap(folder)
    for hook in hooks:
        data = hook(data, out=None)
    if is_tensor_collection(stored) and not isinstance(stored, TensorDictBase):
        data = type(stored).from_tensordict(data)
    return data, rows, newest


def _torchrl_tree(folder: Path, stored: Any, leaves: Any) -> Any:
    """The description of a tree that TorchRL wrote: it lists the leaves, and the structure is that of ``stored``."""
    if stored is None or is_tensor_collection(stored):
        message = "a tree of tensors that TorchRL wrote can only be loaded into a storage that knows its structure"
        raise UsageError(message, hint="write one record first")
    paths = [path.replace("/", ".") for path, _ in _leaf_paths(stored)]
    if not isinstance(leaves, dict) or set(leaves) != set(paths):
        raise UsageError(f"{folder} holds the leaves {', '.join(leaves or ())}, the storage {', '.join(paths)}")
    spec = pytree.tree_structure(stored)
    shapes = [
        torch.empty(leaves[path]["shape"], dtype=dtype_named(leaves[path]["dtype"], folder), device="meta")
        for path in paths
    ]
    return describe_tree(pytree.tree_unflatten(shapes, spec))


def _read_older(folder: Path, stored: Any) -> tuple[Any, int, int | None]:
    """A tree that rbdata wrote before trees had files of their own."""
    state = read_state(folder)
    if "leaves" not in state:
        raise UsageError(f"{folder} holds no tensors")
    if not state["leaves"]:
        return None, 0, -1
    if stored is None or is_tensor_collection(stored):
        message = "a tree of tensors can only be loaded into a storage that knows its structure"
        raise UsageError(message, hint="extend the buffer with one record first")
    spec = pytree.tree_structure(stored)
    leaves = [state[f"leaf {number}"] for number in range(state["leaves"])]
    if spec.num_leaves != len(leaves):
        raise UsageError(f"the checkpoint's tree has {len(leaves)} tensors, the storage's {spec.num_leaves}")
    return pytree.tree_unflatten(leaves, spec), state["filled"], state["newest"]
