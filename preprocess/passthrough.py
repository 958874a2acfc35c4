"""Compressed rows that no function changed are copied as they are stored, because most of the time goes into compression.

Every batch is compared with the decoded rows to find out whether a function changed an observation. The rows of the result must
be whole rows of the input in the same order, so episodes may have been dropped. Copied rows must have been compressed with
the dictionary of the new dataset, which `probe` takes from the input where it can.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch

from ..storage.codecs.codec import Rows
from .successors import identical


@dataclass(frozen=True)
class SourceRows:
    """Rows of a state leaf of the input: ``rows`` ``[n, ...]``, the first is number ``first`` of ``leaf``.

    ``rows`` is None where they were not decoded.
    """

    leaf: Rows
    first: int
    rows: torch.Tensor | None


@dataclass(frozen=True)
class SourceStates:
    """The states that the steps of a batch come from: ``place`` (int64 ``[steps]``) is the row of ``leaves`` that each step
    begins with."""

    place: torch.Tensor
    leaves: Mapping[str, SourceRows]


@dataclass(frozen=True)
class StepRun:
    """Steps ``start..stop-1`` of a batch whose states are consecutive rows of the input, beginning with row ``first``."""

    start: int
    stop: int
    first: int


def split_runs(place: torch.Tensor, done: torch.Tensor) -> list[StepRun] | None:
    """The steps of a batch in runs; None where the states of the result are not consecutive rows of the input.

    ``done`` (bool ``[steps]``): after which steps an episode of the result ends. An episode that ends where that of the input
    continues, or continues where that of the input ends, has other states.
    """
    gaps = place[1:] - place[:-1]
    consecutive = torch.where(done[:-1], gaps >= 2, gaps == 1)  # between two episodes there is a final state
    if not bool(consecutive.all()):
        return None
    edges = [0, *((done[:-1]).nonzero().squeeze(1) + 1).tolist(), len(place)]
    return [StepRun(start, stop, int(place[start])) for start, stop in pairwise(edges)]


def find_passthrough(
    source: SourceStates, columns: Mapping[str, torch.Tensor], names: Collection[str]
) -> tuple[list[str], list[StepRun]]:
    """Those of the leaves ``names`` whose rows in a result, and whose successors, are bit by bit those of the input.

    Also the runs that the result consists of; no leaves where it does not consist of runs.
    """
    runs = split_runs(source.place, columns["next/done"].view(-1)) or []
    found = [
        name
        for name, leaf in source.leaves.items()
        if runs and name in names and _is_unchanged(leaf.rows, columns.get(name), columns.get("next/" + name), runs)
    ]
    return found, runs


def _is_unchanged(
    rows: torch.Tensor | None, root: torch.Tensor | None, successors: torch.Tensor | None, runs: list[StepRun]
) -> bool:
    if rows is None:
        return True
    if root is None or successors is None:
        return False
    if root.dtype != rows.dtype or root.shape[1:] != rows.shape[1:]:
        return False
    if successors.dtype != rows.dtype or successors.shape != root.shape:
        return False
    return all(
        identical(tensor[run.start : run.stop], rows[first : first + run.stop - run.start])
        for run in runs
        for tensor, first in ((root, run.first), (successors, run.first + 1))
    )
