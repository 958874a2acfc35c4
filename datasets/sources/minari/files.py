"""The metadata of a Minari dataset (`Metadata`), and the interface of the readers of all formats (`MinariFiles`).

The metadata are in ``data/metadata.json`` since Minari 0.5, before that in the attributes of the HDF5 file's root group. The
keys are the same, and more may be there:

    dataset_id, total_episodes, total_steps, data_format (hdf5, arrow, parquet), minari_version
    observation_space, action_space      JSON inside a string; older files may leave them out
    env_spec                             JSON inside a string
    author, author_email, algorithm_name, code_permalink, requirements, description, dataset_size, combined_datasets,
    ref_min_score, ref_max_score, jpeg_encoding

Spaces there are ``{"type": ..., ...}`` in Minari's own form (minari/serialization.py); `ingest.spaces` has ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from ....errors import CorruptSourceError, UsageError, reason
from ....storage.untrusted_json import parse_json
from ...ingest.spaces import Json, box_json, multi_discrete_json, text_json

FORMATS = ("hdf5", "arrow", "parquet")
#: Keys that are not kept among "what else it says": they have their own places, or say nothing about the values.
_PLACED = {
    *("observation_space", "action_space", "env_spec"),
    *("data_format", "total_steps", "total_episodes", "dataset_size"),
}
_DEEPEST = 16
#: Values that are kept in the manifest beside the spaces: a description of the environment and its author has some dozens.
_MOST_KEPT = 1 << 16


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
    spaces = {}
    for name in ("observation", "action"):
        stated = record.get(f"{name}_space")
        if stated is not None:
            inside = f"{where}: {name}_space"
            spaces[name] = _space(_parse(stated, inside) if isinstance(stated, str) else stated, inside, 0)
    environment = record.get("env_spec")
    with contextlib.suppress(ValueError):  # the manifest may hold the string itself
        environment = parse_json(environment) if isinstance(environment, str) else environment
    other = [environment, *(value for key, value in record.items() if key not in _PLACED)]
    if any(number >= _MOST_KEPT for number, _ in enumerate(_values(other))):
        raise CorruptSourceError(f"{where} holds more than {_MOST_KEPT} values beside its spaces")
    about = {str(key): _plain(value) for key, value in sorted(record.items()) if key not in _PLACED}
    stated = (record.get(name) for name in ("total_episodes", "total_steps"))
    episodes, steps = (int(count) if _is_number(count) else None for count in stated)
    return Metadata(data_format, spaces, _plain(environment), episodes, steps, about)


def _parse(text: str | bytes, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise CorruptSourceError(f"{where} is not JSON: {reason(error)}") from error


def _space(stated: Any, where: str, depth: int) -> Json:
    """A space in Minari's form as ours."""
    kind = stated.get("type") if isinstance(stated, dict) else None
    if depth > _DEEPEST or kind is None:
        raise CorruptSourceError(f"{where} is not a space: {str(stated)[:80]}")
    try:
        if kind == "Dict":
            inner = stated["subspaces"].items()
            return {"type": kind, "spaces": {key: _space(one, f"{where}.{key}", depth + 1) for key, one in inner}}
        if kind == "Tuple":
            spaces = [_space(one, f"{where}.{index}", depth + 1) for index, one in enumerate(stated["subspaces"])]
            return {"type": kind, "spaces": spaces}
        if kind == "Box":
            shape = [int(size) for size in stated["shape"]]
            return box_json(stated["dtype"], shape, *(_bound(stated, name) for name in ("low", "high")))
        if kind == "Discrete":
            return {"type": kind, "n": int(stated["n"]), "start": int(stated.get("start", 0))}
        if kind == "MultiDiscrete":
            return multi_discrete_json(stated.get("dtype", "int64"), stated["nvec"], stated.get("start", 0))
        if kind == "MultiBinary":
            size = stated["n"]
            return {"type": kind, "shape": [int(length) for length in (size if isinstance(size, list) else [size])]}
        if kind == "Text":
            return text_json(stated.get("min_length", 1), stated["max_length"], stated.get("charset"))
    except CorruptSourceError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SyntaxError) as error:
        raise CorruptSourceError(f"{where} is a malformed {kind}: {type(error).__name__} {reason(error)}") from error
    message = f"{where} is a {str(kind)[:40]} space, which Minari's own readers do not support either"
    raise UsageError(message, hint="rbdata reads Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict and Tuple")


def _bound(stated: Mapping[str, Any], name: str) -> Any:
    """The bounds ``name`` of a box, if it states them; those of whole numbers as whole numbers."""
    if stated.get(name) is None:
        return None
    bound = np.asarray(stated[name], float)
    whole = np.dtype(stated["dtype"]).kind in "iub" and np.isfinite(bound).all() and (np.abs(bound) < 1 << 53).all()
    return bound.astype(np.int64) if whole else bound


def _is_number(value: Any) -> bool:
    """Whether a value is a number that 64 bits can hold: none that is not finite, and none of hundreds of digits."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return is_number and bool(-(1 << 63) <= value < 1 << 63)


def _values(value: Any) -> Iterator[Any]:
    """Everything inside of lists and mappings."""
    waiting = [iter([value])]
    while waiting:
        for one in waiting[-1]:
            yield one
            if isinstance(one, (Mapping, list, tuple)):
                waiting.append(iter(one.values() if isinstance(one, Mapping) else one))
                break
        else:
            waiting.pop()


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


# -- readers -----------------------------------------------------------------------------------------------------------

#: Where the values of one leaf are, in every episode: ``("observations", "state", "pos")``, ``("actions", 0)`` for the first
#: of a Tuple, ``("infos", "qpos")``, ``("rewards",)``.
LeafPath = tuple[str | int, ...]
Kind = Literal["numbers", "jpeg", "text", "other"]


@dataclass(frozen=True)
class Field:
    """What is at a place in one episode: ``rows`` rows of ``shape`` (of the picture, where they are JPEG).

    ``dtype`` is in native byte order. ``why``: what keeps it from being used, where its kind is ``other``.
    """

    rows: int
    kind: Kind
    dtype: np.dtype
    shape: tuple[int, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class DataFiles:
    """The files of a dataset on a disk: ``files`` by their path below ``data/``. Picklable.

    ``checked``: `survey` has checked them, and dangerous contents are not looked for again.
    """

    format: str
    name: str
    files: dict[str, Path]
    checked: bool = False


class MinariFiles(Protocol):
    """One dataset, open for reading. Everything that is wrong with its files is a CorruptSourceError."""

    #: Numbers of the episodes, ascending.
    episodes: list[int]

    def steps(self, episode: int) -> int:
        """How many steps an episode has."""

    def field(self, episode: int, place: LeafPath, shape: tuple[int, ...]) -> Field:
        """The field at a place; ``shape`` is that of a row by the space. Raises CorruptSourceError if the place is empty."""

    def infos(self, episode: int) -> dict[LeafPath, Field]:
        """All that is among an episode's infos."""

    def read(self, episode: int, place: LeafPath, low: int, high: int, kind: Kind) -> Any:
        """Rows ``low..high-1``: an array, or for ``jpeg`` and ``text`` a list of bytes."""

    def space(self, place: LeafPath) -> Json:
        """The space that the first episode's values seem to be of, where the metadata state none."""

    def close(self) -> None: ...
