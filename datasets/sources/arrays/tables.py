"""Opens everything that holds a user's arrays as tables: named arrays whose rows are read in blocks.

    .npz, or a folder with one per episode       compressed members are unpacked to a temporary folder
    .npy with fields, or a folder of .npy
    .h5, .hdf5                                   arrays of any names, or a group per episode
    .parquet, .arrow, .feather, .csv, .csv.gz    columns; lists of one length, and columns ``obs_0 .. obs_3``, are one array
    a folder of TensorDict.memmap                also the storage of a replay buffer's checkpoint

Memory does not grow with a file: what cannot be read by rows is written to a temporary folder. Files are open only while they
are read (`stored`). Pickles are refused: reading a pickle runs any code that it names.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import mkdtemp, mkstemp
from typing import Any, Literal

import numpy as np

from ....errors import CorruptSourceError, DiskError, ObjectNotFoundError, UsageError, reason
from ....storage.durable import is_about_reader, is_full
from ....storage.tensordict_folder import read_json, read_memmap
from ...formats.arrow import EXPORTED, ROW_OF_ONE, is_number, open_parquet, require_pyarrow
from ...formats.hdf5 import damage_reported, unread_part
from ...formats.packed import ZipArchive
from ...ingest.request import parse_numbers, select_numbered
from ...ingest.spaces import as_array
from .files import SPLITS, choose, data_files, natural
from .roles import NAMES, PICKLES, SUFFIXES, ZARR, ArrayInfo, Given, exported_names, is_named, suffix_of
from .stored import FileRows, Hdf5Files, Hdf5Rows, Part, npy_rows

_HDF5 = (".h5", ".hdf5")
_TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_COLUMNS = (".parquet", ".arrow", ".feather", *_TEXT)
_HEAD_BYTES = 1 << 20
#: The texts of an empty cell in a text table. NaN is a number.
_EMPTY = ["", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "NULL", "n/a", "null"]
#: Names of files that are one episode each, and of groups that may hold several.
_EPISODE = re.compile(r"(?:^|[^a-z])(?:episode|ep|demo|demonstration|traj|trajectory|trial)[^a-z0-9]*\d", re.IGNORECASE)
_SEVERAL = re.compile(
    r"(?:^|[^a-z])(?:env|worker|actor|agent|process|proc|rank|thread|seed|run|rollout|batch|buffer|chunk|shard|part|fold)s?"
    r"(?:[^a-z]|$)",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"(.*?)[._]?\[?(\d+)\]?")

Kind = Literal["table", "file", "group", "episode"]


@dataclass
class Table:
    """Arrays by name, each with a row per step, state or episode; ``values`` can be sliced by rows."""

    name: str
    values: dict[str, Any]
    #: Arrays that are not numeric, and why they are not read.
    unreadable: dict[str, str] = field(default_factory=dict)
    #: Arrays that were made of numbered columns, and the names of these, in order.
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: The names by which the roles of arrays are known (`roles`).
    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: NAMES)
    #: What it is in its file: one episode; a group, or one of the files of a folder, which may be one; or the only table.
    kind: Kind = "table"

    @property
    def arrays(self) -> dict[str, ArrayInfo]:
        return {
            name: ArrayInfo(tuple(value.shape), value.dtype, value.names if isinstance(value, _Joined) else ())
            for name, value in self.values.items()
        }

    def read(self, array: str, low: int, high: int) -> np.ndarray:
        """Rows ``low`` to ``high - 1`` of an array. Raises CorruptSourceError."""
        with damage_reported(self.name):
            return np.asarray(self.values[array][low:high])

    def read_all(self, array: str) -> np.ndarray:
        """An array of a few values, or of one. Raises CorruptSourceError."""
        with damage_reported(self.name):
            values = self.values[array]
            return np.asarray(values[: values.shape[0]] if values.shape else values[()])


def memory_table(arrays: Any, name: str = "the arrays", names: Mapping[str, Sequence[str]] = NAMES) -> Table:
    """A table of arrays in memory: a mapping of NumPy arrays or tensors, perhaps nested, a TensorDict, or an array with fields.

    ``names`` are those of the roles. Raises UsageError for other values.
    """
    if isinstance(arrays, np.ndarray) and arrays.dtype.names:
        arrays = {field: arrays[field] for field in arrays.dtype.names}
    if len(getattr(arrays, "batch_size", ())) > 1:
        message = f"{name} are a TensorDict of batch size {list(arrays.batch_size)}, and a dataset has one row per step"
        hint = "where its last dimension is time: mark the last step of each trajectory as truncated, then reshape(-1)"
        raise UsageError(message, hint=hint)
    if not hasattr(arrays, "items"):
        message = f"{name} are a {type(arrays).__name__}, not a mapping of names to arrays, or an array with fields"
        raise UsageError(message)
    table = Table(name, {}, names=names)
    for key, value in flat_arrays(arrays):
        if np.ma.is_masked(value):
            raise UsageError(f"{name}: {key} has masked elements", hint="fill them, or leave their rows out")
        found: Iterable[tuple[str, np.ndarray | str]]
        try:
            found = _fields(key, as_array(value))
        except (TypeError, ValueError, RuntimeError) as error:
            found = [(key, reason(error))]
        for inner, plain in found:
            if inner in table.values or inner in table.unreadable:
                raise UsageError(f"{name}: two arrays are named {inner}", hint="rename one of them")
            if isinstance(plain, str):
                table.unreadable[inner] = plain
            elif plain.dtype.hasobject:
                table.unreadable[inner] = "its elements are Python objects"
            else:
                table.values[inner] = plain
    return table


def _fields(key: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of an array with fields, which may have fields themselves."""
    if not array.dtype.names:
        yield key, array
    for inner in array.dtype.names or ():
        yield from _fields(f"{key}/{inner}", array[inner])


def flat_arrays(arrays: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays of nested mappings by their names, with slashes."""
    for key, value in arrays.items():
        name = prefix + ("/".join(map(str, key)) if isinstance(key, tuple) else str(key))
        if (hasattr(value, "items") and not hasattr(value, "dtype")) or hasattr(value, "batch_size"):
            yield from flat_arrays(value, name + "/")
        else:
            yield name, value


def leave_out(tables: Sequence[Table], names: str) -> dict[str, str]:
    """Take arrays out of tables, by ``names`` separated by commas: arrays, groups, patterns with ``*``; returns them, and why.

    Raises UsageError for a name that no table has.
    """
    left: dict[str, str] = {}
    for name in filter(None, (name.strip().strip("/") for name in names.split(","))):
        found = [
            (table, array) for table in tables for array in (*table.values, *table.unreadable) if is_named(array, name)
        ]
        if not found:
            message = f"{tables[0].name}: there is no array {name} to leave out"
            raise UsageError(message, hint=f"the arrays are {', '.join(tables[0].values)}")
        for table, array in found:
            table.values.pop(array, None)
            table.unreadable.pop(array, None)
            left[array] = "as asked"
    return left


def select_episodes(tables: Sequence[Table], path: Path, wanted: str) -> list[Table]:
    """The tables of some episodes: by their numbers (``0-4,7``), or by an array of the names of their groups (``mask/train``).

    Raises UsageError where tables are no episodes, or there is no such array, ObjectNotFoundError for other episodes.
    """
    if any(table.kind != "episode" for table in tables):
        message = f"{path.name} does not hold a group or a file per episode, of which --episodes could choose"
        raise UsageError(message, hint="convert all, then `rbdata.open_dataset(...).episodes.where(...)`")
    if re.fullmatch(r"[\d\s,-]+", wanted):
        return select_numbered(dict(enumerate(tables)), parse_numbers(wanted, "--episodes"), path.name, "episode")
    names, there = None, list[str]()
    if suffix_of(path) in _HDF5:
        with Hdf5Files() as files, damage_reported(path.name):
            file = files.open(path)
            names = [name.decode() for name in file[wanted][()].tolist()] if wanted in file else None
            there = [f"mask/{name}" for name in file.get("mask", ())]
    if names is None:
        raise UsageError(
            f"{path.name} has no array {wanted} of episodes", hint=f"such as {', '.join(there) or '0-4,7'}"
        )
    by_name = {table.name.rpartition(": ")[2]: table for table in tables}
    missing = [name for name in names if name not in by_name]
    if missing or not names:
        raise ObjectNotFoundError(f"{path.name}: {wanted} names {missing[0] if missing else 'no episode'}")
    return sorted((by_name[name] for name in dict.fromkeys(names)), key=lambda table: natural(table.name))


def join_columns(table: Table, given: Mapping[str, Given]) -> dict[str, str | float]:
    """A map without entries of several arrays: ``["x", "y"]``, ``"x,y"`` and ``"joint_*"`` become one array ``[n, how many]``.

    The table gets these arrays. Entries stay as they are where the arrays are not of one number per row.
    Raises UsageError for arrays with different numbers of rows, and for entries of other types.
    """
    plain: dict[str, str | float] = {}
    _split_columns(table, given)
    for key, value in given.items():
        if isinstance(value, bytes) or not isinstance(value, (str, int, float, Sequence)):
            message = f"{table.name}: the map gives {key} as {value!r}"
            raise UsageError(message, hint="an entry is the name of an array, several names, or a number (reward=0)")
        names = [] if isinstance(value, (int, float)) else _several(table, value)
        columns = [table.values[name] for name in names if name in table.values]
        if names and len(columns) == len(names) and all(column.shape[1:] in ((), (1,)) for column in columns):
            if len({column.shape[:1] for column in columns}) > 1:
                rows = ", ".join(f"{name} {column.shape[0]}" for name, column in zip(names, columns))
                message = f"{table.name}: {key} joins arrays of different lengths: {rows}"
                raise UsageError(message, hint="give each its own key, such as observation/NAME")
            joined = plain[key] = ",".join(names)
            table.values[joined] = _Joined(tuple(names), columns)
        else:
            plain[key] = value if isinstance(value, (str, int, float)) else ",".join(map(str, value))
    return plain


def _split_columns(table: Table, given: Mapping[str, Given]) -> None:
    """Numbered columns that a map names, rather than the array that they were made into, become separate arrays."""
    entries = [value if isinstance(value, (list, tuple)) else [value] for value in given.values()]
    names = {name.strip() for entry in entries for one in entry if isinstance(one, str) for name in one.split(",")}

    def is_stated(array: str) -> bool:
        return any(array == name or ("*" in name and fnmatchcase(array, name)) for name in names)

    for array, columns in table.columns.items():
        named = [column for column in columns if is_stated(column)]
        if not named or is_stated(array):
            continue
        values = table.values[array]
        for column in named:
            table.values[column] = Part(values, (..., columns.index(column))) if len(columns) > 1 else values
        if len(named) == len(columns):
            del table.values[array]


def _several(table: Table, value: str | Sequence[str]) -> list[str]:
    """The names in an entry of a map, if it gives several."""
    if not isinstance(value, str):
        return list(value)
    if value in table.values:
        return []
    if "*" in value:
        every = (*table.values, *table.unreadable)  # where one cannot be read, they are not joined, and `roles` refuses
        return sorted((name for name in every if fnmatchcase(name, value)), key=natural)
    return [name.strip() for name in value.split(",")] if "," in value else []


@dataclass(frozen=True)
class _Joined:
    """Columns of one number per row, side by side."""

    names: tuple[str, ...]
    columns: Sequence[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(*(column.dtype for column in self.columns))

    @property
    def shape(self) -> tuple[int, ...]:
        return (min(column.shape[0] for column in self.columns), len(self.columns))

    def __getitem__(self, rows: slice) -> np.ndarray:
        return _side_by_side([np.asarray(column[rows]).reshape(-1) for column in self.columns]).astype(self.dtype)


def _side_by_side(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Columns ``[n]`` as one array ``[n, columns]`` of their common dtype.

    Raises UsageError for integers that this dtype, a float, would round: those beyond 2^53 beside columns of fractions.
    """
    joined = np.stack(columns, -1)
    for column in columns:
        if joined.dtype.kind == "f" and column.dtype.kind in "iu" and column.dtype.itemsize == 8:
            beyond = (column > 1 << 53) | (column < -(1 << 53)) if column.dtype.kind == "i" else column > 1 << 53
            if beyond.any():
                message = (
                    f"columns of {joined.dtype} would round the integer {column[beyond][0]} of a column beside them"
                )
                raise UsageError(message, hint="map the column of integers to its own key")
    return joined


# -- files ---------------------------------------------------------------------------------------------------------------


@contextmanager
def open_tables(path: Path, scratch: Path, split: str | None = None) -> Iterator[list[Table]]:
    """The tables of a file or folder, or of a split of it, in order; ``scratch`` is a folder for what must be unpacked.

    Raises UsageError for files that cannot be read, CorruptSourceError for damaged files, MissingExtraError.
    """
    with Hdf5Files() as files:
        yield _open(path, scratch, files, split)


def _open(path: Path, scratch: Path, files: Hdf5Files, split: str | None) -> list[Table]:
    if path.is_dir():
        return _open_folder(path, scratch, files, split)
    tables = _open_file(path, scratch, files, split)
    if tables[0].kind == "table" and _EPISODE.search(path.stem) and not re.search(r"\d+-of-\d+", path.stem):
        tables[0].kind = "file"
    return tables


def _open_file(path: Path, scratch: Path, files: Hdf5Files, split: str | None) -> list[Table]:
    suffix = suffix_of(path)
    if suffix in PICKLES:
        message = f"{path.name} is a pickle, or may hold one: reading it would run whatever code it names"
        hint = 'where you trust it, load it yourself and save the arrays: numpy.savez("own.npz", observation=..., action=...)'
        raise UsageError(message, hint=hint)
    if suffix in _HDF5:
        return _open_hdf5(path, files, split)
    if split is not None:
        choose(path.name, (), split)
    if suffix == ".npz":
        return [_open_npz(path, scratch)]
    if suffix == ".npy":
        return [_open_npy({"": path}, path.name)]
    if suffix in _COLUMNS:
        return [_open_columns(path, scratch)]
    raise UsageError(f"{path} is not read as arrays", hint=f"what is: {', '.join(SUFFIXES)}, and folders of these")


def _open_folder(path: Path, scratch: Path, files: Hdf5Files, split: str | None) -> list[Table]:
    checkpoint = path.parent if (path / "storage_metadata.json").is_file() else None
    if path.parent.name == "tensors" and (path.parent.parent / "state.json").is_file():
        checkpoint = path.parent.parent
    if checkpoint or (path / "rbdata_storage.json").is_file():
        message = (
            f"{path.name} is the folder of a LazyMemmapStorage: it has rows that were never written, and is a ring"
        )
        hint = "write a checkpoint with buffer.dumps(), and convert that"
        raise UsageError(message, hint=f"convert {checkpoint}, the checkpoint" if checkpoint else hint)
    if any((path / name).is_file() for name in ZARR):
        message = f"{path.name} is a Zarr store, which is not read"
        hint = (
            'open it yourself: rbdata.from_arrays({"observation": store["data/obs"][:], ..., "episode_ends": ...}, ID)'
        )
        raise UsageError(message, hint=hint)
    if (path / "meta.json").is_file():
        names = exported_names() if (path / EXPORTED.decode()).is_file() else NAMES
        return [memory_table(read_memmap(path), path.name, names)]
    if (path / "storage" / "meta.json").is_file():
        return [_open_torchrl_checkpoint(path)]
    if (path / "tensors").is_dir() and (path / "state.json").is_file():
        return [_open_checkpoint(path)]
    by_split = data_files(path)
    kinds = {suffix_of(one) for some in by_split.values() for one in some}
    if set(by_split) != {""} or not kinds & {*_HDF5}:  # which may hold a group for each split
        by_split, split = {"": by_split.get(choose(path.name, by_split, split), [])}, None
    found = by_split[""]
    kinds = {suffix_of(one) for one in found}
    if kinds == {".npy"}:
        top = path if len({one.parent for one in found}) > 1 else found[0].parent
        return [_open_npy({one.relative_to(top).with_suffix("").as_posix(): one for one in found}, path.name)]
    if len(kinds) != 1:
        there = ", ".join(sorted(kinds)) or f"no {', '.join(SUFFIXES)}"
        message = f"{path} holds {there}: files of one kind are read as a dataset"
        raise UsageError(message, hint="convert a part of them")
    tables = []
    folders = Counter(one.parent for one in found)
    for one in found:
        inside = one.relative_to(path).parent
        for table in _open(one, scratch, files, split):  # files of one name lie in folders of their own
            table.name = (inside / table.name).as_posix()
            # One of several that are named as episodes are, or are alone in a folder that is.
            is_named = table.kind == "file" or (folders[one.parent] == 1 and bool(_EPISODE.search(inside.name)))
            if is_named and table.kind in ("file", "table") and len(found) > 1:
                table.kind = "episode"
            elif table.kind == "table":
                table.kind = "file"
            tables.append(table)
    return tables


def _open_checkpoint(path: Path) -> Table:
    """The records of a replay buffer's checkpoint, in the order in which they were written."""
    storage = read_json(path / "state.json").get("state", {}).get("_storage", {})
    rows = storage.get("_storage")
    if not isinstance(rows, dict) or "name" not in rows:
        message = f"{path.name} is a checkpoint whose storage holds records of their own, not rows of tensors"
        raise UsageError(message, hint="load it into a buffer, and give rbdata.from_arrays what buffer[:] holds")
    table = memory_table(read_memmap(path / "tensors" / str(rows["name"])), path.name)
    return _in_order(table, path, storage.get("_len"), storage.get("newest", -1) + 1, bool(storage.get("in_order")))


def _open_torchrl_checkpoint(path: Path) -> Table:
    """The records of a checkpoint of TorchRL's, in the order in which they were written."""
    table = memory_table(read_memmap(path / "storage"), path.name)
    storage, writer = read_json(path / "storage" / "storage_metadata.json"), path / "writer" / "metadata.json"
    written = read_json(writer) if writer.is_file() else {}
    ordered = "rank_key" not in written  # which a TensorDictMaxValueWriter has
    return _in_order(table, path, storage.get("len"), written.get("cursor", 0), ordered)


def _in_order(table: Table, path: Path, filled: Any, cursor: Any, ordered: bool) -> Table:
    """The records of a ring from the oldest one on; ``cursor`` is the row that is written next."""
    if not isinstance(filled, int) or not isinstance(cursor, int):
        raise CorruptSourceError(f"{path.name}: its storage does not say how many records it holds")
    if not ordered:
        message = f"{path.name} is a checkpoint whose records are not in order of time, so that no episodes can be told"
        raise UsageError(message, hint="load it into a buffer, and give rbdata.from_arrays its records in order")
    for name, value in table.values.items():
        begin = cursor if filled == len(value) else 0  # a ring that is not full begins at its first row
        table.values[name] = _Ring(value, filled, begin % max(1, filled))
    table.values.pop("index", None)  # where TorchRL's writer put each record
    return table


@dataclass(frozen=True)
class _Ring:
    """The ``rows`` of an array that a ring has from row ``first`` on: those from its row ``begin`` on, then those before it."""

    array: Any
    rows: int
    begin: int
    first: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.array.shape[1:])

    def __getitem__(self, rows: slice) -> np.ndarray:
        low, high, _ = rows.indices(self.rows)
        low, high, stop = low + self.begin, high + self.begin, self.rows
        ranges = (low, min(high, stop)), (max(0, low - stop), max(0, high - stop))
        parts = [self.array[self.first + a : self.first + b] for a, b in ranges if a < b]
        return np.concatenate(parts) if parts else self.array[:0]


# -- NumPy ---------------------------------------------------------------------------------------------------------------


def _open_npy(paths: Mapping[str, Path], name: str) -> Table:
    """A table of ``.npy`` files by the names of their arrays; a single one without a name has fields."""
    table = Table(name, {})
    for key, path in paths.items():
        try:
            _add(table, key, npy_rows(path))
        except (ValueError, EOFError) as error:
            raise CorruptSourceError(f"{path.name} is not a .npy file of numbers: {reason(error)}") from error
    if list(table.values) == [""]:
        raise UsageError(
            f"{name} is one array without fields", hint="convert the folder with the .npy files of all arrays"
        )
    return table


def _add(table: Table, key: str, rows: Any) -> None:
    """Add an array; an array with fields is one for each."""
    for inner in rows.dtype.names or ():
        _add(table, f"{key}/{inner}" if key else inner, Part(rows, inner))
    if not rows.dtype.names:
        table.values[key] = rows


def _open_npz(path: Path, scratch: Path) -> Table:
    with ZipArchive(path, path.name) as archive:
        table = Table(path.name, {}, names=exported_names("episode_lengths") if archive.comment == EXPORTED else NAMES)
        for member in archive.members:
            if not member.endswith(".npy"):
                continue
            try:
                _add(table, member.removesuffix(".npy"), _member_rows(path, archive, member, scratch))
            except CorruptSourceError:
                raise
            except (ValueError, EOFError) as error:  # objects, mostly
                table.unreadable[member.removesuffix(".npy")] = reason(error)
            except OSError as error:
                _refuse_full(error, path, scratch)
                raise
    return table


def _member_rows(path: Path, archive: ZipArchive, member: str, scratch: Path) -> FileRows:
    """An array of an archive: read where it is stored, else unpacked first."""
    if archive.is_stored(member):
        begin, end = archive.place(member)
        return npy_rows(path, begin, end, lambda: _check_member(path, member))
    scratch.mkdir(parents=True, exist_ok=True)
    handle, unpacked = mkstemp(".npy", dir=scratch)
    with os.fdopen(handle, "wb") as target:
        target.writelines(archive.stream(member))
    return npy_rows(Path(unpacked))


def _check_member(path: Path, member: str) -> None:
    """Raise CorruptSourceError for a member with another checksum than the archive states."""
    with ZipArchive(path, path.name) as archive:
        deque(archive.stream(member), 0)


def _refuse_full(error: BaseException, path: Path, scratch: Path) -> None:
    if isinstance(error, OSError) and is_full(error):
        message = f"the disk is full: {path.name} does not fit into {scratch} when it is unpacked"
        raise DiskError(message, hint="make room, or choose another root") from error


# -- HDF5 ----------------------------------------------------------------------------------------------------------------


def _open_hdf5(path: Path, files: Hdf5Files, split: str | None) -> list[Table]:
    import h5py

    with damage_reported(path.name):
        group, place = files.open(path)["/"], ""
        while len(group) == 1:
            ((name, inner),) = _members(group).items()
            if not isinstance(inner, h5py.Group) or _is_episode(inner) or name.lower() == split:
                break
            group, place = inner, f"{place}{name}/"
        members, others = _members(group), dict[str, str]()
        splits = {name.lower(): name for name, item in members.items() if isinstance(item, h5py.Group)}
        splits = {name: theirs for name, theirs in splits.items() if name in SPLITS}
        if splits and (len(splits) > 1 or split is not None):
            chosen = splits[choose(path.name, splits, split)]
            members, place, split = _members(group := members[chosen]), f"{place}{chosen}/", None
        elif split is not None:
            choose(path.name, splits, split)
        if {"columns", "num_episodes"} <= set(members):
            return _d3rlpy_tables(members, files, path, place)
        if "_meta" in members and ("_size" in group.attrs or "_lengths" in members):
            return _tianshou_tables(group, members, files, path, place)
        episodes = _episodes(members)
        # robomimic: data/demo_0, mask/...
        if not episodes and isinstance(members.get("data"), h5py.Group):
            inside = _members(members["data"])
            episodes = _episodes(inside)
            if episodes:
                others = _beside_data(members, path.name)
                members, place = inside, f"{place}data/"
        # Arrays of the whole file may lie beside numbered groups; beside other groups, arrays have rows of their own.
        has_arrays = any(isinstance(item, h5py.Dataset) for item in members.values())
        if episodes and (not has_arrays or (all(map(_is_numbered, episodes)) and not _is_episode(members))):
            others |= _other_groups(members, set(episodes), path.name)
            tables = []
            for name in sorted(episodes, key=natural):
                table = _hdf5_table(f"{path.name}: {name}", members[name], files, path, f"{place}{name}/")
                table.kind = "episode" if _is_numbered(name) else "group"
                tables.append(table)
            tables[0].unreadable.update(others)
            return tables
        if not splits:
            group, place = files.open(path)["/"], ""
        return [_hdf5_table(path.name, group, files, path, place)]


def _is_numbered(name: str) -> bool:
    """Whether a group is named as an episode is: with a number that is not one of an environment, a worker, a part."""
    return bool(re.search(r"\d", name)) and not _SEVERAL.search(name)


def _d3rlpy_tables(members: Mapping[str, Any], files: Hdf5Files, path: Path, place: str) -> list[Table]:
    """The episodes that d3rlpy's ``ReplayBuffer.dump`` wrote: ``observations_0``, or several arrays ``observations_0_0`` ..."""
    tables = []
    columns = [name.decode() for name in members["columns"][()].tolist()]
    for number in range(int(members["num_episodes"][()])):
        values: dict[str, Any] = {}
        for column in columns:
            name = f"{column}_{number}"
            inner = [one for one in members if re.fullmatch(rf"{re.escape(name)}_\d+", one)]
            parts = {column: name} if name in members else {f"{column}/{one.rpartition('_')[2]}": one for one in inner}
            if not parts:
                raise CorruptSourceError(f"{path.name}: {name} is not there, and num_episodes says that it is")
            values |= {key: Hdf5Rows(files, path, place + one, members[one]) for key, one in parts.items()}
        tables.append(Table(f"{path.name}: episode {number}", values, kind="episode"))
    return tables


def _tianshou_tables(group: Any, members: Mapping[str, Any], files: Hdf5Files, path: Path, place: str) -> list[Table]:
    """The rows of a ring that Tianshou's ``ReplayBuffer.save_hdf5`` wrote, in order; a table for each of several rings."""
    whole = _hdf5_table(path.name, members["_meta"], files, path, f"{place}_meta/")
    values = {f"_meta/{name}": rows for name, rows in whole.values.items()}
    unreadable = {f"_meta/{name}": why for name, why in whole.unreadable.items()}
    if "_lengths" in members:  # of a buffer for each environment, one after the other in the arrays
        first, filled, last = (members[name][()].tolist() for name in ("_offset", "_lengths", "last_index"))
        sizes = np.diff([*first, max((rows.shape[0] for rows in values.values() if rows.shape), default=0)]).tolist()
        rings = [(a, n, (b + 1 - a) if n == size else 0) for a, n, b, size in zip(first, filled, last, sizes)]
    else:
        filled = int(group.attrs["_size"])
        begin = int(group.attrs.get("_insertion_idx", group.attrs.get("_index", 0)))
        rings = [(0, filled, begin if filled == int(group.attrs.get("maxsize", filled)) else 0)]
    return [
        Table(
            path.name if len(rings) == 1 else f"{path.name}: buffer {number}",
            {name: _Ring(rows, filled, begin % filled, first) for name, rows in values.items() if rows.shape},
            dict(unreadable),
        )
        for number, (first, filled, begin) in enumerate(rings)
        if filled
    ]


def _members(group: Any) -> dict[str, Any]:
    """The groups and arrays of a group by name; for one that is not read, a text that says why."""
    return {name: unread_part(group, name) or group[name] for name in group}


def _beside_data(members: Mapping[str, Any], where: str) -> dict[str, str]:
    """What lies beside a group ``data`` of episodes, and why it is not read.

    Raises UsageError for another group of episodes: the data would lack them.
    """
    import h5py

    others = {name: item for name, item in members.items() if name != "data"}
    for name, item in others.items():
        if isinstance(item, h5py.Group) and _episodes(_members(item)):
            message = f"{where}: data and {name} both hold a group per episode"
            raise UsageError(message, hint="copy each of them to a file, and convert these one by one")
    return dict.fromkeys(others, "it lies beside the episodes, which are in data")


def _other_groups(members: Mapping[str, Any], episodes: Collection[str], where: str) -> dict[str, str]:
    """What lies beside the groups of the episodes, and why it is not read.

    Raises UsageError for what is named as the episodes are, CorruptSourceError where that is a link that leads nowhere:
    without it the data would lack an episode.
    """
    stems = {re.sub(r"\d+", "#", name) for name in episodes}
    others = [name for name in members if name not in episodes]
    for name in sorted(others, key=natural):
        if re.sub(r"\d+", "#", name) not in stems:
            continue
        if isinstance(members[name], str):
            raise CorruptSourceError(f"{where}: {name} is not there: {members[name]}")
        there = ", ".join(_datasets(members[name])[0]) or "no arrays"
        message = f"{where}: {name} is named as the episodes are, and has no observation or no action"
        raise UsageError(message, hint=f"it has {there}; rename it, or leave it out of the file")
    return dict.fromkeys(others, "it lies beside the episodes")


def _episodes(members: Mapping[str, Any]) -> list[str]:
    """The groups that are an episode each, by the names of their arrays; or by their own names, where nothing else is there
    and these differ in a number alone."""
    import h5py

    groups = [name for name, item in members.items() if isinstance(item, h5py.Group)]
    known = [name for name in groups if _is_episode(members[name])]
    is_numbered = len(members) > 1 and all(map(_NUMBERED.fullmatch, members))
    is_series = is_numbered and len({re.sub(r"\d+", "#", name) for name in members}) == 1
    is_all = all(isinstance(item, (h5py.Group, str)) for item in members.values())
    return known or (groups if is_series and is_all else [])


def _is_episode(group: Any) -> bool:
    """Whether a group holds the arrays of an episode."""
    names = {name.lower() for name in group}
    return bool(names & set(NAMES["action"])) and bool(names & set(NAMES["observation"]))


def _hdf5_table(name: str, group: Any, files: Hdf5Files, path: Path, place: str) -> Table:
    """The table of a group, which is at ``place`` in a file."""
    arrays, unreadable = _datasets(group)
    return Table(name, {key: Hdf5Rows(files, path, place + key, array) for key, array in arrays.items()}, unreadable)


def _datasets(group: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays below a group, and those that cannot be read with the reason."""
    import h5py

    values: dict[str, Any] = {}
    unreadable: dict[str, str] = {}

    def visit(inside: Any, prefix: str, above: Collection[Any]) -> None:
        for key, item in _members(inside).items():
            name = prefix + key
            if isinstance(item, h5py.Group):
                if item.id not in above:
                    visit(item, name + "/", {*above, item.id})
            elif not isinstance(item, h5py.Dataset):
                unreadable[name] = item if isinstance(item, str) else f"it is a {type(item).__name__}"
            elif item.shape is None or item.dtype.hasobject or item.dtype.kind not in "biuf":
                unreadable[name] = f"its dtype is {item.dtype}"
            else:
                values[name] = item

    visit(group, "", {group.id})
    return values, unreadable


# -- columns -------------------------------------------------------------------------------------------------------------


def _open_columns(path: Path, scratch: Path) -> Table:
    """A file of columns, written to a temporary folder batch by batch."""
    require_pyarrow(f"reading {suffix_of(path)} files needs pyarrow, which is not installed")
    import pyarrow

    scratch.mkdir(parents=True, exist_ok=True)
    columns = _Columns(path.name, Path(mkdtemp(dir=scratch)))
    try:
        for batch in _batches(path):
            columns.append(batch)
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
        _refuse_full(error, path, scratch)
        if isinstance(error, OSError) and is_about_reader(error):
            raise
        raise CorruptSourceError(f"{path.name} cannot be read: {reason(error)}") from error
    return columns.table()


def _batches(path: Path) -> Iterator[Any]:
    """The record batches of a file."""
    import pyarrow
    from pyarrow import ipc

    suffix = suffix_of(path)
    if suffix == ".parquet":
        yield from open_parquet(path, path.name).iter_batches()
    elif suffix in _TEXT:
        yield from _csv_batches(path, "\t" if suffix.startswith(".tsv") else ",")
    else:
        with pyarrow.memory_map(str(path)) as source:
            try:
                file = ipc.open_file(source)
            except pyarrow.ArrowInvalid:  # of the streaming format
                source.seek(0)
                yield from ipc.open_stream(source)
                return
            yield from map(file.get_batch, range(file.num_record_batches))


def _csv_batches(path: Path, delimiter: str) -> Iterator[Any]:
    """The rows of a text table. Types follow from all of them: whole numbers may be followed by a fraction."""
    import pyarrow
    from pyarrow import csv

    opened_as = gzip.open if suffix_of(path).endswith(".gz") else open  # pyarrow goes by the name, too
    with opened_as(path, "rt", encoding="utf-8", errors="replace") as file:
        head = file.readline(_HEAD_BYTES)
    if delimiter not in head and ";" in head:  # as spreadsheets write it if the comma is the decimal separator
        delimiter = ";"
    types: dict[str, Any] = {}
    names: list[str] = []

    def opened(columns: Sequence[str] = ()) -> Any:
        # Whole numbers, then fractions, then text: a column that does not fit a guess gets the next one.
        convert = csv.ConvertOptions(column_types=types, include_columns=columns, null_values=_EMPTY)
        reader = csv.open_csv(path, parse_options=csv.ParseOptions(delimiter=delimiter), convert_options=convert)
        names[:] = reader.schema.names
        return reader

    while True:
        try:
            deque(opened(), 0)
            break
        except pyarrow.ArrowInvalid as error:
            wrong = re.search(r"In CSV column #(\d+)", str(error))
            if wrong is None or not names:
                raise
            name = names[int(wrong[1])]
            types[name] = pyarrow.string() if name in types else pyarrow.float64()
    large: set[str] = set()
    for batch in opened():
        for name, column in zip(batch.schema.names, batch.columns):
            if pyarrow.types.is_floating(column.type) and (np.abs(column.drop_null().to_numpy()) > 1 << 53).any():
                large.add(name)
        yield batch.rename_columns([name.strip() for name in batch.schema.names])
    if large:
        types |= dict.fromkeys(large, pyarrow.string())
        _check_not_rounded(opened(sorted(large)), path.name)


def _check_not_rounded(batches: Iterable[Any], where: str) -> None:
    """Raise CorruptSourceError for whole numbers in text that float64, the type of their column, does not hold."""
    import pyarrow.compute

    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns):
            whole = pyarrow.compute.match_substring_regex(column, r"^\s*[+-]?[0-9]{16,}(\.0*)?\s*$")
            for text in column.filter(whole).to_pylist():
                if int(text.partition(".")[0]) != int(float(text)):
                    message = (
                        f"{where}: the whole number {text.strip()} of {name} would be rounded to {float(text):.0f}"
                    )
                    hint = "int64, without fractions in the column, holds those up to 2^63; leave other columns out"
                    raise CorruptSourceError(message, hint=hint)


class _Columns:
    """Record batches as arrays in files: a column is one array, and so are columns ``obs_0 .. obs_3`` together."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self._rows = 0
        #: By array: the columns that it is made of, and dtype and shape of a row.
        self._made_of: dict[str, list[str]] | None = None
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._unreadable: dict[str, str] = {}
        self._names: Mapping[str, Sequence[str]] = NAMES

    def append(self, batch: Any) -> None:
        """Write the rows of a batch. Raises CorruptSourceError for empty cells, and for lists that change their length."""
        if self._made_of is None:
            twice = [name for name, times in Counter(batch.schema.names).items() if times > 1]
            if twice:
                message = f"{self._name} has several columns named {twice[0]!r}"
                raise CorruptSourceError(message, hint="its first line names the columns")
            if EXPORTED in (batch.schema.metadata or {}):  # a leaf is one column there, also one named agent_0
                self._names = exported_names("episode")
                self._made_of = {name: [name] for name in batch.schema.names}
                self._made_of.pop("step", None)  # the step's number in its episode, which follows from the rows
            else:
                self._made_of = _joined(batch.schema)
        for number, (name, columns) in enumerate(self._made_of.items()):
            if name in self._unreadable:
                continue
            try:
                parts = [self._numbers(batch.column(column), column) for column in columns]
            except _NotNumbersError as error:
                self._unreadable[name] = str(error)
                continue
            rows = parts[0] if len(columns) == 1 else _side_by_side(parts)
            if ROW_OF_ONE in (batch.schema.field(columns[0]).metadata or {}):
                rows = rows.reshape(-1, 1)
            kind = (rows.dtype, rows.shape[1:])
            if self._kinds.setdefault(name, kind) != kind:
                (dtype, shape), (now, other) = self._kinds[name], kind
                message = f"{self._name}: {name} has rows {dtype} {shape} and, from row {self._rows} on, {now} {other}"
                raise CorruptSourceError(message, hint="lists of one column have one length")
            with (self._folder / str(number)).open("ab") as file:
                file.write(np.ascontiguousarray(rows).data)
        self._rows += batch.num_rows

    def table(self) -> Table:
        """The arrays, mapped."""
        values, joined = {}, {}
        for number, (name, columns) in enumerate((self._made_of or {}).items()):
            if name in self._unreadable:
                continue
            dtype, shape = self._kinds[name]
            path, shape = self._folder / str(number), (self._rows, *shape)
            values[name] = FileRows(path, dtype, shape) if self._rows else np.zeros(shape, dtype)
            if columns != [name]:
                joined[name] = columns
        return Table(self._name, values, self._unreadable, joined, self._names)

    def _numbers(self, column: Any, name: str) -> np.ndarray:
        """The rows of a column: numbers, or lists of them of one length."""
        import pyarrow

        if column.null_count:
            row = self._rows + column.is_null().to_pylist().index(True)
            message = f"{self._name}: {name} of row {row} is empty"
            raise CorruptSourceError(message, hint="fill it, or leave the row out")
        kind = column.type
        if pyarrow.types.is_fixed_size_list(kind) or pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
            inner = self._numbers(column.flatten(), name)
            width = len(inner) // max(1, len(column))
            if not pyarrow.types.is_fixed_size_list(kind) and (np.diff(column.offsets.to_numpy()) != width).any():
                message = f"{self._name}: the lists of {name} differ in length, after row {self._rows}"
                hint = (
                    "where a row is an episode: rbdata.from_episodes(pyarrow.parquet.read_table(PATH).to_pylist(), ID)"
                )
                raise CorruptSourceError(message, hint=hint)
            return inner.reshape(len(column), width, *inner.shape[1:])
        if not is_number(pyarrow.types, kind):
            raise _NotNumbersError(f"its type is {kind}")
        return column.to_numpy(zero_copy_only=False)


class _NotNumbersError(ValueError):
    """A column holds something other than numbers."""


def _joined(schema: Any) -> dict[str, list[str]]:
    """Columns by the array that they belong to: the numbers ``obs_0``, ``obs_1`` ... belong to ``obs``, if each number from 0
    on occurs once (not as ``obs_1`` and ``obs_01``). Columns of lists are arrays alone."""
    import pyarrow

    names = schema.names
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match and not pyarrow.types.is_nested(schema.field(name).type):
            numbered.setdefault(match[1], []).append((int(match[2]), name))
    stems: dict[str, str] = {}
    for stem, parts in numbered.items():
        if stem and stem not in names and sorted(number for number, _ in parts) == list(range(len(parts))):
            stems |= {name: stem for _, name in parts}
    made_of: dict[str, list[str]] = {}
    for name in names:
        stem = stems.get(name, name)
        made_of[stem] = [column for _, column in sorted(numbered[stem])] if name in stems else [name]
    return made_of
