"""What a Minari dataset says of itself: ``data/metadata.json``, before Minari 0.5 the attributes of the HDF5 file's root group.

dataset_id, total_episodes, total_steps, data_format (hdf5, arrow, parquet), minari_version
observation_space, action_space      JSON inside a string, read by Minari itself; older files may leave them out
env_spec                             JSON inside a string
author, author_email, algorithm_name, code_permalink, requirements, description, dataset_size, combined_datasets,
ref_min_score, ref_max_score, jpeg_encoding
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....errors import CorruptSourceError, UsageError, reason
from ...ingest.spaces import Json, space_json

FORMATS = ("hdf5", "arrow", "parquet")
#: Keys that are not kept among "what else it says": they have their own places, or say nothing about the values.
_PLACED = {
    *("observation_space", "action_space", "env_spec"),
    *("data_format", "total_steps", "total_episodes", "dataset_size"),
}
#: What Minari and Gymnasium raise for a space whose JSON is malformed.
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, AssertionError, OverflowError, SyntaxError)


@dataclass(frozen=True)
class Metadata:
    """``spaces`` holds observation and action in JSON form, where they are stated; ``about`` all that has no other place."""

    format: str
    spaces: dict[str, Json] = field(default_factory=dict)
    environment: Any = None
    episodes: int | None = None
    steps: int | None = None
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def reference_scores(self) -> list[float] | None:
        """The returns that normalised scores call 0 and 100."""
        scores: list[Any] = [self.about.get("ref_min_score"), self.about.get("ref_max_score")]
        return [float(score) for score in scores] if all(map(_is_number, scores)) else None


def parse_metadata(data: bytes, where: str) -> Metadata:
    """The contents of ``metadata.json``. Raises CorruptSourceError."""
    record = _parse(data, where)
    if not isinstance(record, dict):
        raise CorruptSourceError(f"{where} is not a JSON object")
    return metadata_from(record, where)


def metadata_from(record: Mapping[str, Any], where: str) -> Metadata:
    """The same from the keys as such. Raises CorruptSourceError for invalid metadata, UsageError for new formats."""
    data_format = record.get("data_format", "hdf5")
    if data_format not in FORMATS:
        message = f"{where}: the data are in format {str(data_format)[:40]!r}"
        raise UsageError(message, hint=f"rbdata reads {', '.join(FORMATS)}")
    stated = {name: record.get(f"{name}_space") for name in ("observation", "action")}
    spaces = {name: _space(one, f"{where}: {name}_space") for name, one in stated.items() if one is not None}
    environment = record.get("env_spec")
    with suppress(ValueError):  # the manifest may hold the string itself
        environment = json.loads(environment) if isinstance(environment, str) else environment
    about = {str(key): _plain(value) for key, value in sorted(record.items()) if key not in _PLACED}
    counts: Any = (record.get(name) for name in ("total_episodes", "total_steps"))
    episodes, steps = (int(count) if _is_number(count) else None for count in counts)
    return Metadata(data_format, spaces, _plain(environment), episodes, steps, about)


def _parse(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CorruptSourceError(f"{where} is not JSON: {reason(error)}") from error


def _space(stated: Any, where: str) -> Json:
    """A space as Minari writes it, as JSON of ours."""
    from minari.serialization import deserialize_space

    record = _parse(stated, where) if isinstance(stated, (str, bytes)) else stated
    kind = str(record.get("type"))[:40] if isinstance(record, dict) else "space"
    if kind not in deserialize_space.registry and kind != "space":
        message = f"{where} is a {kind} space, which Minari's own readers do not support either"
        raise UsageError(message, hint=f"there are {', '.join(deserialize_space.registry)}")
    try:
        return space_json(deserialize_space(record))
    except _MALFORMED as error:
        raise CorruptSourceError(f"{where} is a malformed {kind}: {type(error).__name__} {reason(error)}") from error


def _is_number(value: Any) -> bool:
    """Whether a value is a number that 64 bits can hold: none that is not finite, and none of hundreds of digits."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return is_number and bool(-(1 << 63) <= value < 1 << 63)


def _plain(value: Any) -> Any:
    """Any value as standard JSON."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not np.isfinite(value):
        return repr(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
