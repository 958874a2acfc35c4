"""The base class of storages, which keep the records of a buffer.

A storage has rows. Along its first dimension it is written like a ring; ``ndim`` is the number of leading dimensions of the
data that count as rows: with ``ndim=2`` a storage is ``[time, environments]``, ``max_size`` counts both, and row (t, b) also
has the flat number ``t * environments + b``.

    ring of 6 along time, 4 written                 ring of 6, full, the last write went to row 1
    row    0 1 2 3 . .                              row    0 1 2 3 4 5
           oldest = 0, newest = 3                                ^ oldest = 2, newest = 1

A buffer reads with ``get(index)``. Storages of this package also have `leaves`, from which batches are read leaf by leaf, with
windows if asked for; a storage of your own need not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection, lazy_stack

from ....errors import SamplingError, UsageError
from ...codecs.codec import Rows
from ...keywords import whole_number
from ...row_index import NoRecordError
from ..saved import Saved
from ..timeline import Edges, Key, Timeline, entry_at
from .rows import whole_numbers


class Storage(Saved):
    """Base of all storages.

    ``compilable`` is accepted as by TorchRL's storages and has no effect. ``len(storage)`` counts rows (over all dimensions);
    ``version`` changes with every write, so that what was computed from earlier contents can be recognised.
    """

    #: Whether the storage is read-only.
    immutable = False
    #: Whether ``get`` returns several records as a list of them.
    is_list = False
    #: The paths of the leaves to read; None for all.
    keys: tuple[str, ...] | None = None
    #: Whether the rows are a ring in order of time, from the oldest to the newest.
    in_order = True
    #: The row along the first dimension that was written last, -1 if none was.
    newest = -1
    #: Rows along the first dimension that hold data.
    filled: int
    #: Rows for each row along the first dimension.
    width = 1

    def __init__(self, max_size: int, *, ndim: int = 1, compilable: bool = False) -> None:
        self.max_size: int = whole_number("max_size", max_size, 1)
        #: The maximum number of rows along the first dimension.
        self.capacity = self.max_size
        self.ndim: int = whole_number("ndim", ndim, 1)
        self._version = 0
        self._timelines: dict[Edges, tuple[Any, Timeline]] = {}

    # -- what a storage must say of itself ---------------------------------------------------------------------------

    @property
    def version(self) -> Any:
        """Changes with the contents."""
        return self._version

    def get(self, index: Any) -> Any:
        """Return rows: an int, slice, sequence, tensor, or a tuple of one tensor for each dimension."""
        raise NotImplementedError

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write rows (along the first dimension); ``set_cursor``: these rows are now the newest."""
        raise NotImplementedError

    def leaves(self) -> dict[str, Rows] | None:
        """Return the leaves by path, to be read by flat row; None if only whole records can be read.

        The same object as long as leaves are where they were: a write does not make readers begin again.
        """
        return None

    def empty(self) -> None:
        """Remove all records; the memory stays allocated."""
        self._empty()

    def _empty(self) -> None:
        raise NotImplementedError

    # -- derived -----------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """The rows that hold data, ``[filled, *further dimensions]``."""
        return torch.Size([self.filled])

    def capacity_for(self, batch: Any) -> int:
        """Return the capacity once a batch ``[n, ...]`` is written; the first batch determines the width of the storage."""
        return self.capacity

    @property
    def batch_tail(self) -> tuple[int, ...]:
        """Batch dimensions of a record, without the dimensions that count as rows."""
        return ()

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

    def seek(self, row: int) -> None:
        """Continue writing at a row along the first dimension."""
        if self.filled and row != self.cursor:
            self.newest = (row - 1) % self.capacity
            self.in_order = False
            self._version += 1

    @property
    def oldest(self) -> int:
        """The row along the first dimension that is first in time."""
        return self.cursor if self.is_full else 0

    def _note_write(self, rows: slice | torch.Tensor, before: int, set_cursor: bool) -> None:
        """Note that rows (as `written_rows` returns them) were written, when ``before`` of them were filled."""
        self._version += 1
        if isinstance(rows, slice):
            count, first, last, end = rows.stop - rows.start, rows.start, rows.stop - 1, rows.stop
            consecutive = True
        else:
            if not len(rows):
                return
            count, first, last, end = len(rows), int(rows[0]), int(rows[-1]), int(rows.max()) + 1
            consecutive = count == 1 or bool((rows.diff() % self.capacity == 1).all())
        if set_cursor or end > before:  # else records were changed in place
            follows = first == ((self.newest + 1) % self.capacity if before else 0)
            self.in_order = consecutive and (count >= self.filled or (self.in_order and follows))
        if set_cursor or before == 0:
            self.newest = last
        elif self.filled > before:
            self.newest = self.filled - 1

    def column(self, key: Key) -> torch.Tensor | None:
        """Return one leaf of all rows, flat: ``[len, ...]``; None if there is no such leaf."""
        return self.leaf_at(key, torch.arange(len(self), device="cpu"))

    def leaf_at(self, key: Key, rows: torch.Tensor) -> torch.Tensor | None:
        """Return a leaf at flat rows, ``[n, *shape]``, in new memory; None if there is no such leaf."""
        leaves = self.leaves() if not reads_by_get(self) else None
        if leaves is not None:
            name = "/".join(key)
            return leaves[name].take(rows) if name in leaves else None
        records = self.get(self.coordinates(rows))
        if isinstance(records, list):
            records = lazy_stack(records) if records and all(map(is_tensor_collection, records)) else None
        found = entry_at(records, key) if is_tensor_collection(records) else None
        return found.clone() if isinstance(found, torch.Tensor) else None

    def timeline(self, edges: Edges) -> Timeline:
        """Return the steps in order of time with their episodes, kept until a write.

        Raises UsageError if the order is unknown.
        """
        if not self.in_order:
            message = "the rows are not in order of time: records were written to rows of choice"
            raise UsageError(message, hint="slices, stacks and n-step returns need a ring: a RoundRobinWriter")
        known = self._timelines.get(edges)
        if known is None or known[0] != self.version:
            require_records(self)
            made = edges.timeline(self.column, self.filled, self.width, self.oldest)
            known = self._timelines[edges] = (self.version, made)
        return known[1]

    def will_read(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Announce that rows ``start..stop-1`` of these ranges are drawn next: remote rows may be fetched ahead of time."""

    def __getitem__(self, index: Any) -> Any:
        return self.get(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.set(index, value, set_cursor=False)

    def __iter__(self) -> Iterator[Any]:
        return (self.get(row) for row in range(self.filled))

    def coordinates(self, rows: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return flat rows in the form that ``get`` takes: unchanged, or one tensor for each dimension."""
        return rows if self.ndim == 1 else tuple(torch.unravel_index(rows, (self.capacity, *self.shape[1:])))

    def flat(self, index: Any) -> torch.Tensor:
        """Return flat rows ``[N]`` from ``[N]``, ``[N, ndim]`` or a tuple of ``ndim`` tensors; -1 stays -1.

        Raises NoRecordError for numbers beyond a dimension other than the first, which would be another record's.
        """
        if isinstance(index, tuple):
            index = torch.stack([torch.as_tensor(part, device="cpu") for part in index], -1)
        index = whole_numbers(index).cpu()
        if self.ndim == 1:
            return index.reshape(-1)
        if index.ndim < 2 or index.shape[-1] != self.ndim:
            message = f"an index of shape {tuple(index.shape)} does not fit a storage of {self.ndim} dimensions"
            raise SamplingError(message, hint=f"it is [N, {self.ndim}], or a tuple of {self.ndim} tensors")
        if bool((index[..., 1:] >= torch.tensor(self.shape[1:], device="cpu")).any()):
            raise NoRecordError(
                f"the records are {list(self.shape)}, and not all of {index.tolist()!s:.60} are among them"
            )
        flat = torch.zeros_like(index[..., 0])
        for size, part in zip(self.shape, index.unbind(-1)):
            flat = flat * size + part
        return torch.where((index < 0).any(-1), -1, flat).reshape(-1)

    def index_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Flat rows in the form of ``index`` in batches: ``[N]``, or ``[N, ndim]`` for storages of several dimensions."""
        index = self.coordinates(rows)
        return torch.stack(index, -1) if isinstance(index, tuple) else index


def require_records(storage: Storage) -> int:
    """Return the storage's length. Raises SamplingError if it is empty."""
    size = len(storage)
    if not size:
        raise SamplingError("cannot sample from an empty storage", hint="extend the buffer first")
    return size


_GETS: dict[type, bool] = {}


def reads_by_get(storage: Any) -> bool:
    """Whether a user's ``get`` must be called: a class outside of this package defines it, or it was set on the storage."""
    kind = type(storage)
    found = _GETS.get(kind)
    if found is None:
        owner = next((one for one in kind.__mro__ if "get" in vars(one)), None)
        found = _GETS[kind] = owner is not None and not owner.__module__.startswith(__name__.rpartition(".storage.")[0])
    return found or "get" in vars(storage)
