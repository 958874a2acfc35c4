"""Rows of tensors in memory, read the way the rows of a dataset folder are: whole rows, on the widest words they allow.

`TensorRows` reads by row. `TimelineRows` reads the same rows by their position in time, so that a window of consecutive
steps is one however the ring lies. Both have the operations of `storage.codecs.codec.Rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...codecs import PLAIN
from ...memory_map import SHORT_ROW, in_numpy, widest_word
from ..timeline import Timeline


@dataclass(frozen=True)
class Field:
    """What the reader must know of a tensor: its path and the shape and size of one row."""

    name: str
    shape: tuple[int, ...]
    row_bytes: int
    kind: str = "step"
    codec: str = PLAIN
    constant: Any = None


class Readable(Protocol):
    """What both the leaves of a dataset and tensors in memory can do (see `storage.codecs.codec.Rows`)."""

    leaf: Any

    @property
    def count(self) -> int: ...

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor: ...

    def take(self, index: torch.Tensor) -> torch.Tensor: ...

    def block(self, start: int, stop: int) -> torch.Tensor: ...


class TensorRows:
    """A contiguous tensor ``[rows, *shape]``; rows are storage rows."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        shape = tuple(tensor.shape[1:])
        size = tensor.element_size()
        for part in shape:
            size *= part
        self.leaf = Field(name, shape, size)
        self.count, self.tensor = len(tensor), tensor
        self._wide: torch.Tensor | None = None
        width, word = widest_word(size) if size else (0, None)
        # Of short rows the views cost more than wider words save.
        if word is not None and size >= 64 and width > tensor.element_size() and tensor.data_ptr() % width == 0:
            self._wide = tensor.view(self.count, -1).view(torch.uint8).view(word)

        self._short = size <= SHORT_ROW and in_numpy(tensor)

    def take(self, index: torch.Tensor) -> torch.Tensor:
        if self._short and not index.is_cuda:
            # The view is made each time: torch moves a tensor that other processes are to see, and the old one stays behind.
            return torch.from_numpy(self.tensor.numpy().take(index.numpy(), 0))
        index = index.to(self.tensor.device)
        if self._wide is None:
            return self.tensor.index_select(0, index)
        return self._wide.index_select(0, index).view(self.tensor.dtype).view(len(index), *self.leaf.shape)

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        return _take_windows(self, first, length)

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self.tensor[start:stop]


class TimelineRows:
    """Other rows, by position: ``count`` positions, of which ``timeline`` knows the rows."""

    def __init__(self, rows: Readable, timeline: Timeline) -> None:
        self.leaf, self._rows, self._timeline = rows.leaf, rows, timeline
        self.count = int(timeline.starts[-1])

    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self._rows.take(self._timeline.rows(index))

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        if length == 1:
            return self.take(first).unsqueeze(1)
        return _take_windows(self, first, length)

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self.take(torch.arange(start, stop)) if stop > start else self._rows.block(0, 0)


class DistinctRows:
    """Other rows, each of them read once however often it is wanted: for rows that have to be decoded."""

    def __init__(self, rows: Readable) -> None:
        self.leaf, self.count, self._rows = rows.leaf, rows.count, rows
        self.block = rows.block

    def take(self, index: torch.Tensor) -> torch.Tensor:
        wanted, place = torch.unique(index, return_inverse=True)
        return self._rows.take(wanted).index_select(0, place)

    def windows(self, first: torch.Tensor, length: int) -> torch.Tensor:
        return _take_windows(self, first, length)


def _take_windows(rows: Readable, first: torch.Tensor, length: int) -> torch.Tensor:
    index = first[:, None] + torch.arange(length)
    return rows.take(index.reshape(-1)).view(len(first), length, *rows.leaf.shape)


def by_position(rows: Readable, timeline: Timeline) -> Readable:
    """Rows to be read by position; the rows themselves where that is the same."""
    return rows if timeline.identity else TimelineRows(rows, timeline)
