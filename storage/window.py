"""Windows: consecutive rows around many steps, read at once, never across episodes.

    episode e            |  s0  s1  s2  s3  s4 |
    frame stack of 4 at s1 and its successor:
        wanted      s-2  s-1  s0  s1  s2
        read         0    0   s0  s1  s2         rows outside the episode are zeros (or repeat its edge)

Every way of sampling is this one read: a transition is two state rows, a stack of k with its successor k + 1, a slice of
length L is L + 1. ``observation`` and ``("next", "observation")`` are made of the rows read.

`plan_windows` decides where to read from, for many batches at once if need be; `read_windows` then costs one gather, and
a little more for the few windows that cross an edge. `nest` makes a TensorDict of the columns that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDict

from .codecs.codec import Rows
from .memory_map import flattened, widest_word

Pad = Literal["zero", "repeat"]


@dataclass
class Windows:
    """``length`` rows from each of ``start`` (int64 ``[B]``, all inside the leaf; None: the leaf is shorter than that).

    Then, counting the rows read as one list of ``count * length``: those at ``copied`` are replaced by the rows ``source``
    of the leaf, and those at ``blank`` by zeros; those at ``outside`` lie outside their range (int64, ascending).
    """

    start: torch.Tensor | None
    count: int
    length: int
    copied: np.ndarray
    source: np.ndarray
    blank: np.ndarray
    outside: np.ndarray

    def split(self, sizes: Sequence[int]) -> list[Windows]:
        """Return the same in consecutive groups of these many windows."""
        edges = np.append(0, np.cumsum(sizes)) * self.length
        copied, blank, outside = (
            np.searchsorted(places, edges).tolist() for places in (self.copied, self.blank, self.outside)
        )
        starts = [None] * len(sizes) if self.start is None else self.start.split(list(sizes))
        return [
            Windows(
                starts[i],
                size,
                self.length,
                self.copied[copied[i] : copied[i + 1]] - edges[i],
                self.source[copied[i] : copied[i + 1]],
                self.blank[blank[i] : blank[i + 1]] - edges[i],
                self.outside[outside[i] : outside[i + 1]] - edges[i],
            )
            for i, size in enumerate(sizes)
        ]


def plan_windows(
    rows: int, first: torch.Tensor, length: int, low: torch.Tensor, high: torch.Tensor, pad: Pad = "zero"
) -> Windows:
    """Windows of ``length`` rows from each ``first`` in a leaf of ``rows`` rows; those outside ``[low, high)`` are padded.

    ``first``, ``low`` and ``high`` are int64 ``[B]`` row numbers of the leaf; ``first`` itself may lie outside. Every
    range must hold at least one row. ``zero`` fills with zeros, ``repeat`` with the nearest row of the range.
    """
    begin, least, most = first.numpy(), low.numpy(), high.numpy()
    few = np.flatnonzero((begin < least) | (begin + length > most))
    wanted = begin[few, None] + np.arange(length)
    inside = np.clip(wanted, least[few, None], most[few, None] - 1)
    outside = inside != wanted
    start, moved = None, np.ones((len(few), 1), bool)
    if length <= rows:
        # A window that crosses the edge of its episode holds rows of the next episode there. A window that would cross the edge
        # of the leaf is read from another place, and its own rows are then read one by one.
        read = np.clip(begin, 0, rows - length)
        start, moved = torch.from_numpy(read), (read != begin)[few, None]
    places = few[:, None] * length + np.arange(length)
    copy = outside | moved if pad == "repeat" else moved & ~outside
    beyond = places[outside]
    blank = beyond if pad == "zero" else beyond[:0]
    return Windows(start, len(begin), length, places[copy], inside[copy], blank, beyond)


def read_windows(rows: Rows, windows: Windows) -> torch.Tensor:
    """Return the rows of planned windows: a fresh ``[B, length, *shape]``."""
    count, length, shape = windows.count, windows.length, rows.leaf.shape
    if windows.start is None:
        out = rows.block(0, 0).new_empty(count, length, *shape)
    else:
        out = rows.windows(windows.start, length)
    if len(windows.copied):
        fixed = as_words(rows.take(torch.from_numpy(windows.source)))
        words = as_words(out.view(count * length, *shape))
        words.index_copy_(0, torch.from_numpy(windows.copied).to(out.device), fixed)
    if len(windows.blank):
        words = as_words(out.view(count * length, *shape))
        words.index_fill_(0, torch.from_numpy(windows.blank).to(out.device), 0)
    return out


#: Dtypes of rows that are copied and filled as they are.
_WORDS = {torch.float32, torch.float64, torch.int32, torch.int64}


def as_words(rows: torch.Tensor) -> torch.Tensor:
    """Contiguous rows ``[n, *shape]`` in the same memory, to copy and fill: as they are, or as whole numbers ``[n, words]``.

    torch can do neither with some dtypes (uint16, for example), and bytes are three times faster eight at a time.
    """
    if rows.dtype in _WORDS:
        return rows
    row_bytes = rows.shape[1:].numel() * rows.element_size()
    width, word = widest_word(row_bytes) if row_bytes else (1, torch.uint8)
    if not rows.numel():  # its strides may be 0, as which torch views no other dtype
        return rows.new_empty(len(rows), row_bytes // width, dtype=word)
    return flattened(rows).view(word).view(len(rows), -1)


def read_window(
    rows: Rows, first: torch.Tensor, length: int, low: torch.Tensor, high: torch.Tensor, pad: Pad = "zero"
) -> torch.Tensor:
    """`plan_windows` and `read_windows` in one: ``[B, length, *shape]``."""
    return read_windows(rows, plan_windows(rows.count, first, length, low, high, pad))


def nest(columns: Mapping[str, torch.Tensor], batch: tuple[int, ...], device: torch.device | None = None) -> TensorDict:
    """A nested TensorDict from path names (``"next/reward"``); every tensor must begin with ``batch`` and lie on ``device``."""
    size = torch.Size(batch)
    # The constructor checks every shape; here they are known to be right.
    nested: TensorDict = _nest(columns, partial(TensorDict._new_unsafe, batch_size=size, device=device))
    return nested


def nest_dictionary(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dictionaries from path names."""
    nested: dict[str, Any] = _nest(columns, lambda level: level)
    return nested


def _nest(columns: Mapping[str, Any], made: Callable[[dict[str, Any]], Any]) -> Any:
    """What ``made`` makes of each level, the top last."""
    places, parents = _plan_levels(tuple(columns))
    levels: list[dict[str, Any]] = [{} for _ in parents]
    for (level, last), column in zip(places, columns.values()):
        levels[level][last] = column
    for level, (parent, name) in enumerate(parents[:-1]):
        levels[parent][name] = made(levels[level])
    return made(levels[-1])


@lru_cache(256)
def _plan_levels(names: tuple[str, ...]) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """(level, key) of every column, and (level above, key) of every level: the deepest come first, the top last."""
    paths = [tuple(name.split("/")) for name in names]
    above = [path[:-1] for path in paths]
    above += [path[:depth] for path in above for depth in range(len(path))]  # a level may hold nothing but deeper ones
    levels = sorted(dict.fromkeys([*above, ()]), key=len, reverse=True)
    number = {path: place for place, path in enumerate(levels)}
    parents = [(number[path[:-1]], path[-1]) if path else (0, "") for path in levels]
    return [(number[path[:-1]], path[-1]) for path in paths], parents
