"""Opens everything that holds a user's arrays as tables.

    .npz, or a folder with one per episode       compressed members are unpacked to a temporary folder
    .npy with fields, or a folder of .npy
    .h5, .hdf5                                   arrays of any names, or a group per episode (`hdf5_tables`)
    .parquet, .arrow, .feather, .csv, .csv.gz    columns; lists of one length, and columns ``obs_0 .. obs_3``, are one array
                                                 (`column_tables`)
    a folder of TensorDict.memmap                also the storage of a replay buffer's checkpoint (`checkpoints`)

Memory does not grow with a file: what cannot be read by rows is written to a temporary folder. Files are open only while they
are read (`stored`). Pickles are refused: reading a pickle runs any code that it names.
"""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from ....errors import CorruptSourceError, ObjectNotFoundError, UsageError, reason
from ....storage.tensordict_folder import read_memmap
from ...formats.arrow import EXPORTED
from ...formats.packed import ZipArchive
from ...ingest.request import parse_numbers, select_numbered
from .checkpoints import open_checkpoint, open_torchrl_checkpoint
from .files import COLUMNS, HDF5, PICKLES, SUFFIXES, ZARR, choose, data_files, natural, refuse_full, suffix_of
from .roles import NAMES, exported_names
from .stored import FileRows, Hdf5Files, Part, npy_rows
from .tables import Table, memory_table

#: Names of files that are one episode each.
_EPISODE = re.compile(r"(?:^|[^a-z])(?:episode|ep|demo|demonstration|traj|trajectory|trial)[^a-z0-9]*\d", re.IGNORECASE)


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
    if suffix in HDF5:
        from .hdf5_tables import open_hdf5

        return open_hdf5(path, files, split)
    if split is not None:
        choose(path.name, (), split)
    if suffix == ".npz":
        return [_open_npz(path, scratch)]
    if suffix == ".npy":
        return [_open_npy({"": path}, path.name)]
    if suffix in COLUMNS:
        from .column_tables import open_columns

        return [open_columns(path, scratch)]
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
        return [open_torchrl_checkpoint(path)]
    if (path / "tensors").is_dir() and (path / "state.json").is_file():
        return [open_checkpoint(path)]
    by_split = data_files(path)
    kinds = {suffix_of(one) for some in by_split.values() for one in some}
    if set(by_split) != {""} or not kinds & {*HDF5}:  # which may hold a group for each split
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
    if suffix_of(path) in HDF5:
        from .hdf5_tables import named_groups

        names, there = named_groups(path, wanted)
    if names is None:
        raise UsageError(
            f"{path.name} has no array {wanted} of episodes", hint=f"such as {', '.join(there) or '0-4,7'}"
        )
    by_name = {table.name.rpartition(": ")[2]: table for table in tables}
    missing = [name for name in names if name not in by_name]
    if missing or not names:
        raise ObjectNotFoundError(f"{path.name}: {wanted} names {missing[0] if missing else 'no episode'}")
    return sorted((by_name[name] for name in dict.fromkeys(names)), key=lambda table: natural(table.name))


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
                refuse_full(error, path, scratch)
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
