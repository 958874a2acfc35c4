"""Trees of tensors in a folder: a file for each leaf, and a description of the tree that JSON can hold.

    a/0.memmap                  the first element of the tuple or list under the key "a"
    _-single-tensor-_.memmap    a tensor that is no part of a tree

The files are named as TorchRL 0.14 names them, for keys that make file names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tensordict import MemoryMappedTensor

from ....errors import DamagedDatasetError, SchemaError, reason
from ...tensordict_folder import encoded_name, map_tensor

SINGLE = "_-single-tensor-_"
DEPTH = 32


def leaf_paths(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor with its path, in the order of the tree. Raises SchemaError for what has no path in files."""
    if isinstance(tree, torch.Tensor):
        yield "/".join(path) or SINGLE, tree
        return
    if type(tree) not in (dict, list, tuple) or len(path) > DEPTH:
        raise SchemaError(
            f"a tree in files is made of tensors in tuples, lists and dicts, not of {type(tree).__name__}"
        )
    names = [_name(key) for key in tree] if isinstance(tree, dict) else [str(number) for number in range(len(tree))]
    if len(set(names)) < len(names):
        raise SchemaError(f"keys that differ by type only cannot be told apart in files: {list(tree)}")
    for name, part in zip(names, tree.values() if isinstance(tree, dict) else tree):
        yield from leaf_paths(part, (*path, name))


def _name(key: Any) -> str:
    if not isinstance(key, (str, int)):
        raise SchemaError(f"keys of a tree in files are text or whole numbers, not {key!r}")
    return encoded_name(str(key)).replace(".", "%2E")


def describe_tree(tree: Any) -> Any:
    """The tree with dtypes and shapes in the place of tensors, as JSON can hold it."""
    return _describe(tree, ())


def _describe(tree: Any, rows: tuple[int, ...]) -> Any:
    if isinstance(tree, torch.Tensor):
        return {"dtype": str(tree.dtype).removeprefix("torch."), "shape": [*rows, *tree.shape]}
    if isinstance(tree, dict):
        return {"dict": [[key, _describe(part, rows)] for key, part in tree.items()]}
    return {type(tree).__name__: [_describe(part, rows) for part in tree]}


def open_tree(folder: Path, description: Any) -> Any:
    """Map the files of a tree. Raises DamagedDatasetError when they are not there, or the description is malformed."""

    def map_leaf(path: str, leaf: Any) -> Any:
        file = folder / f"{path}.memmap"
        for level in file.relative_to(folder).parents:
            if level.name and (folder / level).is_symlink():
                raise DamagedDatasetError(f"{folder / level} is a link, through which nothing is read")
        return map_tensor(file, leaf["dtype"], leaf["shape"])

    try:
        return _build(description, map_leaf)
    except (KeyError, TypeError, AttributeError, ValueError, SchemaError, OverflowError) as error:
        if isinstance(error, DamagedDatasetError):
            raise
        raise DamagedDatasetError(f"the tree in {folder} is malformed: {reason(error)}") from error


def _build(node: Any, leaf: Callable[[str, Any], Any], path: tuple[str, ...] = ()) -> Any:
    if len(path) > DEPTH:
        raise ValueError("it is nested too deeply")
    if "dtype" in node:
        return leaf("/".join(path) or SINGLE, node)
    if "dict" in node:
        return {key: _build(part, leaf, (*path, _name(key))) for key, part in node["dict"]}
    kind: type[list[Any]] | type[tuple[Any, ...]] = list if "list" in node else tuple
    return kind(_build(part, leaf, (*path, str(number))) for number, part in enumerate(node[kind.__name__]))


def create_tree(folder: Path, example: Any, rows: int) -> Any:
    """Files of ``rows`` rows for every tensor of ``example``, which is one record; returns the mapped tree."""
    for path, part in leaf_paths(example):
        file = folder / f"{path}.memmap"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        if part.numel():
            MemoryMappedTensor.empty((rows, *part.shape), dtype=part.dtype, filename=str(file))
    return open_tree(folder, _describe(example, (rows,)))
