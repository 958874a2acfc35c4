"""A dataset at a glance: how its episodes ended, and the distributions of returns, lengths, rewards and actions.

The work is bounded whatever the size of the dataset: above ``MOST_EPISODES`` and ``MOST_STEPS``, evenly spaced blocks of
rows are read, and `Overview` states how many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..storage.bounds import LeafBounds, leaf_bounds
from ..storage.codecs import codec_of
from ..storage.codecs.codec import Rows
from ..storage.episodes import OUTCOMES, EpisodeTable
from ..storage.integrity import open_array
from ..storage.leaf import Leaf
from ..storage.manifest import Manifest
from ..storage.reference_scores import ReferenceScores, reference_scores
from ..storage.schema import LARGE_ROW
from .histogram import Histogram, count_values

#: Rows that are read at most, in so many blocks.
MOST_EPISODES, MOST_STEPS, BLOCKS = 1 << 18, 1 << 16, 256
#: Elements of an action that are counted; those behind them are left out.
MOST_ELEMENTS = 32
#: Choices of a discrete action that are listed even where none of them occurs.
MOST_CHOICES = 18


@dataclass(frozen=True)
class Distribution:
    """A leaf's values: a histogram of each element of its row (the first ``MOST_ELEMENTS``), ``size`` of them in all."""

    key: str
    size: int
    elements: tuple[Histogram, ...]

    @property
    def names(self) -> list[str]:
        """A name for each histogram: the key, and where the row has several elements, the number of the element."""
        return [self.key] if self.size == 1 else [f"{self.key}[{number}]" for number in range(len(self.elements))]

    def to_json(self) -> dict[str, Any]:
        return {"size": self.size, "elements": [one.to_json() for one in self.elements]}


@dataclass(frozen=True)
class Overview:
    """See the module. ``reference`` are the returns that score 0 and 100, where they are known.

    ``scores`` are the mean, min and max of the normalised scores of whole episodes, empty without any; ``not_scored`` is how
    many episodes are not whole.
    """

    steps: int
    episodes: int
    outcomes: dict[str, int]
    midway: int
    environment: str | None
    reference: ReferenceScores | None
    sampled_steps: int
    sampled_episodes: int
    returns: Histogram
    lengths: Histogram
    rewards: Distribution
    actions: list[Distribution] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    not_scored: int = 0

    def score(self, total: float) -> float:
        """The normalised score of a return: 0 for the lower reference, 100 for the upper. Needs ``reference``."""
        assert self.reference is not None
        return float(self.reference.normalize(total))

    def to_json(self) -> dict[str, Any]:
        """For programs; the keys are stable."""
        return {
            "environment": self.environment,
            "outcomes": self.outcomes,
            "midway_episodes": self.midway,
            "reference_scores": [self.reference.low, self.reference.high] if self.reference else None,
            **({"scores": {**self.scores, "not_scored": self.not_scored}} if self.reference else {}),
            "sampled": {"steps": self.sampled_steps, "episodes": self.sampled_episodes},
            "distributions": {
                "return": self.returns.to_json(),
                "length": self.lengths.to_json(),
                "reward": self.rewards.to_json(),
                **{one.key: one.to_json() for one in self.actions},
            },
        }


def overview(folder: Path, manifest: Manifest, table: EpisodeTable, rows: Mapping[str, Rows] | None = None) -> Overview:
    """Look through a dataset, by its opened ``rows`` if they are given.

    Raises DamagedDatasetError when a leaf that is read is missing or too short.
    """
    bounds: Mapping[str, LeafBounds] = {}
    with suppress(SchemaError):  # spaces only tell which choices do not occur
        bounds = leaf_bounds(manifest.schema, manifest.spaces)
    few = [slice(*ends) for ends in blocks(len(table), MOST_EPISODES)]
    ranges = blocks(manifest.steps, MOST_STEPS)

    def distribution(leaf: Leaf) -> Distribution:
        size = math.prod(leaf.shape)
        read = _read(folder, manifest, leaf, ranges, rows)
        counts = bounds[leaf.name].counts if leaf.name in bounds else None
        elements = []
        for number in range(min(size, MOST_ELEMENTS)):
            known = counts[number if len(counts) > 1 else 0] if counts else 0
            elements.append(count_values(read[:, number], range(known) if known <= MOST_CHOICES else ()))
        return Distribution(leaf.name, size, tuple(elements))

    reference = reference_scores(manifest)
    if reference is not None and reference.caveat:
        reference = None
    scores, not_scored = ({}, 0) if reference is None else _scores(reference, manifest, table)
    return Overview(
        manifest.steps,
        len(table),
        {name: int(np.count_nonzero(table.outcome == code)) for code, name in OUTCOMES.items()},
        int(np.count_nonzero(table.midway)),
        manifest.environment,
        reference,
        sum(stop - start for start, stop in ranges),
        sum(part.stop - part.start for part in few),
        count_values(_joined([table.returns[part] for part in few])),
        count_values(_joined([table.length[part] for part in few])),
        distribution(manifest.schema["next/reward"]),
        [
            distribution(leaf)
            for leaf in manifest.schema.steps
            if leaf.key[0] == "action" and leaf.row_bytes <= LARGE_ROW
        ],
        scores,
        not_scored,
    )


def _scores(reference: ReferenceScores, manifest: Manifest, table: EpisodeTable) -> tuple[dict[str, float], int]:
    """Mean, min and max of the scores of whole episodes, and how many episodes are not whole."""
    whole = table.whole
    count = int(np.count_nonzero(whole))
    statistics = manifest.returns if count == len(table) else {}
    if 0 < count < len(table):
        returns = table.returns[whole]
        statistics = {"mean": returns.mean(), "min": returns.min(), "max": returns.max()}
    names = ("mean", "min", "max") if statistics else ()
    return {name: float(reference.normalize(statistics[name])) for name in names}, len(table) - count


def blocks(count: int, most: int) -> list[tuple[int, int]]:
    """Evenly spaced ranges ``(start, stop)`` of at most ``most`` rows out of ``count`` together; all rows where they fit."""
    if count <= most:
        return [(0, count)] if count else []
    size = most // BLOCKS
    return [(start, start + size) for start in np.linspace(0, count - size, BLOCKS).astype(np.int64).tolist()]


def _read(
    folder: Path, manifest: Manifest, leaf: Leaf, ranges: list[tuple[int, int]], opened: Mapping[str, Rows] | None
) -> np.ndarray:
    """Rows of a step leaf, flattened: ``[n, elements]``. Rows that can be mapped are read without torch."""
    size = math.prod(leaf.shape)
    if opened is not None:
        return _joined([opened[leaf.name].block(start, stop).numpy() for start, stop in ranges]).reshape(-1, size)
    if leaf.constant is not None or codec_of(leaf).fixed_rows:
        rows = open_array(folder, leaf, manifest.steps)
        return _joined([rows[start:stop] for start, stop in ranges]).reshape(-1, size)
    stored = codec_of(leaf).open_rows(folder, manifest.steps)
    return _joined([stored.block(start, stop).numpy() for start, stop in ranges]).reshape(-1, size)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0)
