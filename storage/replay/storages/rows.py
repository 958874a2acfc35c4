"""Rows by index: the rows that an index names, and rows of tensors read like rows of a dataset folder.

`TensorRows` reads whole rows of a tensor in memory. `TimelineRows` reads rows by their position in time, so that consecutive
steps are one window, wherever the ring begins. Both have the operations of `storage.codecs.codec.Rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from ....errors import SamplingError, SchemaError, UnknownKeyError, reason
from ...codecs import PLAIN
from ...codecs.codec import Rows
from ...memory_map import in_numpy, widest_word
from ...row_index import is_part_of_all, lookup, numbers_or_mask, row_index
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


def take_windows(rows: Any, first: torch.Tensor, length: int) -> torch.Tensor:
    """``windows`` for rows, by means of their ``take``."""
    index = first[:, None] + torch.arange(length, device="cpu")
    return rows.take(index.reshape(-1)).view(len(first), length, *rows.leaf.shape)


class TensorRows:
    """A contiguous tensor ``[rows, *shape]``; rows are storage rows."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        size = tensor.element_size() * prod(tensor.shape[1:])
        self.leaf = TensorLeaf(name, tuple(tensor.shape[1:]), tensor.dtype, size)
        self.count, self.tensor = len(tensor), tensor
        self._in_numpy = in_numpy(tensor)
        self._wide: torch.Tensor | None = None
        width, word = widest_word(size) if size else (0, None)
        # For short rows, views cost more than wider words save.
        is_wider = size >= 64 and width > tensor.element_size() and tensor.data_ptr() % width == 0
        if word is not None and is_wider and not self._in_numpy:
            self._wide = tensor.view(self.count, -1).view(torch.uint8).view(word)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        if self._in_numpy:  # see `codecs.raw`
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

    def __init__(self, rows: Rows, timeline: Timeline) -> None:
        self.leaf, self._rows, self._timeline = rows.leaf, rows, timeline
        self.count = int(timeline.starts[-1])

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._rows.take(self._timeline.rows(index))

    windows = take_windows

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self.take(torch.arange(start, stop, device="cpu")) if stop > start else self._rows.block(0, 0)


def by_position(rows: Rows, timeline: Timeline) -> Rows:
    """Return rows to be read by position; ``rows`` itself if positions are rows."""
    return rows if timeline.identity else TimelineRows(rows, timeline)


def leaves_of(data: Any, ndim: int) -> dict[str, Rows] | None:
    """Return the leaves to be read one by one, if the data are a plain TensorDict of plain tensors; otherwise None."""
    if type(data) is not TensorDict or data.names != [None] * len(data.batch_size):
        return None
    leaves: dict[str, Any] = {}
    for key, leaf in data.items(include_nested=True):
        if isinstance(leaf, torch.Tensor):
            path = path_of(key)
            if path.count("/") != len(as_key(key)) - 1 or not leaf.is_contiguous() or leaf.is_neg() or leaf.is_conj():
                return None
            leaves[path] = TensorRows(path, leaf.as_subclass(torch.Tensor).flatten(0, ndim - 1))
        elif type(leaf) is not TensorDict or leaf.batch_size != data.batch_size or not len(leaf.keys()):
            return None
    return leaves or None


# -- indices -----------------------------------------------------------------------------------------------------------


def whole_numbers(index: Any) -> torch.Tensor:
    """Row numbers as an int64 tensor. Raises SamplingError for anything else."""
    try:
        rows = torch.as_tensor(list(index) if isinstance(index, range) else index, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise SamplingError(f"rows are whole numbers, not {index!r}") from error
    if rows.numel() and (rows.is_floating_point() or rows.dtype == torch.bool):
        raise SamplingError(f"rows are whole numbers, not {rows.dtype}")
    return rows.long()


def is_number(index: Any) -> bool:
    """Return whether an index names one row, so that the result has no row dimension."""
    if isinstance(index, (torch.Tensor, np.ndarray)):
        return not index.ndim and index.dtype not in (torch.bool, np.bool_)
    return isinstance(index, (int, np.integer)) and not isinstance(index, bool)


def written_rows(cursor: Any, filled: int) -> slice | torch.Tensor:
    """Return the rows along the first dimension to write to: a slice of step 1, or numbers (int64 ``[n]``).

    Numbers from 0 on may lie behind the ``filled`` rows; negative numbers, open slices and masks select from these. Raises
    UnknownKeyError for anything that cannot index them.
    """
    if isinstance(cursor, range) and cursor.step == 1:
        cursor = slice(cursor.start, cursor.stop)
    if isinstance(cursor, slice) and cursor.step in (None, 1):
        first, end = cursor.start or 0, cursor.stop
        if all(isinstance(one, (int, np.integer)) and one >= 0 for one in (first, end)):
            return slice(int(first), max(int(first), int(end)))
    if is_number(cursor):
        cursor = [int(cursor)]
    if not is_part_of_all(cursor):
        numbers = numbers_or_mask(cursor, "record").reshape(-1)
        if not len(numbers) or int(numbers.min()) >= 0:
            return numbers
    rows = row_index(cursor, filled, "record")
    return torch.arange(filled, device="cpu")[rows].reshape(-1)


def numbers_in(rows: slice | torch.Tensor) -> torch.Tensor:
    """Return what `written_rows` returned as numbers, int64 ``[n]``."""
    return torch.arange(rows.start, rows.stop, device="cpu") if isinstance(rows, slice) else rows


def check_no_gap(rows: slice | torch.Tensor, filled: int, capacity: int) -> None:
    """Raise SchemaError for rows beyond the capacity, or if rows never written would lie before those to be written."""
    if isinstance(rows, slice):
        if rows.start <= filled and rows.stop <= capacity:
            return
        rows = numbers_in(rows)
    if not len(rows):
        return
    if int(rows.max()) >= capacity:
        raise SchemaError(f"row {int(rows.max())} cannot be written: the storage has room for {capacity}")
    beyond = rows[rows >= filled].unique()
    if len(beyond) and int(beyond[-1]) - filled + 1 > len(beyond):
        message = f"rows {rows.tolist()!s:.60} are not next to the {filled} that were written"
        raise SchemaError(message, hint="rows are written in order: extend() and add() take the next ones")


def index_error(index: Any, shape: Any, error: Exception) -> UnknownKeyError:
    """Return the error for an index that does not fit records of a shape."""
    return UnknownKeyError(f"{index!s:.60} does not fit records of shape {list(shape)}: {reason(error)}")
