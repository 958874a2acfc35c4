"""Checks the values of a dataset against its spec.

Any folder that can be opened has the dtypes and shapes of its manifest, so only values are compared, with `bounds`. Leaves
without bounds are not read. TorchRL is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from ..errors import SpecError, UsageError
from .bounds import LeafBounds, leaf_bounds
from .dataset import Dataset
from .keywords import check_keywords


@dataclass(frozen=True)
class SpecProblem:
    """One key with values outside the spec: the ``first`` of ``steps`` such steps, and its row as (shortened) text."""

    leaf: str
    first: int
    steps: int
    value: str

    def __str__(self) -> str:
        return f"{self.leaf}: {self.steps:,} steps are outside the spec, the first is step {self.first:,}: {self.value}"


@dataclass(frozen=True)
class SpecReport:
    """The result of `check_specs`: ``steps`` read, ``unbounded`` leaves (not read), ``problems`` by key."""

    steps: int
    unbounded: tuple[str, ...]
    problems: tuple[SpecProblem, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not self.problems


@check_keywords
def check_specs(
    dataset: Dataset | str | os.PathLike[str],
    *,
    batches: int | None = None,
    batch_size: int = 4096,
    seed: int = 0,
    strict: bool = True,
) -> SpecReport:
    """Compare the values of a dataset with its spec: all steps, or ``batches`` of ``batch_size`` steps drawn at random.

    NaN is outside any bounds. With ``strict``, values outside raise SpecError, naming the key and the first step; otherwise
    they are reported. Raises UsageError for sizes below 1, SchemaError for malformed spaces.
    """
    if batch_size < 1 or (batches is not None and batches < 1):
        raise UsageError(f"batches={batches!r} of batch_size={batch_size!r} steps: both must be at least 1")
    opened = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    found: dict[str, SpecProblem] = {}
    unbounded = []
    for name, bounds in leaf_bounds(opened.schema, opened.manifest.spaces).items():
        if bounds.low is None:
            unbounded.append(name)
            continue
        for steps in _steps(len(opened), batches, batch_size, seed):
            rows = opened.read(steps, keys=[name])[:, 0]
            for key in bounds.leaf.names:
                _note(found, key, steps, rows[tuple(key.split("/"))], bounds)
    steps_read = len(opened) if batches is None else min(len(opened), batches * batch_size)
    report = SpecReport(steps_read, tuple(unbounded), tuple(found.values()))
    if strict and found:
        worst = min(found.values(), key=lambda problem: problem.first)
        hint = "strict=False reports all keys; the spaces are those that the source states"
        raise SpecError(f"{opened.id}: {worst}", leaf=worst.leaf, step=worst.first, hint=hint)
    return report


def _steps(count: int, batches: int | None, batch_size: int, seed: int) -> Iterator[torch.Tensor]:
    if batches is None or batches * batch_size >= count:
        yield from torch.arange(count, device="cpu").split(batch_size) if count else ()
        return
    drawn = np.sort(np.random.default_rng(seed).choice(count, batches * batch_size, replace=False))
    yield from torch.from_numpy(drawn).split(batch_size)


def _note(
    found: dict[str, SpecProblem], key: str, steps: torch.Tensor, values: torch.Tensor, bounds: LeafBounds
) -> None:
    inside = values >= torch.from_numpy(np.asarray(bounds.low))
    if bounds.high is not None:
        inside &= values <= torch.from_numpy(np.asarray(bounds.high))
    outside = ~inside.reshape(len(steps), -1).all(1)
    count = int(outside.sum())
    if count:
        at = int(outside.int().argmax())
        before = found.get(key)
        first, value = (before.first, before.value) if before else (int(steps[at]), str(values[at].tolist())[:80])
        found[key] = SpecProblem(key, first, count + (before.steps if before else 0), value)
