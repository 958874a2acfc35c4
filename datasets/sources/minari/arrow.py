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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import CorruptSourceError, MissingExtraError
from ...formats.jpeg import frame_shape, is_jpeg
from ...ingest.spaces import Json
from .reader import Data, Field, Kind, Place

METADATA = "metadata.json"
_PART = re.compile(r"(\d+)/part-(\d+)\.(?:arrow|parquet|feather)")
_DEEPEST = 16


def is_part(path: str) -> bool:
    """Whether a path below ``data/`` is that of an episode's rows, or of what is said about it."""
    return _PART.fullmatch(path) is not None or re.fullmatch(rf"\d+/{re.escape(METADATA)}", path) is not None


class ArrowReader:
    """A `Reader` of a folder of episodes; the episode asked for last is kept open."""

    def __init__(self, data: Data) -> None:
        try:
            import pyarrow
        except ImportError as error:
            message = f"{data.name} is in {data.format} format, and pyarrow is not installed"
            raise MissingExtraError(message, hint="pip install 'rbdata[parquet]'") from error
        self._pa: Any = pyarrow
        self._name = data.name
        self._format = data.format
        self._parts: dict[int, list[tuple[int, Path]]] = {}
        self._about: dict[int, Path] = {}
        for name, path in data.files.items():
            match = _PART.fullmatch(name)
            if match:
                self._parts.setdefault(int(match[1]), []).append((int(match[2]), path))
            elif name.endswith("/" + METADATA):
                self._about[int(name.partition("/")[0])] = path
        self.episodes = sorted(self._parts)
        self._table: tuple[int, Any] | None = None

    def close(self) -> None:
        self._table = None

    def steps(self, episode: int) -> int:
        rows = self._open(episode).num_rows
        stated = self._stated_steps(episode)
        if stated is None:
            return max(0, rows - 1)
        if rows not in (stated, stated + 1):
            message = f"{self._name}: episode {episode} has {rows} rows, its metadata say {stated} steps"
            raise CorruptSourceError(message, hint="fetch it again, or use another mirror (--mirror)")
        return stated

    def field(self, episode: int, place: Place, shape: tuple[int, ...]) -> Field:
        column = self._column(episode, place)
        where = f"{self._name}: episode {episode}, {'/'.join(map(str, place))}"
        rows, kind = len(column), column.type
        filled = rows if place[0] == "observations" else min(rows, self.steps(episode))
        types = self._pa.types
        if types.is_binary(kind) or types.is_large_binary(kind):
            first = column[0].as_py() if rows else b""
            if first and is_jpeg(first):
                return Field(filled, "jpeg", np.dtype("uint8"), frame_shape(first, where))
            return Field(filled, "other", np.dtype("O"), (), "it holds bytes that are no JPEG")
        if types.is_string(kind) or types.is_large_string(kind):
            return Field(filled, "text", np.dtype("O"))
        if types.is_fixed_size_list(kind) and _is_number(types, kind.value_type):
            found = shape if int(np.prod(shape, dtype=np.int64)) == kind.list_size else (kind.list_size,)
            return Field(filled, "numbers", _dtype(kind.value_type), found)
        if _is_number(types, kind):
            return Field(filled, "numbers", _dtype(kind))
        return Field(filled, "other", np.dtype("O"), (), f"its type is {kind}")

    def infos(self, episode: int) -> dict[Place, Field]:
        table = self._open(episode)
        if "infos" not in table.column_names:
            return {}
        found: dict[Place, Field] = {}
        for place, field in self._info_fields(table.schema.field("infos"), ("infos",), 0):
            one = replace(self.field(episode, place, _stated_shape(field)), rows=table.num_rows)
            if one.kind not in ("numbers", "other"):
                one = Field(one.rows, "other", one.dtype, (), "it holds text")
            found[place] = one
        return found

    def read(self, episode: int, place: Place, low: int, high: int, kind: Kind) -> Any:
        column = self._column(episode, place).slice(low, high - low)
        if kind == "jpeg":
            return [value or b"" for value in column.to_pylist()]
        if kind == "text":
            return [(value or "").encode() for value in column.to_pylist()]
        joined = column.combine_chunks()
        if isinstance(joined, self._pa.ChunkedArray):
            joined = self._pa.concat_arrays(joined.chunks) if joined.num_chunks else self._pa.array([], joined.type)
        if joined.null_count:
            raise CorruptSourceError(f"{self._name}: episode {episode} has empty cells in {'/'.join(map(str, place))}")
        if self._pa.types.is_fixed_size_list(joined.type):
            flat = joined.flatten().to_numpy(zero_copy_only=False)
            return flat.reshape(len(joined), joined.type.list_size)
        return joined.to_numpy(zero_copy_only=False)

    def space(self, place: Place) -> Json:
        message = f"{self._name} does not say what its {place[0]} space is"
        raise CorruptSourceError(message, hint="its metadata.json is not Minari's")

    # -- one episode ---------------------------------------------------------------------------------------------------

    def _open(self, episode: int) -> Any:
        if self._table is None or self._table[0] != episode:
            self._table = None
            pa = self._pa
            paths = [path for _, path in sorted(self._parts[episode])]
            try:
                if self._format == "parquet":
                    import pyarrow.parquet

                    tables = [pyarrow.parquet.ParquetFile(path).read() for path in paths]
                else:
                    import pyarrow.ipc

                    tables = [pyarrow.ipc.open_file(pa.memory_map(str(path))).read_all() for path in paths]
                self._table = (episode, pa.concat_tables(tables))
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno:
                    raise
                message = f"{self._name}: the file of episode {episode} cannot be read: {str(error)[:200]}"
                raise CorruptSourceError(message, hint="fetch it again, or use another mirror (--mirror)") from error
        assert self._table is not None
        return self._table[1]

    def _column(self, episode: int, place: Place) -> Any:
        import pyarrow.compute as compute

        table = self._open(episode)
        name, *inner = map(str, place)
        missing = f"{self._name}: episode {episode} has no {'/'.join(map(str, place))}"
        if name not in table.column_names:
            raise CorruptSourceError(missing, hint="the files do not hold what their spaces say")
        column = table.column(name)
        for step in inner:
            index = column.type.get_field_index(step) if self._pa.types.is_struct(column.type) else -1
            if index < 0:
                raise CorruptSourceError(missing, hint="the files do not hold what their spaces say")
            column = compute.struct_field(column, [index])
        return column

    def _info_fields(self, field: Any, place: Place, depth: int) -> list[tuple[Place, Any]]:
        """The fields below a struct that hold values."""
        if not self._pa.types.is_struct(field.type) or depth > _DEEPEST:
            return [(place, field)]
        inner = [field.type.field(index) for index in range(field.type.num_fields)]
        return [pair for one in inner for pair in self._info_fields(one, (*place, one.name), depth + 1)]

    def _stated_steps(self, episode: int) -> int | None:
        path = self._about.get(episode)
        if path is None:
            return None
        try:
            stated = json.loads(path.read_bytes()).get("total_steps")
        except (ValueError, AttributeError) as error:
            raise CorruptSourceError(f"{self._name}: {episode}/{METADATA} is not a JSON object") from error
        return int(stated) if isinstance(stated, (int, float)) else None


#: NumPy's names of Arrow's types of numbers, where they differ.
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _dtype(kind: Any) -> np.dtype:
    """NumPy's type of an Arrow number. Arrow's own conversion needs pandas before version 15."""
    return np.dtype(_FLOATS.get(str(kind), str(kind)))


def _stated_shape(field: Any) -> tuple[int, ...]:
    """The shape of a row of infos, which Minari keeps beside the flat list; of one number, and of a flat list, nothing."""
    stated = (field.metadata or {}).get(b"shape", b"")
    return tuple(int(size) for size in stated.split(b",") if size)
