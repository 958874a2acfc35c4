"""Compressed rows that no function changed, taken over as they are stored: compressing them anew is most of the work.

Whether a function left an observation alone is not believed but looked at: every batch is compared with what was decoded.
It is enough that the rows of the result are whole rows of the input in their order, so episodes may have been dropped. What
is taken over must have been compressed with the dictionary of the new dataset (`layout` sees to that where it can).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DamagedDatasetError
from ..storage.checksums import sum_ranges
from ..storage.manifest import Manifest
from ..storage.mapped import VERIFY

if TYPE_CHECKING:
    import torch

    from ..storage.rows import Rows


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


def check_unread(path: Path, manifest: Manifest, names: Collection[str]) -> None:
    """Sum up the compressed rows of leaves that will be copied without being decoded: damage must not get a new checksum.

    Raises DamagedDatasetError.
    """
    for name in (f"{leaf}/{file}" for leaf in sorted(names) for file in ("blob", "offsets")):
        ranges = manifest.files[name]
        lengths = [int(length) for length, _ in ranges]
        for number, (_, checksum) in enumerate(sum_ranges(path / name, lengths)):
            if checksum != ranges[number][1]:
                raise DamagedDatasetError(f"{path / name} is not what was written", hint=VERIFY)


def runs(place: torch.Tensor, done: torch.Tensor) -> list[Run] | None:
    """The steps of a batch in runs; None where the input's rows are no rows of what is made of these steps.

    ``done`` (bool ``[steps]``) says after which steps an episode of the result ends. One that ends where the input goes on,
    or goes on where the input ends, has other states.
    """
    import torch

    gaps = place[1:] - place[:-1]
    whole = torch.where(done[:-1], gaps >= 2, gaps == 1)  # a final state lies between two episodes
    if not bool(whole.all()):
        return None
    edges = [0, *((done[:-1]).nonzero().squeeze(1) + 1).tolist(), len(place)]
    return [Run(start, stop, int(place[start])) for start, stop in pairwise(edges)]


def untouched(
    origin: Origin, columns: Mapping[str, torch.Tensor], parts: list[Run], names: Collection[str]
) -> list[str]:
    """Those of the leaves ``names`` whose rows in a result, and the successors of these, are bit by bit what was read."""
    return [
        name
        for name, stored in origin.stored.items()
        if name in names and _is_untouched(stored.rows, columns.get(name), columns.get("next/" + name), parts)
    ]


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
    from .chain import identical

    return all(
        identical(tensor[run.start : run.stop], rows[first : first + run.stop - run.start])
        for run in parts
        for tensor, first in ((root, run.first), (after, run.first + 1))
    )
