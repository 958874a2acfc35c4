"""The contents of tensor storages in a folder, as TorchRL 0.14 writes and reads them.

    storage_metadata.json    {"metadata": {leaf: {"dtype", "shape"}}, "is_pytree", "len": rows filled,
                             "newest": row written last, "tree": see `tree_files`}; the leaves and "tree" for trees only
    meta.json, *.memmap      TensorDicts, as ``TensorDict.load_memmap`` opens them; capacity rows, those never written as holes

A storage without records is the state {"leaves": 0} (see `state_files`), which TorchRL does not write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch.utils import _pytree as pytree

from ....errors import DamagedDatasetError, UsageError
from ...durable import allocate
from ...tensordict_folder import check_writable, dtype_named, read_json, read_memmap
from ..state_files import read_state, write_state
from .tree_files import create_tree, describe_tree, leaf_paths, open_tree

METADATA = "storage_metadata.json"


def write_tensors(folder: Path, data: Any, filled: int, newest: int, length: int) -> None:
    """Write the first ``filled`` rows of ``data`` to a folder, in files of as many rows as ``data`` have."""
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"metadata": {}, "is_pytree": False, "len": length, "newest": newest}
    if data is None:
        (folder / METADATA).unlink(missing_ok=True)
        write_state(folder, {"leaves": 0})
        return
    if is_tensor_collection(data):
        data = data if isinstance(data, TensorDictBase) else data.to_tensordict()
        write_leaves(folder, data, slice(filled))
    else:
        rows = len(pytree.tree_leaves(data)[0])
        copy = create_tree(folder, pytree.tree_map(lambda leaf: leaf[0], data), rows)
        for (path, leaf), target in zip(leaf_paths(data), pytree.tree_leaves(copy)):
            allocate(folder / f"{path}.memmap", leaf[:filled].nbytes)
            target[:filled].copy_(leaf[:filled])
            about = {"dtype": str(leaf.dtype), "shape": list(leaf.shape)}
            record["metadata"][path.replace("/", ".")] = about
        record |= {"is_pytree": True, "tree": describe_tree(data)}
    write_metadata(folder, record)


def write_leaves(folder: Path, data: TensorDictBase, rows: Any = ...) -> TensorDictBase:
    """As ``data.memmap(folder)``, these rows of it; the disk is asked for their space before they are written through maps.

    Raises OSError where it has none, UsageError for what could not be read again."""
    check_writable(data, [METADATA])
    copy = data.memmap_like(str(folder))
    for key, leaf in data.items(include_nested=True, leaves_only=True):
        if isinstance(leaf, torch.Tensor):
            target, written = copy.get(key), leaf[rows]
            allocate(Path(target.filename), written.nbytes)
            target[rows].copy_(written)
    return copy


def write_metadata(folder: Path, record: dict[str, Any]) -> None:
    (folder / METADATA).write_text(json.dumps(record))


def read_tensors(folder: Path, stored: Any, hooks: Sequence[Any] = ()) -> tuple[Any, int, int | None]:
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
        return open_tree(folder, record.get("tree") or _described(folder, stored, record.get("metadata"))), rows, newest
    data: Any = read_memmap(folder)
    for hook in hooks:
        data = hook(data, out=None)
    if is_tensor_collection(stored) and not isinstance(stored, TensorDictBase):
        data = type(stored).from_tensordict(data)
    return data, rows, newest


def _described(folder: Path, stored: Any, leaves: Any) -> Any:
    """The description of a tree that TorchRL wrote: it lists the leaves, and the structure is that of ``stored``."""
    if stored is None or is_tensor_collection(stored):
        message = "a tree of tensors that TorchRL wrote can only be loaded into a storage that knows its structure"
        raise UsageError(message, hint="write one record first")
    paths = [path.replace("/", ".") for path, _ in leaf_paths(stored)]
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
