"""The leaves of the new dataset, chosen from the first result.

A large observation (`storage.schema.LARGE_ROW`, or one that is stored once per state in the input) is stored once per state
where its successor is the observation of the following step, which is checked for every row. Where it is not (a random
crop, an n-step successor), both are stored, as plain TED.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..storage.codecs import PLAIN, load_codec, resolve_choice
from ..storage.codecs.zstd import HELD_OUT
from ..storage.schema import FLAGS, LARGE_ROW, Leaf, Schema, ted_flags

#: Path -> (dtype, shape of a row).
Shapes = dict[str, tuple[str, tuple[int, ...]]]

REWARD = "next/reward"
RESULT_FLAGS = tuple("next/" + flag for flag in FLAGS)

#: The smallest compression ratio at which ``auto`` compresses rows.
LEAST_RATIO = 1.5


def filled(schema: Schema) -> list[Leaf]:
    """Return the leaves that have rows: all that are not constant."""
    return [leaf for leaf in schema if leaf.constant is None]


def shapes_of_schema(schema: Schema) -> Shapes:
    """Return the dtype and row shape of every leaf, successors included."""
    return {path: (leaf.dtype, leaf.shape) for leaf in schema for path in leaf.names}


def observation_pairs(names: Mapping[str, Any]) -> list[str]:
    """Root keys that have a successor under ``next``, without the flags."""
    return sorted(name for name in names if "next/" + name in names and name not in FLAGS)


def choose_schema(
    shapes: Shapes, unchained: Mapping[str, int], before: Schema, *, ted: bool, codecs: Mapping[str, str]
) -> Schema:
    """The schema for results of these shapes. ``unchained``: the observations whose successors do not follow; ``codecs``: those
    of state leaves, raw by default."""

    def is_state(name: str) -> bool:
        """Whether to store an observation once per state."""
        if ted or name in unchained or shapes[name] != shapes["next/" + name]:
            return False
        (dtype, shape), old = shapes[name], before.get(name)
        large = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize >= LARGE_ROW
        return large or (old is not None and old.kind == "state")

    leaves: list[Leaf] = []
    states = set(filter(is_state, observation_pairs(shapes)))
    for name, (dtype, shape) in shapes.items():
        if name in states:
            leaves.append(Leaf(name, "state", dtype, shape, codec=codecs.get(name, PLAIN)))
        elif name.removeprefix("next/") not in states and name not in (REWARD, *RESULT_FLAGS):
            leaves.append(Leaf(name, "step", dtype, shape))
    return Schema((*leaves, *ted_flags()))


def unchained_edges(tail: Mapping[str, str], head: Mapping[str, str]) -> list[str]:
    """The observations of an episode whose last successors before an edge, of these hashes, are not the first after it."""
    return [name for name, row in tail.items() if head.get(name) != row]


def unchained_error(functions: Sequence[str], name: str, where: str) -> SchemaError:
    """The error for a state leaf whose successor is not the observation of the following step; any of the functions may have
    made it so."""
    message = (
        f"{', '.join(functions)} made 'next/{name}' other than {name!r} of the step that follows, {where}; "
        "in the first result they were equal, so that each is stored once"
    )
    return SchemaError(message, hint="if that is intended, store both: --layout ted --force")


def choose_codec(samples: np.ndarray, wanted: str) -> tuple[str, bytes, float]:
    """Codec, dictionary and bytes per row, from sampled rows (uint8 ``[n, row_bytes]``); ``auto`` compares the sizes."""
    row_bytes = samples.shape[1]
    name = resolve_choice(wanted) if len(samples) else PLAIN
    codec = load_codec(name)
    if codec.fixed_rows:
        return name, b"", float(row_bytes)
    dictionary = codec.train(samples)
    few = samples[HELD_OUT - 1 :: HELD_OUT] if dictionary else samples  # that the dictionary was not trained on
    size = float(codec.encoded_lengths(few, dictionary).mean()) + codec.index_bytes
    if wanted == "auto" and size * LEAST_RATIO > row_bytes:
        return PLAIN, b"", float(row_bytes)
    return name, dictionary, size
