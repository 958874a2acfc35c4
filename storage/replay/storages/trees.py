"""Trees of tensors: a TensorDict, a tensorclass, a tensor, or a nest of tuples, lists and dicts of tensors.

This module copies and stacks trees, and compares their layout: keys, shapes and dtypes. `rows` reads and writes their rows.

Values that are not tensors (strings, objects) are kept once for all records, and records whose values differ are refused. (A
column of Python objects, as TorchRL's LazyTensorStorage makes, takes 4.5 s to allocate for 100,000 records, and 65 ms a batch.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, MappingView
from collections.abc import Set as AbstractSet
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import fields, is_dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
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
    lazy_stack,
)
from torch.utils import _pytree as pytree

from ....errors import DiskSpaceError, SchemaError
from ...durable import is_full, system_error
from ..timeline import as_key, path_of


def tree_map(function: Callable[[torch.Tensor], Any], data: Any) -> Any:
    """Apply a function to a TensorDict as a whole, or to every tensor of a tree."""
    if is_tensor_collection(data):
        return function(data)
    return pytree.tree_map(function, data)


def leaves_of(data: Any) -> list[Any]:
    """The leaves of a TensorDict, or of a tree."""
    return list(data.values(True, True)) if is_tensor_collection(data) else pytree.tree_leaves(data)


def share_memory(data: Any) -> Any:
    """Move the tensors of a TensorDict or a tree to shared memory. Raises DiskSpaceError if that is too small."""
    try:
        return tree_map(lambda leaf: leaf.share_memory_(), data)
    except RuntimeError as error:
        found = system_error(error)
        if found is None or not is_full(found):
            raise
        message = "the shared memory of this machine (/dev/shm) is too small for the rows of the storage"
        hint = (
            "use a LazyMemmapStorage, whose rows are in files, or give the container more: `docker run --shm-size 8g`"
        )
        raise DiskSpaceError(message, hint=hint) from error


def copy_of(data: Any) -> Any:
    """A copy of a TensorDict, or of a tree (of dicts, lists, tuples, dataclasses) with all its tensors and arrays.

    Objects of other classes are copied with all that they hold, except those that can be called (such as policies) and those
    that cannot be copied.
    """
    return tree_map(_clone, data)


def _clone(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
        return leaf.copy()
    if not isinstance(leaf, torch.Tensor) and not is_tensor_collection(leaf):
        if is_dataclass(leaf) and not isinstance(leaf, type):
            return _with_fields_copied(leaf, [field.name for field in fields(leaf)])
        return _with_fields_copied(leaf, list(vars(leaf))) if type(leaf) is SimpleNamespace else _copied_object(leaf)
    cloned = clone_tensors(leaf)
    return cloned if isinstance(leaf, torch.Tensor) else with_values_copied(cloned)


def clone_tensors(data: Any) -> Any:
    """A clone of a tensor or a TensorDict, which may share its values that are not tensors.

    A TensorDict's own ``clone`` adds zero: -0.0 becomes 0.0, and torch cannot do that for some dtypes (uint16, float8).
    """
    return data.clone() if isinstance(data, torch.Tensor) else data.apply(torch.clone)


def with_values_copied(cloned: Any) -> Any:
    """A clone of a TensorDict, after copying its values that are not tensors: tensordict shares those of one with a device."""
    parts: Any = ()
    if isinstance(cloned, LazyStackedTensorDict):
        parts = cloned.tensordicts
    elif is_non_tensor(cloned):
        cloned._non_tensordict["data"] = copy_of(cloned._non_tensordict["data"])
    else:
        parts = (cloned if isinstance(cloned, TensorDictBase) else cloned._tensordict).values()
    for part in parts:
        if is_tensor_collection(part):
            with_values_copied(part)
    return cloned


#: Values that cannot be changed.
_FIXED = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device)


def _copied_object(value: Any) -> Any:
    """An object in new memory: a subclass of dict or list, an array of objects, a record of a user's class."""
    if isinstance(value, _FIXED) or callable(value):
        return value
    with suppress(Exception):  # locks, files, generators; a user's ``__deepcopy__`` may raise anything
        return deepcopy(value)
    with suppress(Exception):  # a dict whose ``__getattr__`` is ``dict.__getitem__``
        return _with_items_copied(value) if isinstance(value, (dict, list)) else value
    return value


def _with_items_copied(value: Any) -> Any:
    """A subclass of dict or list that deepcopy cannot copy, with copies of its items and attributes."""
    kind: Any = type(value)
    copied = kind.__new__(kind)
    object.__getattribute__(copied, "__dict__").update(copy_of(object.__getattribute__(value, "__dict__")))
    if isinstance(value, list):
        list.extend(copied, map(copy_of, list.__iter__(value)))
        return copied
    base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
    for key, part in base.items(value):
        base.__setitem__(copied, key, copy_of(part))
    return copied


def _with_fields_copied(record: Any, names: list[str]) -> Any:
    copied = copy(record)
    for name in names:
        if hasattr(record, name):
            object.__setattr__(copied, name, copy_of(getattr(record, name)))  # also of a frozen dataclass
    return copied


class MemoryOf:
    """The memory that the tensors of data lie in."""

    def __init__(self, data: Any) -> None:
        memory = [leaf.untyped_storage() for leaf in dense_leaves(data)]
        blocks = sorted({(block.data_ptr(), block.data_ptr() + block.nbytes()) for block in memory})
        self._starts, self._ends = [start for start, _ in blocks], [end for _, end in blocks]

    def holds_any(self, data: Any) -> bool:
        """Whether a tensor or an array of these data lies in the memory."""
        if type(data) is TensorDict:  # without detours: every write comes here
            return any(map(self.holds_any, data._tensordict.values()))
        for leaf in dense_leaves(data) if type(data) is not torch.Tensor or data.layout != torch.strided else (data,):
            place = leaf.data_ptr()
            if self._starts and self._starts[0] <= place < self._ends[-1]:
                block = bisect_right(self._starts, place) - 1
                if place < self._ends[block]:
                    return True
        return False


def dense_leaves(data: Any) -> Iterator[torch.Tensor]:
    """The tensors that hold the data; for a lazy stack the stacked tensors, because its values would be copies."""
    if isinstance(data, torch.Tensor):
        if data.layout == torch.strided and data.device.type != "meta":
            yield data
    elif is_tensor_collection(data):
        parts: Any = ()
        if isinstance(data, LazyStackedTensorDict):
            parts = data.tensordicts
        elif not is_non_tensor(data):
            parts = (data if isinstance(data, TensorDictBase) else data._tensordict).values()
        for part in parts:
            yield from dense_leaves(part)
    elif isinstance(data, np.ndarray):
        with suppress(TypeError, ValueError):  # arrays that cannot become tensors
            yield torch.as_tensor(data)
    elif isinstance(data, (dict, list, tuple)):
        for part in data.values() if isinstance(data, dict) else data:
            yield from dense_leaves(part)


def from_state(state: Any) -> Any:
    """A copy of the data in a storage's state; a TensorDict's own ``state_dict``, as TorchRL keeps it, becomes a TensorDict."""
    if isinstance(state, dict) and ("_metadata" in getattr(state, "__dict__", ()) or "__batch_size" in state):
        return copy_of(TensorDict().load_state_dict(state, strict=False))
    return copy_of(state)


def as_list(data: Any) -> Any:
    """An iterable of records (a deque, set, generator) as a list; other data unchanged. pytree takes a deque for a tuple."""
    one_by_one: Any = (deque, AbstractSet, MappingView, Iterator)
    return list(data) if isinstance(data, one_by_one) else data


def stack(records: list[Any]) -> Any:
    """A list of records as one batch. Raises SchemaError if it is empty, or if the records differ in layout."""
    if not records:
        raise SchemaError("there are no records in the list")
    try:
        if is_tensor_collection(records[0]):
            return torch.stack(records)
        return pytree.tree_map(_stack_leaves, *records, is_leaf=is_tensor_collection)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SchemaError(f"the records of a list are not alike: {error}") from error


def _stack_leaves(*leaves: Any) -> Any:
    return torch.stack([leaf if is_tensor_collection(leaf) else torch.as_tensor(leaf) for leaf in leaves])


def records_of_columns(data: tuple[Any, ...]) -> Any:
    """A tuple of columns as a list of records: record i is the tuple of their i-th elements. Any other tuple is returned as is.

    Columns are tensors, arrays or TensorDicts ``[n, ...]``, in a tree. Raises SchemaError if they differ in length.
    """
    columns = pytree.tree_leaves(data, is_leaf=is_tensor_collection)
    batches = [leaf for leaf in columns if isinstance(leaf, (torch.Tensor, np.ndarray)) or is_tensor_collection(leaf)]
    if not columns or len(batches) < len(columns) or not all(leaf.ndim for leaf in batches):
        return data
    check_lengths(data, columns)
    elements = partial(pytree.tree_map, is_leaf=is_tensor_collection)
    return [elements(lambda column, row=row: column[row], data) for row in range(len(columns[0]))]


def check_lengths(data: Any, columns: Iterable[Any]) -> None:
    """Raise SchemaError if the columns of ``data`` differ in their number of rows."""
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise SchemaError(f"the columns of a {type(data).__name__} have {' and '.join(map(str, sorted(lengths)))} rows")


def move_dim_first(data: Any, dim: int, ndim: int) -> Any:
    """Data with the dimension ``dim``, along which they are written, first; ``ndim`` is the storage's. Raises SchemaError."""
    if not dim or isinstance(data, list):
        return data
    if is_tensor_collection(data):
        if data.ndim <= dim:
            message = f"data of shape {tuple(data.shape)} have no dimension {dim} to extend along"
            raise SchemaError(message, hint=f"a storage with ndim={ndim} takes batches of [*batch, time]")
        return data.transpose(dim, 0)
    return pytree.tree_map(lambda leaf: leaf.transpose(dim, 0), data)


def stack_records(records: Any) -> Any:
    """The records of a list as a batch; numbers become tensors, TensorDicts whose layouts differ a lazy stack."""
    if not isinstance(records, list) or not records:
        return records
    if not all(map(is_tensor_collection, records)):
        return stack(records)
    if len({_layout(record) for record in records}) == 1:
        return stack(records)
    _check_kinds(records)
    return lazy_stack_of(records)


def lazy_stack_of(records: list[Any], dim: int = 0) -> Any:
    """Copies of TensorDicts as a lazy stack: writes to it reach the TensorDicts that are stacked."""
    return lazy_stack([copy_of(record) for record in on_one_device(records)], dim)


def on_one_device(records: list[Any]) -> list[Any]:
    """TensorDicts that can be stacked: one without a device is on the CPU, and tensordict refuses both in one lazy stack."""
    if {getattr(record, "device", None) for record in records} == {None, torch.device("cpu")}:
        return [record.to("cpu") for record in records]
    return records


def _layout(record: Any) -> Any:
    """What records must share to be stacked. A value that is not a tensor in only some records is a different layout too."""
    leaves = record.items(True, True, is_leaf=is_leaf_nontensor)
    found = ((key, getattr(leaf, "shape", ()), isinstance(leaf, torch.Tensor)) for key, leaf in leaves)
    return record.batch_size, frozenset(found)


def _check_kinds(records: list[Any]) -> None:
    """Raise SchemaError for a key that is a tensor in one record, and in another a value of another kind or has keys."""
    kinds: dict[Any, str] = {}
    for record in records:
        for key, value in record.items(True):
            kind = "tensor" if isinstance(value, torch.Tensor) else "value" if is_non_tensor(value) else "TensorDict"
            if kinds.setdefault(key, kind) != kind:
                message = (
                    f"the records of a list are not alike: {key!r} is a {kinds[key]} in one, and a {kind} in another"
                )
                raise SchemaError(message)


def as_dense(batch: Any) -> Any:
    """A lazy stack of records of one layout as a TensorDict, whose leaves may be changed in place; other batches unchanged."""
    if not isinstance(batch, LazyStackedTensorDict):
        return batch
    return LazyStackedTensorDict.maybe_dense_stack(batch.tensordicts, batch.stack_dim)


# -- layout ------------------------------------------------------------------------------------------------------------


def as_tensors(data: Any) -> Any:
    try:
        return pytree.tree_map(torch.as_tensor, data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SchemaError(f"a tensor storage takes tensors and numbers: {error}") from error


def batch_shape(data: Any, ndim: int) -> torch.Size:
    """The leading ``ndim`` dimensions. Raises SchemaError if the data have fewer."""
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


def _keys(data: Any) -> set[Any]:
    """The keys of all leaves, those of values that are not tensors included."""
    return set(data.keys(True, True, is_leaf=is_leaf_nontensor))


def _leaf(data: Any, key: Any) -> Any:
    """A leaf as tensordict keeps it; a tensorclass would unwrap a value that is not a tensor."""
    return (data if isinstance(data, TensorDictBase) else data._tensordict).get(key)


#: Stored leaves, each with the corresponding leaf of the data to be written.
Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def plain_pairs(stored: Any, data: Any) -> Pairs | None:
    """`pair_leaves` of two TensorDicts of tensors that fit; None otherwise, or if the check is slow: every write calls this."""
    if type(stored) is not TensorDict or type(data) is not TensorDict:
        return None
    there, given = stored._tensordict, data._tensordict
    if len(there) != len(given):
        return None
    pairs: Pairs = []
    for name, leaf in given.items():
        target = there.get(name)
        if type(leaf) is not torch.Tensor:
            below = plain_pairs(target, leaf)
            if below is None:
                return None
            pairs += below
        elif isinstance(target, torch.Tensor) and target.dtype == leaf.dtype and target.shape[1:] == leaf.shape[1:]:
            pairs.append((target, leaf))
        else:
            return None
    return pairs


def pair_leaves(
    stored: Any, data: Any, ndim: int, lead: int | None = None, *, same_keys: bool = True
) -> tuple[Pairs, list[Any], list[Any]]:
    """Each stored tensor with the tensor of the data. Raises SchemaError unless keys, dtypes and shapes are the stored ones.

    ``lead`` dimensions of the data count records, if they differ from the storage's own. Without ``same_keys``, some common
    keys suffice: also returned are the keys of the data that are not stored, and the stored keys that the data lack.
    """
    found: Pairs = []
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
                words = " and ".join(f"{what} {', '.join(map(path_of, keys))}" for what, keys in both if keys)
                raise SchemaError(f"the data come {words}", hint="every write needs the keys of the first one")
        pairs = [(path_of(key), (_leaf(stored, key), _leaf(data, key))) for key in common]
    for name, (old, new) in pairs:
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            if not isinstance(old, LazyStackedTensorDict):  # a stack has a value for each record
                first, *others = [*_values(old), *_values(new)]
                _check_values(name, first, others)
            continue
        fits = old.shape[1:] == new.shape[1:] if lead is None else old.shape[ndim:] == new.shape[lead:]
        if not fits or old.dtype != new.dtype:
            message = f"key {name}: got {_describe(new, ndim)}, the storage holds {_describe(old, ndim)}"
            if lead is None and old.shape[1:ndim] != new.shape[1:ndim]:
                message += f", and {list(new.shape[1:ndim])} beside each other instead of {list(old.shape[1:ndim])}"
            raise SchemaError(message)
        found.append((old, new))
    return found, added, missing


def _describe(leaf: torch.Tensor, ndim: int) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape[ndim:])}"


# -- values that are not tensors ---------------------------------------------------------------------------------------


VALUES_HINT = "a ListStorage keeps such values for each record; data.exclude(key) leaves them out"


def shared_values(data: Any) -> dict[Any, Any]:
    """The values that are not tensors and that all records share, by key. Raises SchemaError if records differ in them."""
    values = {}
    for key in _keys(data) if is_tensor_collection(data) else ():
        value = _leaf(data, key)
        if not isinstance(value, torch.Tensor):
            first, *others = _values(value)
            _check_values(path_of(key), first, others)
            values[key] = first
    return values


def _values(value: Any) -> Iterator[Any]:
    """The values of all records, or the value that they share."""
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
    """Whether two values have the same type and are equal; False if they cannot be compared."""
    try:
        return value is other or (type(value) is type(other) and bool(value == other))
    except Exception:  # comparing arbitrary objects may raise anything
        return False


def expand_record(record: Any, rows: int) -> Any:
    """A record as ``rows`` records, without copies; a value that is not a tensor is kept once."""
    if not is_tensor_collection(record):
        return pytree.tree_map(lambda leaf: leaf.expand(rows, *leaf.shape), record)
    values = shared_values(record)
    records = (record.exclude(*values) if values else record).expand(rows, *record.batch_size)
    if values:
        records = records.copy()
    for key, value in values.items():
        above = as_key(key)[:-1]
        shape = (records.get(above) if above else records).batch_size
        records.set(key, NonTensorData(_kept_value(value), batch_size=shape))
    return records


def _kept_value(value: Any) -> Any:
    """A copy of a value with which those of later records are compared; objects that compare by identity stay themselves."""
    return pytree.tree_map(lambda leaf: leaf if type(leaf).__eq__ is object.__eq__ else _clone(leaf), value)


def listed_values(data: Any) -> tuple[Any, ...]:
    """The keys with a separate value for each record, as in a stacked batch."""
    keys = _keys(data) if is_tensor_collection(data) else ()
    return tuple(key for key in keys if isinstance(_leaf(data, key), LazyStackedTensorDict))


def repeat_values(records: Any) -> Any:
    """Records in which each shared value is repeated for every record."""
    found = [(key, _leaf(records, key)) for key in _keys(records)]
    shared = [(key, value) for key, value in found if isinstance(value, NonTensorData) and value.batch_size]
    records = records.copy() if shared else records
    for key, value in shared:
        repeated: Any = NonTensorData(value.data)
        for size in reversed(value.batch_size):
            repeated = NonTensorStack(*[repeated] * size)
        records.set(key, repeated)
    return records


def set_nested_sizes(
    data: TensorDictBase, sizes: Iterable[tuple[Any, tuple[int, ...]]], lead: tuple[int, ...] = ()
) -> None:
    """Give nested TensorDicts their batch sizes, after ``lead`` (see `Storage.nested_sizes`); empty ones are made."""
    for path, size in sizes:
        if path not in data.keys(True):
            data.set(path, TensorDict(batch_size=(*lead, *size)))
        data.get(path).batch_size = torch.Size((*lead, *size))


def partial_keys(data: Any) -> set[Any]:
    """The keys that only some records of a lazy stack have: tensordict drops them."""
    if type(data) is TensorDict and all(type(part) is torch.Tensor for part in data._tensordict.values()):
        return set()  # without detours: every write comes here
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
