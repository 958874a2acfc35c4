"""The base class of storages, which keep the records of a buffer.

A storage has rows. Along its first dimension it is written like a ring; ``ndim`` is the number of leading dimensions of the
data that count as rows: with ``ndim=2`` a storage is ``[time, environments]``, ``max_size`` counts both, and row (t, b) also
has the flat number ``t * environments + b``.

    ring of 6 along time, 4 written                 ring of 6, full, the last write went to row 1
    row    0 1 2 3 . .                              row    0 1 2 3 4 5
           oldest = 0, newest = 3                                ^ oldest = 2, newest = 1

Users also access records and leaves by an index; dimensions are in the order of the data of `extend`:

    buffer["action"]        buffer["next", "reward"] = rewards
    buffer[env, 3:6]        buffer[:, -1] = records
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from tensordict import is_tensor_collection

from ....errors import RowIndexError, SamplingError, SchemaError, UnknownKeyError, UsageError, reason
from ...keywords import whole_number
from ...row_index import NoRecordError
from ..overrides import link, reads_by_get
from ..saving import Saved
from ..timeline import Edges, Key, Timeline, as_key
from .rows import Readable, whole_numbers
from .trees import copy_of, stack_records, tree_map

Result = TypeVar("Result")


class CheckedError(BaseException):
    """Raised instead of the first write if a state is only checked and fits (`Storage.checking`).

    It is not an Exception, so that handlers of errors ignore it, but like an error it undoes earlier loads.
    """


class Storage(Saved):
    """Base of all storages.

    ``compilable`` is accepted as by TorchRL's storages and has no effect: no state here is guarded by ``torch.compile``.
    ``len(storage)`` counts rows (over all dimensions); ``version`` grows with every write, so that values computed from
    earlier contents can be recognised.
    """

    #: Whether the storage is read-only; reads then need no lock, and draws stay valid.
    immutable = False
    #: Whether states are only checked instead of loaded, see `checking`.
    only_checks = False
    #: Stamps of the rows (see `writers.SlotGenerations`), where a writer tracks them: buffers that share rows share these.
    generations: Any = None

    #: The number of rows, those written last, that follow each other in time. Every row, unless a writer says otherwise, in a
    #: storage that does not count them.
    ordered: int = 2**63 - 1

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        link(cls, "empty", "_empty")

    def __init__(self, max_size: int, *, ndim: int = 1, compilable: bool = False) -> None:
        self.max_size: int = whole_number("max_size", max_size, 1)
        self.ndim: int = whole_number("ndim", ndim, 1)
        self._timelines: dict[Edges, tuple[int, Timeline]] = {}

    # -- what a storage must say of itself ---------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """A number that every write changes."""
        raise NotImplementedError

    @property
    def contents_version(self) -> Any:
        """A value that changes with every write, and with every change of the contents through a view."""
        return self.version

    @property
    def filled(self) -> int:
        """Rows along the first dimension that hold data."""
        raise NotImplementedError

    @property
    def newest(self) -> int:
        """The row along the first dimension that was written last, -1 if none was."""
        raise NotImplementedError

    def get(self, index: Any) -> Any:
        """Rows: an int, slice, sequence, tensor, or a tuple of one tensor for each dimension."""
        raise NotImplementedError

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write rows (along the first dimension); ``set_cursor``: these rows are now the newest."""
        raise NotImplementedError

    def _records_to_change(self, index: Any, key: Any) -> Any:
        """Copies of records, which `set` writes back with a changed leaf ``key``; not a TensorDict if there are no columns."""
        return copy_of(self.get(index))

    def _copied_if_own(self, data: Any) -> Any:
        """Data to be written; a copy if they lie in the memory of this storage, which the write changes."""
        return data

    def column(self, key: Key) -> torch.Tensor | None:
        """One leaf of all rows, flat: ``[len, ...]``; None if there is no such leaf."""
        raise NotImplementedError

    def column_as_read(self, key: Key) -> torch.Tensor | None:
        """`column`, read by a user's ``get`` if one is defined."""
        return self._leaf_at(key, torch.arange(len(self), device="cpu")) if reads_by_get(self) else self.column(key)

    def _leaf_at(self, key: Key, rows: torch.Tensor) -> torch.Tensor | None:
        """A leaf at flat rows, ``[n, *shape]``, read by a user's ``get`` if one is defined; None if there is no such leaf."""
        fields = None if reads_by_get(self) else self.fields()
        if fields is not None:
            name = "/".join(key)
            return fields[name].take(rows) if name in fields else None
        records = stack_records(self.get(self.coordinates(rows)))
        return records.get(key, None) if is_tensor_collection(records) else None

    def fields(self) -> dict[str, Readable] | None:
        """The leaves by path, to be read by row; None if only whole records can be read."""
        return None

    @property
    def nested_sizes(self) -> tuple[tuple[Key, tuple[int, ...]], ...]:
        """Of leaves read by row: path and batch size of TensorDicts inside of records that are empty, or have another size."""
        return ()

    @property
    def batch_tail(self) -> tuple[int, ...]:
        """Batch dimensions of a record, without the dimensions that count as rows."""
        return ()

    @property
    def write_lock(self) -> AbstractContextManager[Any]:
        """A lock to hold while rows are written, if other processes may write too."""
        return nullcontext()

    @property
    def read_lock(self) -> AbstractContextManager[Any]:
        """A lock to hold while rows are read that other processes must not write meanwhile; `read_whole` rarely needs it."""
        return nullcontext()

    def read_whole(self, read: Callable[[], Result]) -> Result:
        """The result of ``read``, which is called again if another process has written rows meanwhile."""
        return read()

    @property
    def is_shared(self) -> bool:
        """Whether other processes may see the same rows, and write them."""
        return False

    def will_read(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Announce that rows ``start..stop-1`` of these ranges are drawn next: remote rows may be fetched ahead of time."""

    # -- derived -----------------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Number of rows for each row along the first dimension."""
        return 1

    @property
    def shape(self) -> torch.Size:
        """The rows that hold data, ``[filled, *further dimensions]``."""
        return torch.Size([self.filled])

    @property
    def capacity(self) -> int:
        """The maximum number of rows along the first dimension."""
        return self.max_size

    def capacity_for(self, batch: Any) -> int:
        """The capacity once a batch ``[n, ...]`` is written; the first batch determines the width of the storage."""
        return self.capacity

    @property
    def device(self) -> torch.device | None:
        return None

    def __len__(self) -> int:
        return self.filled * self.width

    @property
    def is_full(self) -> bool:
        return self.filled == self.capacity

    @property
    def cursor(self) -> int:
        """The row along the first dimension after the newest one, where a ring is written next."""
        return (self.newest + 1) % self.capacity if self.filled else 0

    @property
    def oldest(self) -> int:
        """The row along the first dimension that is first in time."""
        return (self.newest + 1) % self.capacity if self.is_full else 0

    @property
    def in_order(self) -> bool:
        """Whether all rows are a ring in order of time, from the oldest to the newest."""
        return self.filled <= self.ordered

    def _require_order(self) -> None:
        """Raise UsageError if the rows are not in order of time."""
        if not self.in_order:
            message = "the rows are not in order of time: records were written to rows of choice, or drawn at random"
            hint = "store whole trajectories as records, give SliceSampler a step_key, or prefill without n_samples"
            raise UsageError(message, hint=hint)

    def _ordered_after(self, rows: Sequence[int] | torch.Tensor, end: int, set_cursor: bool) -> int:
        """`ordered` once these rows along the first dimension are written, the last of which lies before ``end``."""
        if not set_cursor and end <= self.filled:  # records are changed where they are
            return self.ordered
        if isinstance(rows, range) and rows.step == 1:  # torch.compile knows neither len nor elements of a range
            first, count = rows.start, rows.stop - rows.start
        elif not len(rows):
            return self.ordered
        else:
            first, count = int(rows[0]), len(rows)
            if count > 1 and bool(((np.diff(np.asarray(rows)) - 1) % self.capacity).any()):
                return 0
        follows = first == (self.cursor if self.is_full else self.filled)
        if not set_cursor:  # the next record is written where it would have been
            return end if follows and self.newest < 0 and self.in_order else 0
        return min(self.capacity, count + (self.ordered if follows else 0))

    def _ordered_here(self, filled: int, newest: int, ordered: int | None) -> int:
        """`ordered` for contents of another storage, which keep the numbers of their rows; None if it stated none."""
        ordered = filled if ordered is None else min(ordered, filled)
        wraps = 0 <= newest < ordered - 1
        return 0 if wraps and filled < self.capacity else ordered

    def _order_to_save(self) -> dict[str, int]:
        """`ordered` for a saved state, which states it for rows that are not in order."""
        return {} if self.in_order else {"ordered": self.ordered}

    def timeline(self, edges: Edges) -> Timeline:
        """The steps in order of time with their episodes, kept until a write. Raises UsageError if the order is unknown."""
        if edges.step_key is None:
            self._require_order()
        known = self._timelines.get(edges)
        if known is not None and known[0] == self.contents_version:
            return known[1]
        require_records(self)
        version = self.contents_version
        timeline = edges.timeline(self.column_as_read, self.filled, self.width, self.oldest)
        self._timelines[edges] = (version, timeline)
        return timeline

    def empty(self) -> None:
        """Remove all records; the memory stays allocated."""
        raise NotImplementedError

    _empty = empty

    def __getitem__(self, index: Any) -> Any:
        return self.get(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.set(index, value, set_cursor=False)

    def __iter__(self) -> Iterator[Any]:
        return (self.get(row) for row in range(self.filled))

    def contains(self, item: Any) -> Any:
        """Whether rows along the first dimension hold data: bool for an int, a bool tensor for a tensor of rows.

        For a storage of several dimensions the last dimension of a tensor ``[..., ndim]`` holds coordinates. Negative rows
        count from the end.
        """
        if hasattr(item, "__index__") and not isinstance(item, torch.Tensor):
            return -self.filled <= item < self.filled
        if not isinstance(item, torch.Tensor):
            raise UsageError(f"rows are numbers or tensors of numbers, not {type(item).__name__}")
        if self.ndim == 1 or item.ndim < 2:
            return (item >= -self.filled) & (item < self.filled)
        size = torch.tensor(self.shape, device=item.device)
        return ((item >= -size) & (item < size)).all(-1)

    __contains__ = contains

    def flatten(self) -> Storage:
        """A storage of one dimension with the same rows; the storage itself if it has one dimension."""
        if self.ndim == 1:
            return self
        raise UsageError(f"a {type(self).__name__} cannot be flattened")

    def coordinates(self, rows: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Flat rows in the form that ``get`` takes: unchanged, or one tensor for each dimension."""
        # By the capacity: how many rows are filled may have changed since these were drawn.
        return rows if self.ndim == 1 else tuple(torch.unravel_index(rows, (self.capacity, *self.shape[1:])))

    def flat(self, index: Any) -> torch.Tensor:
        """Flat rows ``[N]`` from ``[N]``, ``[N, ndim]`` or a tuple of ``ndim`` tensors; -1 stays -1.

        Raises NoRecordError for numbers beyond a dimension other than the first, which would be another record's.
        """
        if isinstance(index, tuple):
            index = torch.stack([torch.as_tensor(part, device="cpu") for part in index], -1)
        index = whole_numbers(index)
        if self.ndim == 1:
            return index.reshape(-1)
        if index.ndim < 2 or index.shape[-1] != self.ndim:
            message = f"an index of shape {tuple(index.shape)} does not fit a storage of {self.ndim} dimensions"
            raise SamplingError(message, hint=f"it is [N, {self.ndim}], or a tuple of {self.ndim} tensors")
        if bool((index[..., 1:] >= torch.tensor(self.shape[1:], device=index.device)).any()):
            raise NoRecordError(
                f"the records are {list(self.shape)}, and not all of {index.tolist()!s:.60} are among them"
            )
        flat = torch.zeros_like(index[..., 0])
        for size, part in zip(self.shape, index.unbind(-1)):
            flat = flat * size + part
        return torch.where((index < 0).any(-1), -1, flat).reshape(-1)

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The contents in memory, as copies."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Inside, `loads` and `load_state_dict` raise their errors, but change nothing."""
        self.only_checks = True
        try:
            yield
        except CheckedError:
            pass
        finally:
            self.only_checks = False

    def _accept(self) -> None:
        """Call this after checking a state, before anything is changed."""
        if self.only_checks:
            raise CheckedError

    def seek(self, row: int) -> None:
        """Continue writing at a row along the first dimension."""
        raise UsageError(f"a {type(self).__name__} has no next row")


# -- access by index ---------------------------------------------------------------------------------------------------


def require_records(storage: Storage) -> int:
    """The storage's length. Raises SamplingError if it is empty."""
    size = len(storage)
    if not size:
        raise SamplingError("cannot sample from an empty storage", hint="extend the buffer first")
    return size


def is_key(index: Any) -> bool:
    """Whether an index names a leaf instead of records."""
    if isinstance(index, tuple):
        return bool(index) and all(isinstance(name, str) for name in index)
    return isinstance(index, str)


def rows_as_index(storage: Storage, rows: torch.Tensor) -> torch.Tensor:
    """Flat rows in the form of ``index`` in batches: ``[N]``, or ``[N, ndim]`` for storages of several dimensions."""
    index = storage.coordinates(rows)
    return torch.stack(index, -1) if isinstance(index, tuple) else index


def read_records(storage: Storage, index: Any, dim: int) -> Any:
    """Records by ``index``; ``dim`` is the dimension of the data of `extend` that is the storage's first dimension."""
    if not dim:
        return storage[index]
    with _index_checked(storage, index):
        return tree_map(lambda leaf: leaf.transpose(dim, 0)[index], storage[:])


def write_records(storage: Storage, index: Any, value: Any, dim: int) -> None:
    """Change existing records by ``index``, see `read_records`. Raises SchemaError for data that do not fit."""
    if storage.ndim > 1:
        with _index_checked(storage, index):
            rows = torch.arange(len(storage), device="cpu").view(storage.shape).transpose(dim, 0)[index]
        index = tuple(torch.unravel_index(rows, storage.shape))
        value = copy_of(value)  # it may be a view of the same rows
        if is_tensor_collection(value):
            try:
                value = value.expand(rows.shape)
            except RuntimeError as error:
                given, wanted = list(value.batch_size), list(rows.shape)
                message = f"the data have batch size {given}, which does not fit the {wanted} records to change"
                raise SchemaError(message) from error
    storage[index] = value


@contextmanager
def _index_checked(storage: Storage, index: Any) -> Iterator[None]:
    """Raise RowIndexError if an index does not fit the storage."""
    try:
        yield
    except (IndexError, TypeError, ValueError) as error:
        message = f"{index!s:.60} does not fit records of shape {list(storage.shape)}: {reason(error)}"
        raise RowIndexError(message) from error


def read_column(storage: Storage, records: Any, key: Any) -> Any:
    """A leaf of all ``records``, which come from the storage. Raises UnknownKeyError when there is none."""
    try:
        return records[key]
    except (KeyError, TypeError, IndexError) as error:
        raise _unknown(storage, key) from error


def write_leaf(storage: Storage, key: Any, value: Any, index: Any = None, dim: int = 0) -> None:
    """Change a leaf of the records at ``index``, or of all. Raises UnknownKeyError, SchemaError, ReadOnlyError, UsageError."""
    if storage.immutable:
        storage.set(key, value)  # raises the error
    records = storage._records_to_change(slice(None) if index is None else index, key)
    if not is_tensor_collection(records):
        raise UsageError(f"a {type(storage).__name__} has no columns to write to", hint="use a LazyTensorStorage")
    leaf = records.get(key, None)
    if leaf is None:
        raise _unknown(storage, key)
    try:
        column = torch.empty_like(leaf)
        column.transpose(dim, 0).copy_(_held(torch.as_tensor(value, device=leaf.device).detach(), leaf.dtype))
    except (RuntimeError, TypeError, ValueError) as error:
        raise SchemaError(f"what is to be written to {'/'.join(as_key(key))} does not fit: {reason(error)}") from error
    records = records.set(key, column)
    if index is None:
        storage.set(slice(0, storage.filled), records, set_cursor=False)
    else:
        write_records(storage, index, records, 0)


def _held(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values as another dtype. Raises ValueError if it cannot hold them; floating-point numbers may be rounded."""
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
