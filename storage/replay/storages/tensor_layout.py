"""The layout of a tensor storage's data: keys, shapes and dtypes, and which rows a cursor names.

Values that are not tensors (strings, objects) are kept once for all records: a storage of tensors has no column for them,
so records whose values differ are refused. (A column of Python objects, as TorchRL's LazyTensorStorage makes, takes 4.5 s to
allocate for 100,000 records, and 65 ms for every batch.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_leaf_nontensor,
    is_non_tensor,
    is_tensor_collection,
)
from torch.utils import _pytree as pytree

from ....errors import SchemaError
from ..timeline import as_key
from .gather import Readable, TensorRows
from .trees import copy_of


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


VALUES_HINT = (
    "a ListStorage, LazyStackStorage or CompressedListStorage keeps such values for each record; "
    "data.exclude(key) leaves them out"
)


def _keys(data: Any) -> set[Any]:
    """The keys of all leaves, those of values that are not tensors included."""
    return set(data.keys(True, True, is_leaf=is_leaf_nontensor))


def shared_values(data: Any) -> dict[Any, Any]:
    """The values that are not tensors and that all records of the data have in common, by key.

    Raises SchemaError where records differ in them.
    """
    values = {}
    for key in _keys(data) if is_tensor_collection(data) else ():
        value = _leaf(data, key)
        if not isinstance(value, torch.Tensor):
            first, *others = _values(value)
            _check_values(path_of(key), first, others)
            values[key] = first
    return values


def _leaf(data: Any, key: Any) -> Any:
    """A leaf as tensordict keeps it: a tensorclass gives a value that is not a tensor without what holds it."""
    return (data if isinstance(data, TensorDictBase) else data._tensordict).get(key)


def _values(value: Any) -> Iterator[Any]:
    """The values of all records, or the one that they have in common."""
    if isinstance(value, LazyStackedTensorDict):
        for part in value.tensordicts:
            yield from _values(part)
    else:
        yield value.data if is_non_tensor(value) else value


def _check_values(name: str, stored: Any, given: Any) -> None:
    for value in given:
        if not same_value(value, stored):
            message = f"key {name}: the records have {stored!r:.40} and {value!r:.40}, which are not tensors"
            raise SchemaError(f"{message}; a storage of tensors keeps one such value for all records", hint=VALUES_HINT)


def same_value(value: Any, other: Any) -> bool:
    """Whether two values are of one type and equal; False where they cannot be compared."""
    try:
        return value is other or (type(value) is type(other) and bool(value == other))
    except Exception:  # of the comparison of any two objects
        return False


def expand_record(record: Any, rows: int) -> Any:
    """A record as ``rows`` records, without copies; a value that is not a tensor stands there once."""
    values = shared_values(record)
    records = (record.exclude(*values) if values else record).expand(rows, *record.batch_size)
    if values:
        records = records.copy()
    for key, value in values.items():
        above = as_key(key)[:-1]
        shape = (records.get(above) if above else records).batch_size
        records.set(key, NonTensorData(copy_of(value), batch_size=shape))
    return records


def listed_values(data: Any) -> tuple[Any, ...]:
    """The keys under which there is a value for each record, as in a batch that was stacked."""
    keys = _keys(data) if is_tensor_collection(data) else ()
    return tuple(key for key in keys if isinstance(_leaf(data, key), LazyStackedTensorDict))


def repeat_values(records: Any) -> Any:
    """Records with a value for each of them where one value stands for all."""
    found = [(key, _leaf(records, key)) for key in _keys(records)]
    shared = [(key, value) for key, value in found if isinstance(value, NonTensorData) and value.batch_size]
    records = records.copy() if shared else records
    for key, value in shared:
        repeated: Any = NonTensorData(value.data)
        for size in reversed(value.batch_size):
            repeated = NonTensorStack(*[repeated] * size)
        records.set(key, repeated)
    return records


def partial_keys(data: Any) -> set[Any]:
    """The keys that only some of the records have, where they were stacked lazily: tensordict drops those."""
    partial: set[Any] = set()
    lazy = isinstance(data, LazyStackedTensorDict)
    if lazy:
        every = [_keys(part) for part in data.tensordicts]
        partial = set.union(*every) - set.intersection(*every)
    for name, part in enumerate(data.tensordicts) if lazy else data.items():
        if is_tensor_collection(part) and not is_non_tensor(part):
            above = () if lazy else (name,)
            partial |= {(*above, *as_key(key)) for key in partial_keys(part)}
    return partial


def path_of(key: Any) -> str:
    """A key as text."""
    return "/".join(as_key(key))


def check_same(
    stored: Any, data: Any, ndim: int, lead: int | None = None, *, same_keys: bool = True
) -> tuple[list[Any], list[Any]]:
    """Raise SchemaError unless the data have the stored keys, dtypes and shapes.

    ``lead`` dimensions of the data number records, where they do not stand for the storage's own. Without ``same_keys`` it is
    enough that they have some of the keys: returned are those of the data that are not stored, and those that the data lack.
    """
    added: list[Any] = []
    missing: list[Any] = []
    if is_tensor_collection(stored) != is_tensor_collection(data):
        raise SchemaError(f"the storage holds a {type(stored).__name__}, not a {type(data).__name__}")
    if not is_tensor_collection(stored):
        if pytree.tree_structure(stored) != pytree.tree_structure(data):
            raise SchemaError("the data are not built like those in the storage")
        leaves = zip(pytree.tree_leaves(stored), pytree.tree_leaves(data))
        pairs = [(str(number), pair) for number, pair in enumerate(leaves)]
    else:
        there, given = _keys(stored), _keys(data)
        common = there
        if there != given:
            common = there & given
            added, missing = (sorted(keys, key=path_of) for keys in (given - there, there - given))
            if same_keys or (there and not common):
                both = (("without", missing), ("with", added))
                words = [f"{what} {', '.join(map(path_of, keys))}" for what, keys in both if keys]
                raise SchemaError(
                    f"the data come {' and '.join(words)}", hint="every write needs the keys of the first one"
                )
        pairs = [(path_of(key), (_leaf(stored, key), _leaf(data, key))) for key in common]
    for name, (old, new) in pairs:
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            if not isinstance(old, LazyStackedTensorDict):  # which has a value for each record
                first, *others = [*_values(old), *_values(new)]
                _check_values(name, first, others)
            continue
        fits = old.shape[1:] == new.shape[1:] if lead is None else old.shape[ndim:] == new.shape[lead:]
        if not fits or old.dtype != new.dtype:
            message = f"key {name}: got {_describe(new, ndim)}, the storage holds {_describe(old, ndim)}"
            if lead is None and old.shape[1:ndim] != new.shape[1:ndim]:
                message += f", and {list(new.shape[1:ndim])} beside each other instead of {list(old.shape[1:ndim])}"
            raise SchemaError(message)
    return added, missing


def written_rows(cursor: Any, filled: int, given: int) -> Any:
    """An index of rows to write to, as numbers from the first row.

    Negative numbers, open slices and masks count from the ``filled`` rows that are there; of an empty storage an open slice
    is as long as the data ``given``. Raises SchemaError for numbers before the first row, and masks of another length.
    """
    if cursor is Ellipsis:
        cursor = slice(None)
    if isinstance(cursor, slice):
        start, stop = cursor.start, cursor.stop
        if stop is None or stop < 0 or (start is not None and start < 0):
            return slice(*cursor.indices(filled or given))
        return cursor
    rows = torch.as_tensor(cursor)
    if rows.dtype == torch.bool:
        if rows.ndim > 1:
            return rows
        if len(rows) != filled:
            raise SchemaError(f"a mask of {len(rows)} for {filled} records")
        return rows.nonzero()[:, 0]
    if rows.numel() and int(rows.min()) < 0:
        if int(rows.min()) < -filled:
            raise SchemaError(f"there is no record {int(rows.min())} of {filled}")
        return torch.where(rows < 0, rows + filled, rows)
    return rows


def check_no_gap(cursor: Any, filled: int) -> None:
    """Raise SchemaError where rows that were never written would lie between those there are and those to be written."""
    if isinstance(cursor, slice):
        first = cursor.start or 0
        is_gap = first > filled or (cursor.step not in (None, 1) and cursor.stop > filled + 1)
    else:
        rows = torch.as_tensor(cursor)
        rows = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
        beyond = rows[rows >= filled].unique() if rows.numel() else rows
        is_gap = len(beyond) > 0 and int(beyond[-1]) - filled + 1 > len(beyond)
    if is_gap:
        message = f"rows {cursor!s:.60} are not next to the {filled} that were written"
        raise SchemaError(message, hint="rows are written in order: extend() and add() take the next ones")


def highest_row(cursor: Any, capacity: int) -> int:
    if isinstance(cursor, slice):
        return max(cursor.indices(capacity)[1] - 1, -1)
    if isinstance(cursor, tuple):
        cursor = cursor[0]
    if isinstance(cursor, torch.Tensor) and cursor.dtype == torch.bool:
        cursor = cursor.nonzero()[:, 0]
    cursor = torch.as_tensor(cursor)
    return int(cursor.max()) if cursor.numel() else -1


def last_row(cursor: Any, capacity: int) -> int:
    if isinstance(cursor, slice):
        return range(*cursor.indices(capacity))[-1]
    return int(torch.as_tensor(cursor).reshape(-1)[-1])
