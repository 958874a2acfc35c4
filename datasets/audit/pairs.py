"""Two datasets that are used together, such as one for training and one for validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...storage.amounts import listed
from ...storage.schema import Schema
from . import duplicates
from .blocks import Array, Usual
from .duplicates import Duplicates
from .findings import Finding, Hits, find

#: Means this many deviations apart, and deviations of which one is this many times the other, in this part of the columns.
_APART, _TIMES, _COLUMNS = 4.0, 10.0, 0.5


@dataclass(frozen=True)
class Summary:
    """What is kept of a dataset to compare it with others."""

    id: str
    schema: Schema
    usual: Mapping[str, Usual]
    duplicates: Duplicates | None


def compare(first: Summary, second: Summary) -> Iterator[Finding]:
    """What the two share and do not share; numbers of steps and episodes are those of the second."""
    yield from _leaves(first.schema, second.schema)
    for name, usual in first.usual.items():
        other = second.usual.get(name)
        if other is not None and other.mean.shape == usual.mean.shape:
            yield from _scales(name, usual, other)
    if first.duplicates is not None and second.duplicates is not None:
        yield from duplicates.compare(first.duplicates, second.duplicates)


def _leaves(first: Schema, second: Schema) -> Iterator[Finding]:
    """Leaves for learners that only one dataset has, or that differ; none for datasets without a common leaf, which belong to
    different tasks."""
    read = ("observation", "action")
    kinds = [
        {leaf.name: f"{leaf.dtype} {list(leaf.shape)}" for leaf in schema if leaf.key[0] in read}
        for schema in (first, second)
    ]
    both = {name: [kind.get(name, "missing") for kind in kinds] for name in sorted({**kinds[0], **kinds[1]})}
    differ = [f"{name} ({one} and {other})" for name, (one, other) in both.items() if one != other]
    if 0 < len(differ) < len(both):
        yield find("leaves_differ", f"leaves differ: {listed(differ, 3)}", Hits(len(differ)), len(both), unit="key")


def _scales(name: str, first: Usual, second: Usual) -> Iterator[Finding]:
    """A leaf that is scaled or shifted in one of the two: in most of its columns."""
    if not (first.measured or second.measured) or name == "next/reward":
        return
    vary = (first.std > 0) & (second.std > 0)
    if not vary.any():
        return
    low, high = np.minimum(first.std, second.std)[vary], np.maximum(first.std, second.std)[vary]
    apart: Array = np.abs(first.mean - second.mean)[vary] > _APART * high
    scaled: Array = high > _TIMES * low
    differs = apart | scaled
    if differs.mean() > _COLUMNS:
        hits = Hits.of(np.flatnonzero(vary)[differs])
        column = hits.first[0]
        means = f"mean {first.mean[column]:.3g} and {second.mean[column]:.3g}"
        deviations = f"deviation {first.std[column]:.3g} and {second.std[column]:.3g}"
        what = f"scaled differently in the two, such as column {column}: {means}, {deviations}"
        yield find("scales_differ", what, hits, len(vary), leaf=name, unit="column")
