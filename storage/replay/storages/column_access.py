"""Access by index: one leaf of all records, and records of storages with several dimensions.

buffer["action"]        buffer["next", "reward"] = rewards
buffer[env, 3:6]        buffer[:, -1] = records            dimensions in the order in which `extend` is given them
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import is_tensor_collection

from ....errors import SchemaError, UnknownKeyError, UsageError, reason
from ..timeline import as_key
from .storage import Storage
from .trees import copy_of, tree_map


def is_key(index: Any) -> bool:
    """Whether an index names a leaf, rather than records."""
    if isinstance(index, tuple):
        return bool(index) and all(isinstance(name, str) for name in index)
    return isinstance(index, str)


def read_records(storage: Storage, index: Any, dim: int) -> Any:
    """Records by ``index``; ``dim`` is where `extend` is given the storage's first dimension."""
    if not dim:
        return storage[index]
    return tree_map(lambda leaf: leaf.transpose(dim, 0)[index], storage[:])


def write_records(storage: Storage, index: Any, value: Any, dim: int) -> None:
    """Change records by ``index``, which must be there; see `read_records`. Raises SchemaError for what does not fit."""
    if storage.ndim > 1:
        rows = torch.arange(len(storage)).view(storage.shape).transpose(dim, 0)[index]
        index = tuple(torch.unravel_index(rows, storage.shape))
        value = copy_of(value)  # it may be a view of these very rows
        value = value.expand(rows.shape) if is_tensor_collection(value) else value
    storage[index] = value


def read_column(storage: Storage, records: Any, key: Any) -> Any:
    """A leaf of all ``records``, which come from the storage. Raises UnknownKeyError when there is none."""
    try:
        return records[key]
    except (KeyError, TypeError, IndexError) as error:
        raise _unknown(storage, key) from error


def write_leaf(storage: Storage, key: Any, value: Any, index: Any = None, dim: int = 0) -> None:
    """Change a leaf of the records at ``index``, or of all.

    Raises UnknownKeyError, SchemaError for values that do not fit, ReadOnlyError, UsageError where records have no columns.
    """
    if storage.immutable:
        storage.set(key, value)  # which refuses
    records = storage._records_to_change(slice(None) if index is None else index, key)
    if not is_tensor_collection(records):
        raise UsageError(f"a {type(storage).__name__} has no columns to write to", hint="use a LazyTensorStorage")
    leaf = records.get(key, None)
    if leaf is None:
        raise _unknown(storage, key)
    try:
        column = torch.empty_like(leaf)
        column.transpose(dim, 0).copy_(_held(torch.as_tensor(value).detach(), leaf.dtype))
    except (RuntimeError, TypeError, ValueError) as error:
        raise SchemaError(f"what is to be written to {'/'.join(as_key(key))} does not fit: {reason(error)}") from error
    records = records.set(key, column)
    if index is None:
        storage.set(slice(0, storage.filled), records, set_cursor=False)
    else:
        write_records(storage, index, records, 0)


def _held(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values as another dtype. Raises ValueError where it cannot hold them; floating point numbers may be rounded."""
    held = value.to(dtype)
    if value.is_floating_point() and dtype.is_floating_point:
        lost = held.isinf() & ~value.isinf()
    else:
        lost = held.to(value.dtype) != value
    if held.dtype != value.dtype and bool(lost.any()):
        raise ValueError(f"{dtype} cannot hold {value[lost][0].item()!r}")
    return held


def _unknown(storage: Storage, key: Any) -> UnknownKeyError:
    names = storage.fields()
    hint = f"there are {', '.join(names)}" if names else None
    return UnknownKeyError(f"the records have no {'/'.join(as_key(key))}", hint=hint)
