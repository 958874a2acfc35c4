"""Compressed rows that no function changed, taken over as they are stored: compressing them anew is most of the work.

Whether a function left an observation alone is not believed but looked at: every batch is compared with what was decoded.
It is enough that the rows of the result are whole rows of the input in their order, so episodes may have been dropped. What
is taken over must have been compressed with the dictionary of the new dataset (`layout` sees to that where it can).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch

from ..storage.rows import Rows
from .successors import identical


@dataclass(frozen=True)
class Stored:
    """Some rows of a state leaf: ``rows`` ``[n, ...]``, row 0 is number ``first`` of ``leaf``; None where nobody reads them."""

    leaf: Rows
    first: int
    rows: torch.Tensor | None


@dataclass(frozen=True)
class Origin:
    """Where the steps of a batch come from: ``place`` (int64 ``[steps]``), the row of ``stored`` that each begins with."""

    place: torch.Tensor
    stored: Mapping[str, Stored]


@dataclass(frozen=True)
class Run:
    """Steps ``start..stop-1`` of a batch, whose states are rows of the input in a row, the first of them ``first``."""

    start: int
    stop: int
    first: int


def runs(place: torch.Tensor, done: torch.Tensor) -> list[Run] | None:
    """The steps of a batch in runs; None where the input's rows are no rows of what is made of these steps.

    ``done`` (bool ``[steps]``) says after which steps an episode of the result ends. One that ends where the input goes on,
    or goes on where the input ends, has other states.
    """
    gaps = place[1:] - place[:-1]
    whole = torch.where(done[:-1], gaps >= 2, gaps == 1)  # a final state lies between two episodes
    if not bool(whole.all()):
        return None
    edges = [0, *((done[:-1]).nonzero().squeeze(1) + 1).tolist(), len(place)]
    return [Run(start, stop, int(place[start])) for start, stop in pairwise(edges)]


def untouched(
    origin: Origin, columns: Mapping[str, torch.Tensor], names: Collection[str]
) -> tuple[list[str], list[Run]]:
    """Those of the leaves ``names`` whose rows in a result, and the successors of these, are bit by bit what was read.

    And the runs that the result consists of; no leaves where there are no such runs.
    """
    parts = runs(origin.place, columns["next/done"].view(-1)) or []
    found = [
        name
        for name, stored in origin.stored.items()
        if parts and name in names and _is_untouched(stored.rows, columns.get(name), columns.get("next/" + name), parts)
    ]
    return found, parts


def _is_untouched(
    rows: torch.Tensor | None, root: torch.Tensor | None, after: torch.Tensor | None, parts: list[Run]
) -> bool:
    if rows is None:
        return True
    if root is None or after is None:
        return False
    if root.dtype != rows.dtype or root.shape[1:] != rows.shape[1:]:
        return False
    if after.dtype != rows.dtype or after.shape != root.shape:
        return False
    return all(
        identical(tensor[run.start : run.stop], rows[first : first + run.stop - run.start])
        for run in parts
        for tensor, first in ((root, run.first), (after, run.first + 1))
    )
