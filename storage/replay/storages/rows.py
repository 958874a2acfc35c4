"""Rows of trees by index: the rows that an index names, and rows of tensors read like rows of a dataset folder.

`TensorRows` reads whole rows of a tensor in memory. `TimelineRows` reads rows by their position in time, so that consecutive
steps are one window, wherever the ring begins. Both have the operations of `storage.codecs.codec.Rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict

from ....errors import RowIndexError, SamplingError, SchemaError, reason
from ...codecs import PLAIN
from ...memory_map import in_numpy, widest_word
from ...row_index import lookup, numbers_or_mask
from ..timeline import Timeline, as_key, path_of


@dataclass(frozen=True)
class TensorLeaf:
    """The facts about a tensor that the reader needs: its path, and the shape, dtype and size of one row."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    row_bytes: int
    kind: str = "step"
    codec: str = PLAIN


class Readable(Protocol):
    """The interface of leaves of a dataset and of tensors in memory (see `storage.codecs.codec.Rows`)."""

    leaf: Any

    @property
    def count(self) -> int: ...

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor: ...

    def take(self, index: torch.Tensor) -> torch.Tensor: ...

    def block(self, start: int, stop: int) -> torch.Tensor: ...


def take_windows(rows: Readable, first: torch.Tensor, length: int) -> torch.Tensor:
    """``windows`` for rows, by means of their ``take``."""
    index = first[:, None] + torch.arange(length, device="cpu")
    return rows.take(index.reshape(-1)).view(len(first), length, *rows.leaf.shape)


class TensorRows:
    """A contiguous tensor ``[rows, *shape]``; rows are storage rows."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        size = tensor.element_size() * prod(tensor.shape[1:])
        self.leaf = TensorLeaf(name, tuple(tensor.shape[1:]), tensor.dtype, size)
        self.count, self.tensor = len(tensor), tensor
        self._wide: torch.Tensor | None = None
        self._in_numpy = in_numpy(tensor)
        width, word = widest_word(size) if size else (0, None)
        # For short rows, views cost more than wider words save.
        is_wider = size >= 64 and width > tensor.element_size() and tensor.data_ptr() % width == 0
        if word is not None and is_wider and not self._in_numpy:
            self._wide = tensor.view(self.count, -1).view(torch.uint8).view(word)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        if self._in_numpy and not index.is_cuda:  # see `codecs.raw`
            # The view is made each time: torch moves a tensor to shared memory, and an old view keeps the old memory.
            return lookup(self.tensor, index)
        index = index.to(self.tensor.device)
        if self._wide is None:
            return self.tensor.index_select(0, index)
        return self._wide.index_select(0, index).view(self.tensor.dtype).view(len(index), *self.leaf.shape)

    windows = take_windows

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self.tensor[start:stop]


class TimelineRows:
    """Rows read by position: ``count`` positions, which ``timeline`` maps to rows."""

    def __init__(self, rows: Readable, timeline: Timeline) -> None:
        self.leaf, self._rows, self._timeline = rows.leaf, rows, timeline
        self.count = int(timeline.starts[-1])

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._rows.take(self._timeline.rows(index))

    windows = take_windows

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self.take(torch.arange(start, stop, device="cpu")) if stop > start else self._rows.block(0, 0)


class DistinctRows:
    """Rows of which each is read once per call, even if requested several times: for rows that must be decoded."""

    def __init__(self, rows: Readable) -> None:
        self.leaf, self.count, self.block, self._rows = rows.leaf, rows.count, rows.block, rows

    def take(self, index: torch.Tensor) -> torch.Tensor:
        wanted, place = torch.unique(index, return_inverse=True)
        return self._rows.take(wanted).index_select(0, place)

    windows = take_windows


def by_position(rows: Readable, timeline: Timeline) -> Readable:
    """Rows to be read by position; ``rows`` itself if positions are rows."""
    return rows if timeline.identity else TimelineRows(rows, timeline)


def readable_fields(data: Any, ndim: int) -> dict[str, Readable] | None:
    """The leaves to be read one by one, if the data are a plain TensorDict of plain tensors; otherwise None."""
    if not isinstance(data, TensorDict) or data.names != [None] * len(data.batch_size):
        return None
    fields: dict[str, Readable] = {}
    for key, leaf in data.items(include_nested=True):
        if isinstance(leaf, torch.Tensor):
            path = path_of(key)
            is_dense = leaf.layout == torch.strided and leaf.is_contiguous()
            if path.count("/") != len(as_key(key)) - 1 or not is_dense or leaf.is_neg() or leaf.is_conj():
                return None
            fields[path] = TensorRows(path, plain(leaf).flatten(0, ndim - 1))
        elif type(leaf) is not TensorDict or leaf.batch_size != data.batch_size or not len(leaf.keys()):
            return None
    return fields or None


# -- indices -----------------------------------------------------------------------------------------------------------


def whole_numbers(index: Any) -> torch.Tensor:
    """Row numbers as an int64 tensor. Raises SamplingError for anything else."""
    try:
        rows = torch.as_tensor(list(index) if isinstance(index, range) else index, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise SamplingError(f"rows are whole numbers, not {index!r}") from error
    if rows.numel() and (rows.is_floating_point() or rows.dtype == torch.bool):
        raise SamplingError(f"rows are whole numbers, not {rows.dtype}")
    return rows.long().cpu()


def is_number(index: Any) -> bool:
    """Whether an index names one row, so that the result has no row dimension."""
    if isinstance(index, (torch.Tensor, np.ndarray)):
        return not index.ndim and index.dtype != torch.bool
    return isinstance(index, (int, np.integer)) and not isinstance(index, bool)


def written_rows(cursor: Any, filled: int, given: int) -> Any:
    """An index of rows to write to, as numbers from the first row.

    Negative numbers, open slices and masks refer to the ``filled`` rows; for an empty storage an open slice is as long as the
    data ``given``. Raises RowIndexError for numbers before the first row, and masks of another length.
    """
    if cursor is Ellipsis:
        cursor = slice(None)
    if isinstance(cursor, slice):
        start, stop = cursor.start, cursor.stop
        try:
            numbers = range(*cursor.indices(filled))
        except (TypeError, ValueError) as error:
            raise RowIndexError(f"{cursor} is not a slice of records: {reason(error)}") from error
        if numbers.step < 0:
            return torch.tensor(numbers, dtype=torch.int64, device="cpu")
        if stop is None or stop < 0 or (start is not None and start < 0):
            return slice(*cursor.indices(filled or given))
        return cursor
    if isinstance(cursor, (bool, np.bool_)):
        raise RowIndexError(f"{cursor} is not the number of a record")
    rows = (
        torch.tensor(int(cursor), device="cpu")
        if isinstance(cursor, (int, np.integer))
        else numbers_or_mask(cursor, "record")
    )
    if rows.dtype == torch.bool:
        if rows.ndim > 1:
            return rows
        if rows.shape != (filled,):
            raise RowIndexError(f"a mask of {len(rows) if rows.ndim else 'no dimension'} for {filled} records")
        return rows.nonzero()[:, 0]
    if rows.numel() and int(rows.min()) < 0:
        if int(rows.min()) < -filled:
            raise RowIndexError(f"there is no record {int(rows.min())}: there are {filled}")
        return torch.where(rows < 0, rows + filled, rows)
    return rows


def numbers_of(cursor: Any, capacity: int) -> range | torch.Tensor:
    """The rows along the first dimension that `written_rows` (or a tuple of numbers for each dimension) names, in its order."""
    if isinstance(cursor, slice):
        return range(*cursor.indices(capacity))
    rows = torch.as_tensor(cursor[0] if isinstance(cursor, tuple) else cursor, device="cpu")
    return rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows.reshape(-1)


def check_no_gap(cursor: Any, rows: range | torch.Tensor, filled: int) -> None:
    """Raise SchemaError if never-written rows would lie between the existing rows and the rows to be written."""
    if isinstance(rows, torch.Tensor):
        beyond = rows[rows >= filled].unique()
        is_gap = len(beyond) > 0 and int(beyond[-1]) - filled + 1 > len(beyond)
    else:
        is_gap = (cursor.start or 0) > filled or (rows.step > 1 and cursor.stop > filled + 1)
    if is_gap:
        message = f"rows {cursor!s:.60} are not next to the {filled} that were written"
        raise SchemaError(message, hint="rows are written in order: extend() and add() take the next ones")


def take_rows(data: Any, index: Any) -> Any:
    """The rows of a leaf that an index names; the numbers of an index of numbers are >= 0."""
    by_number = isinstance(index, torch.Tensor) and index.ndim == 1 and index.dtype == torch.int64
    if by_number and type(data) is torch.Tensor and data.ndim:
        return data.index_select(0, index.to(data.device))
    return data[index]


def plain(leaf: Any) -> Any:
    return leaf.as_subclass(torch.Tensor) if isinstance(leaf, torch.Tensor) and type(leaf) is not torch.Tensor else leaf
