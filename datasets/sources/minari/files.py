"""The files of a Minari dataset, in its three formats, as columns of episodes.

    main_data.hdf5                     a group for each episode, episode_<k>, with attributes id, total_steps, seed
    <k>/part-0.arrow (or .parquet)     a folder for each episode, with a metadata.json (id, total_steps, seed)

    observations                       [n + 1, ...]; Dict spaces are groups or structs by key, Tuples by place
    actions, rewards, terminations, truncations    [n, ...]; Arrow has a filler in one more row
    infos/<name>                       [n + 1, ...] or [n, ...], nested; may be empty or missing

Groups are listed by name, ``episode_10`` before ``episode_2``: the order is that of the numbers. Texts are UTF-8; pictures are
JPEG bytes, in HDF5 of variable length, or uint8 ``[n, bytes]`` where all happen to be of one length. Arrow keeps arrays flat,
in lists of one size. An Arrow file holds any number of record batches, each episode any number of files: all are read.

Values are read by h5py and pyarrow, not by Minari's storages: those read whole episodes, and one record batch of each
(docs/performance.md has figures). Links out of a file, and shapes that its bytes cannot hold, are refused.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ....errors import CorruptSourceError
from ...formats import arrow, hdf5
from ...formats.limits import REFETCH, check_rows
from .metadata import Metadata, metadata_from

FILE, METADATA = "main_data.hdf5", "metadata.json"
_NUMBER = r"(0|[1-9]\d{0,17})"
_EPISODE = re.compile(rf"episode_{_NUMBER}")
_PART = re.compile(rf"{_NUMBER}/part-(\d{{1,18}})\.(?:arrow|parquet|feather)")
_ABOUT = re.compile(rf"{_NUMBER}/{re.escape(METADATA)}")
#: Rows that pyarrow gives at a time, of numbers and of texts and pictures.
_NUMBERS_AT_ONCE, _VALUES_AT_ONCE = 1 << 16, 64


@dataclass(frozen=True)
class Field:
    """A column of one episode: ``rows`` of ``dtype`` (native) and ``shape``.

    ``dtype`` None: rows are bytes, of texts or pictures. ``is_flat``: rows are flat, whatever the shape of their space.
    ``why``: what keeps it from being read.
    """

    rows: int
    dtype: np.dtype | None
    shape: tuple[int, ...] = ()
    is_flat: bool = False
    why: str = ""


@dataclass(frozen=True)
class DataFiles:
    """The files of a dataset on a disk: ``files`` by their path below ``data/``. Picklable.

    What is open has the numbers of the ``episodes``, ascending; `fields`, the columns of an episode by path
    (``observations/state/pos``, ``actions/0``, ``infos/qpos``, ``rewards``); and `read`, rows ``low..high-1`` of a column: an
    array, or a list of bytes. Everything that is wrong with the files is a CorruptSourceError.
    """

    format: str
    name: str
    files: dict[str, Path]

    def open(self) -> AbstractContextManager[MinariFiles]:
        """Open them for reading. Raises CorruptSourceError, MissingExtraError for Arrow without pyarrow."""
        return closing(MinariHdf5(self) if self.format == "hdf5" else ArrowFiles(self))


def is_part(path: str) -> bool:
    """Whether a path below ``data/`` holds an episode's rows, or its metadata."""
    return _PART.fullmatch(path) is not None or _ABOUT.fullmatch(path) is not None


class MinariHdf5:
    """An open ``main_data.hdf5``. Lists it by HDF5's own calls: a file has thousands of small arrays."""

    def __init__(self, data: DataFiles) -> None:
        import h5py

        self._h5py, self._name, path = h5py, data.name, data.files[FILE]
        self._size = path.stat().st_size
        #: By episode: the arrays, their path here and in the file.
        self._paths = defaultdict[int, dict[str, bytes]](dict)
        #: The arrays of the episode that was asked for last.
        self._open: tuple[int, dict[str, Any]] = (-1, {})
        with self._sound():
            self._file = h5py.File(h5py.h5f.open(bytes(path), h5py.h5f.ACC_RDONLY, self._access()))
            try:
                self._list()
            except BaseException:
                self.close()
                raise
        self.episodes = sorted(self._paths)

    def _access(self) -> Any:
        """How the file is opened: without locks, and with small caches (HDF5's own keep 60 KB for each episode seen)."""
        access = self._h5py.h5p.create(self._h5py.h5p.FILE_ACCESS)
        access.set_file_locking(False, True)
        access.set_cache(0, 521, 4 << 20, 0.75)
        kept = access.get_mdc_config()
        kept.set_initial_size, kept.initial_size, kept.min_size, kept.max_size = True, 1 << 20, 1 << 20, 2 << 20
        access.set_mdc_config(kept)
        return access

    def close(self) -> None:
        """Raises nothing: a file that HDF5 cannot close is damaged, which was reported when it was read. h5py would print it
        later."""
        self._open = (-1, {})
        with suppress(OSError, RuntimeError):
            self._file.close()

    def metadata(self) -> Metadata:
        """Metadata as they were stored before Minari 0.5."""
        with self._sound():
            return metadata_from(hdf5.attributes(self._file), self._name)

    def fields(self, episode: int) -> dict[str, Field]:
        with self._sound():
            return {path: self._field(episode, path) for path in self._paths[episode]}

    def read(self, episode: int, path: str, low: int, high: int) -> Any:
        with self._sound():
            array, every = self._array(episode, path), self._h5py.h5s.ALL
            dtype, shape = array.dtype, array.shape
            if dtype.kind not in "biuf":
                rows = self._h5py.Dataset(array)[low:high]
                return [row.tobytes() if isinstance(row, np.ndarray) else bytes(row) for row in rows]
            if low or high != shape[0]:
                rows = self._h5py.Dataset(array)[low:high]
                return hdf5.plain_bools(rows.astype(dtype.newbyteorder("="), copy=False))
            rows = np.empty(shape, dtype.newbyteorder("="))  # mostly: a whole array by one call
            array.read(every, every, rows)
            return hdf5.plain_bools(rows)

    def _list(self) -> None:
        """Set the arrays of all episodes. Links are refused; an object with two names has one."""
        hard, dataset = self._h5py.h5l.TYPE_HARD, self._h5py.h5o.TYPE_DATASET

        def look(name: bytes, info: Any) -> bytes | None:
            return None if info.type == hard and name.count(b"/") <= hdf5.DEEPEST else name

        def add(name: bytes, info: Any) -> None:
            group, _, inside = name.decode(errors="backslashreplace").partition("/")
            match = _EPISODE.fullmatch(group)
            if match and not inside:
                self._paths[int(match[1])]
            elif match and info.type == dataset:
                path = inside if inside.startswith("infos") else re.sub(r"(?<=/)_index_(?=\d)", "", inside)
                self._paths[int(match[1])][path] = name

        found = self._file.id.links.visit(look, info=True)
        if found is not None:
            where = f"{self._name}: {found.decode(errors='replace')}"
            message = f"{where} is a link to somewhere else, which is not followed"
            raise CorruptSourceError(message, hint="put the data together with Minari itself (minari combine)")
        self._h5py.h5o.visit(self._file.id, add, info=True)

    def _array(self, episode: int, path: str) -> Any:
        if episode != self._open[0]:
            self._open = (episode, {})
        arrays = self._open[1]
        if path not in arrays:
            arrays[path] = self._h5py.h5d.open(self._file.id, self._paths[episode][path])
        return arrays[path]

    def _field(self, episode: int, path: str) -> Field:
        array = self._array(episode, path)
        hdf5.check_storage(array, f"{self._name}: episode_{episode}/{path}", self._size)
        dtype, shape = array.dtype.newbyteorder("="), array.shape
        if not shape:
            return Field(0, None, why=f"its shape is {shape}, not one row a step")
        rows, *shape = shape
        if dtype.kind in "biuf":
            return Field(rows, dtype, tuple(shape))
        is_bytes = self._h5py.check_string_dtype(dtype) is not None or self._h5py.check_vlen_dtype(dtype) == np.uint8
        return Field(rows, None, tuple(shape), why="" if is_bytes and not shape else f"its dtype is {dtype}")

    def _sound(self) -> AbstractContextManager[None]:
        return hdf5.damage_reported(self._name)


class ArrowFiles:
    """An open folder of episodes; the episode asked for last is kept open."""

    def __init__(self, data: DataFiles) -> None:
        arrow.require_pyarrow(f"{data.name} is in {data.format} format, and pyarrow is not installed")
        self._name, self._opener = data.name, arrow.ParquetRows if data.format == "parquet" else arrow.ArrowFile
        self._parts: dict[int, list[tuple[int, Path]]] = {}
        self._about: dict[int, Path] = {}
        for name, path in data.files.items():
            if match := _PART.fullmatch(name):
                self._parts.setdefault(int(match[1]), []).append((int(match[2]), path))
            elif match := _ABOUT.fullmatch(name):
                self._about[int(match[1])] = path
        self.episodes = sorted(self._parts)
        self._current: tuple[int, list[Any], dict[str, tuple[tuple[str, ...], Any]]] | None = None

    def close(self) -> None:
        self._current = None

    def fields(self, episode: int) -> dict[str, Field]:
        with self._sound(episode):
            parts, columns = self._open(episode)
            sizes = sum(path.stat().st_size for _, path in self._parts[episode])
            rows = check_rows(sum(part.rows for part in parts), sizes, f"{self._name}: episode {episode}")
            steps = self._stated_steps(episode, rows)
            whole = ("observations", "infos")
            return {
                path: self._field(rows if path.partition("/")[0] in whole else min(rows, steps), field)
                for path, (_, field) in columns.items()
            }

    def read(self, episode: int, path: str, low: int, high: int) -> Any:
        with self._sound(episode):
            parts, columns = self._open(episode)
            names, field = columns[path]
            kind, where = field.type, f"{self._name}: episode {episode}, {path}"
            if kind_of := _number_type(kind):
                shape = (kind.list_size,) if kind_of is not kind else ()
                arrays = _rows(parts, names, low, high, max(1, _NUMBERS_AT_ONCE // max(1, *shape, 1)))
                rows = arrow.number_rows(arrays, kind_of, shape, where)
                return rows.reshape(len(rows), *(_stated_shape(field) or shape))
            values = (one for some in _rows(parts, names, low, high, _VALUES_AT_ONCE) for one in some.to_pylist())
            return [value.encode() if isinstance(value, str) else value or b"" for value in values]

    def _open(self, episode: int) -> tuple[list[Any], dict[str, tuple[tuple[str, ...], Any]]]:
        """The files of an episode, and the names and the field of each of its columns."""
        if self._current is None or self._current[0] != episode:
            self._current = None
            name = f"{self._name}: episode {episode}"
            parts = [self._opener(path, name) for _, path in sorted(self._parts[episode])]
            if any(not part.schema.equals(parts[0].schema) for part in parts):
                raise CorruptSourceError(f"{name}: its files have different columns")
            columns = {"/".join(names): (names, field) for names, field in _leaves(parts[0].schema, ())}
            self._current = (episode, parts, columns)
        return self._current[1:]

    def _field(self, rows: int, field: Any) -> Field:
        import pyarrow.types as types

        kind = field.type
        if number := _number_type(kind):
            flat = (kind.list_size,) if number is not kind else ()
            return Field(rows, arrow.number_dtype(number), _stated_shape(field) or flat, is_flat=bool(flat))
        known = (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
        return Field(rows, None, why="" if any(one(kind) for one in known) else f"its type is {kind}")

    def _stated_steps(self, episode: int, rows: int) -> int:
        """How many steps an episode of so many rows has."""
        path = self._about.get(episode)
        if path is None:
            return max(0, rows - 1)
        where = f"{self._name}: {episode}/{METADATA}"
        try:
            stated = json.loads(path.read_bytes()).get("total_steps", max(0, rows - 1))
        except (ValueError, AttributeError) as error:
            raise CorruptSourceError(f"{where} is not a JSON object") from error
        if rows not in (stated, stated + 1):
            message = f"{self._name}: episode {episode} has {rows} rows, its metadata say {stated} steps"
            raise CorruptSourceError(message, hint=REFETCH)
        return int(stated)

    def _sound(self, episode: int) -> AbstractContextManager[None]:
        return arrow.damage_reported(f"{self._name}: the file of episode {episode}")


def _leaves(fields: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The fields that hold values, with their names from the top: all but structs, whose fields they are."""
    for field in fields:
        names, kind = (*above, str(field.name)), field.type
        if hasattr(kind, "get_field_index"):
            yield from _leaves([kind.field(index) for index in range(kind.num_fields)], names)
        else:
            yield names, field


def _number_type(kind: Any) -> Any:
    """The type of the numbers of a column, of lists of one size that of their values; None for anything else."""
    import pyarrow.types as types

    inner = kind.value_type if types.is_fixed_size_list(kind) else kind
    return inner if arrow.is_number(types, inner) else None


def _stated_shape(field: Any) -> tuple[int, ...]:
    """The shape of a row of infos, which Minari keeps beside the flat list; of one number, and of a flat list, nothing."""
    stated = (field.metadata or {}).get(b"shape", b"")
    if re.fullmatch(rb"(\d{1,9},?){0,32}", stated) is None:
        return ()
    return tuple(int(size) for size in stated.split(b",") if size)


def _rows(parts: Sequence[Any], names: tuple[str, ...], low: int, high: int, at_once: int) -> Iterator[Any]:
    """Rows of a column as arrays, one after the other."""
    first = 0
    for part in parts:
        begin, end = max(low - first, 0), min(high - first, part.rows)
        if begin < end:
            yield from part.read(names, begin, end, at_once)
        first += part.rows


MinariFiles: TypeAlias = MinariHdf5 | ArrowFiles
