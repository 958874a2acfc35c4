"""The leaves of the new dataset, chosen from the first result.

A large observation (`storage.schema.LARGE_ROW`, or one that is stored once per state in the input) is stored once per state
where its successor is the observation of the following step, which is checked for every row. Where it is not (a random
crop, an n-step successor), both are stored, as plain TED.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..storage.codecs import PLAIN, codec_of, load_codec, resolve_choice
from ..storage.schema import FLAGS, LARGE_ROW, Leaf, Schema, ted_flags

#: Path -> (dtype, shape of a row).
Shapes = dict[str, tuple[str, tuple[int, ...]]]

REWARD = "next/reward"
RESULT_FLAGS = tuple("next/" + flag for flag in FLAGS)

#: The smallest compression ratio at which ``auto`` compresses rows.
LEAST_RATIO = 1.5
#: Maximum number of rows that a dictionary is trained on.
SAMPLE_ROWS = 2048


@dataclass(frozen=True)
class Layout:
    """The leaves, and the approximate disk space of a step in bytes."""

    schema: Schema
    step_bytes: float

    def to_json(self) -> dict[str, Any]:
        return {"leaves": [leaf.to_json() for leaf in self.schema], "step_bytes": self.step_bytes}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Layout:
        return cls(Schema(tuple(Leaf.from_json(leaf) for leaf in record["leaves"])), record["step_bytes"])

    @property
    def filled(self) -> tuple[str, ...]:
        """The leaves that parts contain: all that are not constant."""
        return tuple(leaf.name for leaf in self.schema if leaf.constant is None)

    @property
    def compressed(self) -> tuple[str, ...]:
        """The state leaves that are compressed."""
        return tuple(leaf.name for leaf in self.schema.states if not codec_of(leaf).fixed_rows)

    @property
    def shapes(self) -> Shapes:
        """The dtype and row shape of every leaf of a result."""
        leaves = [leaf for leaf in self.schema if leaf.constant is None]
        return {name: (leaf.dtype, leaf.shape) for leaf in leaves for name in leaf.names}


def observation_pairs(names: Mapping[str, Any]) -> list[str]:
    """Root keys that have a successor under ``next``, without the flags."""
    roots = (name for name in names if not name.startswith("next/") and name not in FLAGS)
    return sorted(name for name in roots if "next/" + name in names)


def choose_schema(
    shapes: Shapes, unchained: Mapping[str, int], before: Schema, *, ted: bool, codecs: Mapping[str, str]
) -> Schema:
    """The schema for results of these shapes. ``codecs``: the codecs of state leaves, raw by default."""
    leaves: list[Leaf] = []
    states = {name for name in observation_pairs(shapes) if not ted and _is_state(name, shapes, unchained, before)}
    for name, (dtype, shape) in shapes.items():
        if name in states:
            leaves.append(Leaf(name, "state", dtype, shape, codec=codecs.get(name, PLAIN)))
        elif name.removeprefix("next/") not in states and name not in (REWARD, *RESULT_FLAGS):
            leaves.append(Leaf(name, "step", dtype, shape))
    return Schema((*leaves, *ted_flags()))


def _is_state(name: str, shapes: Shapes, unchained: Mapping[str, int], before: Schema) -> bool:
    """Whether to store an observation once per state."""
    if name in unchained or shapes[name] != shapes["next/" + name]:
        return False
    dtype, shape = shapes[name]
    old = before.get(name)
    large = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize >= LARGE_ROW
    return large or (old is not None and old.kind == "state")


# -- codecs -------------------------------------------------------------------------------------------------------------


def choose_codec(samples: np.ndarray, wanted: str) -> tuple[str, bytes, float]:
    """Codec, dictionary and bytes per row, from sampled rows (uint8 ``[n, row_bytes]``); ``auto`` compares the sizes."""
    row_bytes = samples.shape[1]
    name = resolve_choice(wanted) if len(samples) else PLAIN
    codec = load_codec(name)
    if codec.fixed_rows:
        return name, b"", float(row_bytes)
    dictionary = codec.train(samples)
    # A little too small, because the dictionary was trained on these rows.
    size = codec.estimate_row_bytes(samples[:: max(1, len(samples) // 256)], dictionary)
    if wanted == "auto" and size * LEAST_RATIO > row_bytes:
        return PLAIN, b"", float(row_bytes)
    return name, dictionary, size
