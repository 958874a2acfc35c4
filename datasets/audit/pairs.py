"""Two datasets that are used together, such as one for training and one for validation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...storage.amounts import listed
from ...storage.schema import Schema
from . import duplicates
from .duplicates import Duplicates
from .findings import Finding, Hits, find


@dataclass(frozen=True)
class Summary:
    """What is kept of a dataset to compare it with others."""

    id: str
    schema: Schema
    duplicates: Duplicates | None


def compare(first: Summary, second: Summary) -> Iterator[Finding]:
    """Yield what the two share and do not share; numbers of steps and episodes are those of the second."""
    yield from _leaves(first.schema, second.schema)
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
