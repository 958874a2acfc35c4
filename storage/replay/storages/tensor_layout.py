"""The layout of a tensor storage's data: keys, shapes and dtypes, and which rows a cursor names."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch.utils import _pytree as pytree

from ....errors import SchemaError
from ..windows.edges import as_key
from .gather import Readable, TensorRows


def as_tensors(data: Any) -> Any:
    try:
        return pytree.tree_map(torch.as_tensor, data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SchemaError(f"a tensor storage takes tensors and numbers: {error}") from error


def plain(leaf: Any) -> Any:
    return leaf.as_subclass(torch.Tensor) if isinstance(leaf, torch.Tensor) and type(leaf) is not torch.Tensor else leaf


def take_rows(data: Any, index: Any) -> Any:
    if isinstance(data, torch.Tensor) and type(data) is torch.Tensor and data.ndim:
        index = torch.as_tensor(index)
        return data.index_select(0, torch.where(index < 0, index + len(data), index).to(data.device))
    return data[index]


def first_leaf(data: Any) -> torch.Tensor:
    if is_tensor_collection(data):
        return next(iter(data.values(True, True)))
    return pytree.tree_leaves(data)[0]


def batch_shape(data: Any, ndim: int) -> torch.Size:
    """The leading ``ndim`` dimensions. Raises SchemaError when the data have fewer."""
    if is_tensor_collection(data):
        shape = data.batch_size
    else:
        leaves = pytree.tree_leaves(data)
        if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise SchemaError(f"a tensor storage takes tensors, not {type(data).__name__}")
        shape = leaves[0].shape
    if len(shape) < ndim:
        raise SchemaError(f"data with batch {tuple(shape)} have fewer than {ndim} dimensions")
    return torch.Size(shape[:ndim])


def readable_fields(data: Any, ndim: int) -> dict[str, Readable] | None:
    """The leaves to be read one by one, where the data are a plain TensorDict of plain tensors."""
    if not isinstance(data, TensorDict) or data.names != [None] * len(data.batch_size):
        return None
    fields: dict[str, Readable] = {}
    for key, leaf in data.items(include_nested=True):
        if isinstance(leaf, torch.Tensor):
            path = path_of(key)
            if path.count("/") != len(as_key(key)) - 1 or not _is_plain_memory(leaf):
                return None
            fields[path] = TensorRows(path, plain(leaf).flatten(0, ndim - 1))
        elif type(leaf) is not TensorDict or leaf.batch_size != data.batch_size or not len(leaf.keys()):
            return None
    return fields or None


def _is_plain_memory(leaf: torch.Tensor) -> bool:
    """Whether the elements lie in memory as they are, in order: dense, contiguous, not negated or conjugated when read."""
    return leaf.layout == torch.strided and leaf.is_contiguous() and not leaf.is_neg() and not leaf.is_conj()


def _describe(leaf: torch.Tensor, ndim: int) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape[ndim:])}"


def other_keys(stored: Any, data: Any) -> tuple[list[Any], list[Any]]:
    """Leaves of the data that are not stored, and stored ones that the data lack; nothing where one is no TensorDict."""
    if not is_tensor_collection(stored) or not is_tensor_collection(data):
        return [], []
    there, given = set(stored.keys(True, True)), set(data.keys(True, True))
    if there == given or (there and not there & given):  # nothing in common: other data altogether
        return [], []
    return sorted(given - there, key=path_of), sorted(there - given, key=path_of)


def path_of(key: Any) -> str:
    """A key as text."""
    return "/".join(as_key(key))


def check_same(stored: Any, data: Any, ndim: int, lead: int | None = None, *, same_keys: bool = True) -> None:
    """Raise SchemaError unless the data have the stored keys (those in both, without ``same_keys``), dtypes and shapes.

    ``lead`` dimensions of the data number records, where they do not stand for the storage's own.
    """
    if is_tensor_collection(stored) != is_tensor_collection(data):
        raise SchemaError(f"the storage holds a {type(stored).__name__}, not a {type(data).__name__}")
    if not is_tensor_collection(stored):
        if pytree.tree_structure(stored) != pytree.tree_structure(data):
            raise SchemaError("the data are not built like those in the storage")
        leaves = zip(pytree.tree_leaves(stored), pytree.tree_leaves(data))
        pairs = [(str(number), pair) for number, pair in enumerate(leaves)]
    else:
        there, given = set(stored.keys(True, True)), set(data.keys(True, True))
        if same_keys and there != given:
            missing, unknown = (sorted(map(path_of, keys)) for keys in (there - given, given - there))
            words = [f"{what} {', '.join(keys)}" for what, keys in (("without", missing), ("with", unknown)) if keys]
            raise SchemaError(
                f"the data come {' and '.join(words)}", hint="every write needs the keys of the first one"
            )
        pairs = [(path_of(key), (stored.get(key), data.get(key))) for key in there & given]
    for name, (old, new) in pairs:
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            continue
        fits = old.shape[1:] == new.shape[1:] if lead is None else old.shape[ndim:] == new.shape[lead:]
        if not fits or old.dtype != new.dtype:
            message = f"key {name}: got {_describe(new, ndim)}, the storage holds {_describe(old, ndim)}"
            if lead is None and old.shape[1:ndim] != new.shape[1:ndim]:
                message += f", and {list(new.shape[1:ndim])} beside each other instead of {list(old.shape[1:ndim])}"
            raise SchemaError(message)


def highest_row(cursor: Any, capacity: int) -> int:
    if isinstance(cursor, slice):
        return max(cursor.indices(capacity)[1] - 1, -1)
    if isinstance(cursor, tuple):
        cursor = cursor[0]
    if isinstance(cursor, torch.Tensor) and cursor.dtype == torch.bool:
        cursor = cursor.nonzero()
    cursor = torch.as_tensor(cursor)
    return int(cursor.max()) if cursor.numel() else -1


def last_row(cursor: Any, capacity: int) -> int:
    if isinstance(cursor, slice):
        return range(*cursor.indices(capacity))[-1]
    return int(torch.as_tensor(cursor).reshape(-1)[-1])
