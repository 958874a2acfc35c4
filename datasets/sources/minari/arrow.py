"""Minari's Arrow and Parquet formats: a folder for each episode, named by its number.

    <k>/part-0.arrow (or .parquet)     one row for each observation
    <k>/metadata.json                  id, total_steps, seed

Columns ``observations``, ``actions``, ``rewards``, ``terminations``, ``truncations`` and perhaps ``infos``. Dict and Tuple
spaces are structs, arrays are lists of one size, pictures JPEG bytes. An episode of n steps has n + 1 observations; the other
columns have a filler in the last row. A file holds any number of record batches: it is read whole, or a long episode
would lose its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import CorruptSourceError
from ...formats.arrow import (
    ArrowFile,
    ParquetRows,
    damage_reported,
    is_number,
    number_dtype,
    number_rows,
    require_pyarrow,
)
from ...formats.limits import REFETCH, check_rows
from ...formats.pictures import frame_shape, is_jpeg
from ...ingest.spaces import Json
from .files import DataFiles, Field, Kind, LeafPath

METADATA = "metadata.json"
_NUMBER = r"(0|[1-9]\d{0,17})"
_PART = re.compile(rf"{_NUMBER}/part-(\d{{1,18}})\.(?:arrow|parquet|feather)")
_ABOUT = re.compile(rf"{_NUMBER}/{re.escape(METADATA)}")
_DEEPEST = 16
#: Texts and pictures that are read at a time, since each may be as long as its file, and bytes of numbers.
_AT_ONCE, _BYTES_AT_ONCE = 8, 4 << 20
#: Bytes of all texts and pictures that one call reads, unless the file is larger.
_MOST_VALUES = 64 << 20
#: The `metadata.json` of an episode.
_LARGEST_ABOUT = 1 << 20


def is_part(path: str) -> bool:
    """Whether a path below ``data/`` holds an episode's rows, or its metadata."""
    return _PART.fullmatch(path) is not None or _ABOUT.fullmatch(path) is not None


class ArrowFiles:
    """A `MinariFiles` of a folder of episodes; the episode asked for last is kept open."""

    def __init__(self, data: DataFiles) -> None:
        require_pyarrow(f"{data.name} is in {data.format} format, and pyarrow is not installed")
        import pyarrow

        self._types: Any = pyarrow.types
        self._name, self._format = data.name, data.format
        self._parts: dict[int, list[tuple[int, Path]]] = {}
        self._about: dict[int, Path] = {}
        for name, path in data.files.items():
            if match := _PART.fullmatch(name):
                self._parts.setdefault(int(match[1]), []).append((int(match[2]), path))
            elif match := _ABOUT.fullmatch(name):
                self._about[int(match[1])] = path
        self.episodes = sorted(self._parts)
        self._current: tuple[int, _Episode] | None = None

    def close(self) -> None:
        self._current = None

    def steps(self, episode: int) -> int:
        rows = self._open(episode).rows
        stated = self._stated_steps(episode)
        if stated is None:
            return max(0, rows - 1)
        if rows not in (stated, stated + 1):
            message = f"{self._name}: episode {episode} has {rows} rows, its metadata say {stated} steps"
            raise CorruptSourceError(message, hint=REFETCH)
        return stated

    def field(self, episode: int, place: LeafPath, shape: tuple[int, ...]) -> Field:
        kind, types = self._type(episode, place), self._types
        rows = self._open(episode).rows
        filled = rows if place[0] == "observations" else min(rows, self.steps(episode))
        if types.is_binary(kind) or types.is_large_binary(kind):
            first = self._values(episode, place, 0, 1)[0] if rows else b""
            if is_jpeg(first):
                return Field(filled, "jpeg", np.dtype("uint8"), frame_shape(first, self._where(episode, place)))
            return Field(filled, "other", np.dtype("O"), (), "it holds bytes that are no JPEG")
        if types.is_string(kind) or types.is_large_string(kind):
            return Field(filled, "text", np.dtype("O"))
        if types.is_fixed_size_list(kind) and is_number(types, kind.value_type):
            found = shape if int(np.prod(shape, dtype=np.int64)) == kind.list_size else (kind.list_size,)
            return Field(filled, "numbers", number_dtype(kind.value_type), found)
        if is_number(types, kind):
            return Field(filled, "numbers", number_dtype(kind))
        return Field(filled, "other", np.dtype("O"), (), f"its type is {kind}")

    def infos(self, episode: int) -> dict[LeafPath, Field]:
        opened = self._open(episode)
        if "infos" not in opened.schema.names:
            return {}
        found: dict[LeafPath, Field] = {}
        for place, field in self._info_fields(opened.schema.field("infos"), ("infos",), 0):
            one = replace(self.field(episode, place, _stated_shape(field)), rows=opened.rows)
            if one.kind not in ("numbers", "other"):
                one = Field(one.rows, "other", one.dtype, (), "it holds text")
            found[place] = one
        return found

    def read(self, episode: int, place: LeafPath, low: int, high: int, kind: Kind) -> Any:
        if kind in ("jpeg", "text"):
            return self._values(episode, place, low, high)
        here, shape = self._type(episode, place), tuple[int, ...]()
        if self._types.is_fixed_size_list(here):
            here, shape = here.value_type, (here.list_size,)
        with self._sound(episode):
            return number_rows(self._read(episode, place, low, high), here, shape, self._where(episode, place))

    def space(self, place: LeafPath) -> Json:
        message = f"{self._name} does not say what its {place[0]} space is"
        raise CorruptSourceError(message, hint="its metadata.json is not Minari's")

    # -- one episode ---------------------------------------------------------------------------------------------------

    def _open(self, episode: int) -> _Episode:
        if self._current is None or self._current[0] != episode:
            self._current = None
            paths = [path for _, path in sorted(self._parts[episode])]
            with self._sound(episode):
                self._current = (episode, _Episode(paths, self._format, f"{self._name}: episode {episode}"))
        return self._current[1]

    def _read(self, episode: int, place: LeafPath, low: int, high: int) -> Iterator[Any]:
        """Rows of a column as arrays, one after the other."""
        kind = self._type(episode, place)
        if self._types.is_fixed_size_list(kind):
            at_once = max(1, _BYTES_AT_ONCE // max(1, kind.list_size * number_dtype(kind.value_type).itemsize))
        else:
            at_once = _BYTES_AT_ONCE // 8 if is_number(self._types, kind) else _AT_ONCE
        with self._sound(episode):
            yield from self._open(episode).read(tuple(map(str, place)), low, high, at_once)

    def _values(self, episode: int, place: LeafPath, low: int, high: int) -> list[bytes]:
        """Texts or pictures. Raises CorruptSourceError where the same long ones are listed again and again."""
        values, total = list[bytes](), 0
        for array in self._read(episode, place, low, high):
            for first in range(0, len(array), _AT_ONCE):
                with self._sound(episode):  # the bytes may not be valid text
                    read = [value or b"" for value in array.slice(first, _AT_ONCE).to_pylist()]
                values += [value.encode() if isinstance(value, str) else value for value in read]
                total += sum(map(len, values[-len(read) :]))
                if total > max(_MOST_VALUES, self._open(episode).size):
                    where = self._where(episode, place)
                    raise CorruptSourceError(f"{where} lists the same long values again and again")
        return values

    def _where(self, episode: int, place: LeafPath) -> str:
        return f"{self._name}: episode {episode}, {'/'.join(map(str, place))}"

    def _sound(self, episode: int) -> AbstractContextManager[None]:
        return damage_reported(f"{self._name}: the file of episode {episode}")

    def _type(self, episode: int, place: LeafPath) -> Any:
        """The type of a column. Raises CorruptSourceError for a missing column."""
        schema = self._open(episode).schema
        name, *inner = map(str, place)
        kind: Any = schema.field(name).type if schema.names.count(name) == 1 else None
        for step in inner:
            index = kind.get_field_index(step) if kind is not None and self._types.is_struct(kind) else -1
            kind = kind.field(index).type if index >= 0 else None
        if kind is None:
            message = f"{self._name}: episode {episode} has no {'/'.join(map(str, place))}"
            raise CorruptSourceError(message, hint="the files do not hold what their spaces say")
        return kind

    def _info_fields(self, field: Any, place: LeafPath, depth: int) -> list[tuple[LeafPath, Any]]:
        """The fields below a struct that hold values."""
        if not self._types.is_struct(field.type) or depth > _DEEPEST:
            return [(place, field)]
        inner = [field.type.field(index) for index in range(field.type.num_fields)]
        return [pair for one in inner for pair in self._info_fields(one, (*place, one.name), depth + 1)]

    def _stated_steps(self, episode: int) -> int | None:
        path = self._about.get(episode)
        if path is None:
            return None
        where = f"{self._name}: {episode}/{METADATA}"
        if path.stat().st_size > _LARGEST_ABOUT:
            raise CorruptSourceError(f"{where} is larger than {_LARGEST_ABOUT} bytes")
        try:
            stated = json.loads(path.read_bytes()).get("total_steps")
        except (ValueError, AttributeError, RecursionError) as error:
            raise CorruptSourceError(f"{where} is not a JSON object") from error
        if isinstance(stated, float) and not stated.is_integer():
            raise CorruptSourceError(f"{where}: total_steps is {stated}")
        return int(stated) if isinstance(stated, (int, float)) else None


class _Episode:
    """The files of one episode: their ``schema``, ``rows`` and ``size`` in bytes."""

    def __init__(self, paths: Sequence[Path], data_format: str, name: str) -> None:
        opener = ParquetRows if data_format == "parquet" else ArrowFile
        self._parts = [opener(path, name) for path in paths]
        self.size = sum(path.stat().st_size for path in paths)
        self.schema = self._parts[0].schema
        if any(not part.schema.equals(self.schema) for part in self._parts):
            raise CorruptSourceError(f"{name}: its files have different columns")
        _check_names(self.schema)
        self.rows = check_rows(sum(part.rows for part in self._parts), self.size, name)

    def read(self, path: tuple[str, ...], low: int, high: int, at_once: int) -> Iterator[Any]:
        first = 0
        for part in self._parts:
            begin, end = max(low - first, 0), min(high - first, part.rows)
            if begin < end:
                yield from part.read(path, begin, end, at_once)
            first += part.rows


def _check_names(fields: Iterable[Any]) -> None:
    """Raise UnicodeDecodeError where a name in a schema, or inside of a struct, is not text."""
    for field in fields:
        str(field.name)
        if field.type.num_fields and hasattr(field.type, "get_field_index"):
            _check_names(field.type.field(index) for index in range(field.type.num_fields))


def _stated_shape(field: Any) -> tuple[int, ...]:
    """The shape of a row of infos, which Minari keeps beside the flat list; of one number, and of a flat list, nothing."""
    stated = (field.metadata or {}).get(b"shape", b"")
    if re.fullmatch(rb"(\d{1,9},?){0,32}", stated) is None:
        return ()
    return tuple(int(size) for size in stated.split(b",") if size)
