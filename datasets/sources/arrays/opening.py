"""Opens everything that holds a user's arrays as tables.

    .npz, or a folder with one per episode       compressed members are unpacked to a temporary folder
    a folder of .npy
    .h5, .hdf5                                   arrays of any names, or a group per episode (`hdf5_tables`)
    .parquet, .arrow, .feather, .csv, .csv.gz    columns; lists of one length, and columns ``obs_0 .. obs_3``, are one array
                                                 (`column_tables`)
    a folder of TensorDict.memmap
    a replay buffer's checkpoint                 (`checkpoints`)

What cannot be read by rows is written to a temporary folder, and files are open only while they are read (`stored`). Pickles
are refused: reading a pickle runs any code that it names.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp

from ....errors import CorruptSourceError, UsageError, reason
from ....storage.tensordict_folder import read_memmap
from ...formats.packed import ZipArchive
from .checkpoints import open_checkpoint
from .files import (
    COLUMNS,
    EPISODE,
    HDF5,
    PICKLES,
    SHARD,
    SUFFIXES,
    ZARR,
    data_files,
    refuse_full,
    refuse_split,
    suffix_of,
)
from .stored import FileRows, Hdf5Files, npy_rows
from .tables import Table, memory_table


@contextmanager
def open_tables(path: Path, scratch: Path, split: str | None = None) -> Iterator[list[Table]]:
    """The tables of a file or folder, or of a split of it, in order; ``scratch`` is a folder for what must be unpacked.

    Raises UsageError for files that cannot be read, CorruptSourceError for damaged files, MissingExtraError.
    """
    with Hdf5Files() as files:
        if path.is_dir():
            yield _open_folder(path, scratch, files, split)
        else:
            refuse_split(path.name, split)
            yield _open_file(path, scratch, files)


def _open_file(path: Path, scratch: Path, files: Hdf5Files) -> list[Table]:
    suffix = suffix_of(path)
    if suffix in PICKLES:
        message = f"{path.name} is a pickle, or may hold one: reading it would run whatever code it names"
        hint = 'where you trust it, load it yourself and save the arrays: numpy.savez("own.npz", observation=..., action=...)'
        raise UsageError(message, hint=hint)
    if suffix in HDF5:
        from .hdf5_tables import open_hdf5

        return open_hdf5(path, files)
    if suffix == ".npz":
        return [_open_npz(path, scratch)]
    if suffix in COLUMNS:
        from .column_tables import open_columns

        return [open_columns(path, scratch)]
    if suffix == ".npy":
        raise UsageError(f"{path.name} is one array", hint="convert the folder with the .npy files of all arrays")
    raise UsageError(f"{path} is not read as arrays", hint=f"what is: {', '.join(SUFFIXES)}, and folders of these")


def _open_folder(path: Path, scratch: Path, files: Hdf5Files, split: str | None) -> list[Table]:
    if any((path / name).is_file() for name in ("storage_metadata.json", "rbdata_storage.json")) or (
        path.parent.name == "tensors" and (path.parent.parent / "state.json").is_file()
    ):
        message = f"{path} is the folder of a LazyMemmapStorage: it has rows that were never written, and is a ring"
        raise UsageError(message, hint="convert a checkpoint of the buffer, a folder that buffer.dumps() wrote")
    if any((path / name).is_file() for name in ZARR):
        message = f"{path.name} is a Zarr store, which is not read"
        hint = (
            'open it yourself: rbdata.from_arrays({"observation": store["data/obs"][:], ..., "episode_ends": ...}, ID)'
        )
        raise UsageError(message, hint=hint)
    if (path / "meta.json").is_file():
        return [memory_table(read_memmap(path), path.name)]
    if (path / "storage" / "meta.json").is_file() or ((path / "tensors").is_dir() and (path / "state.json").is_file()):
        return [open_checkpoint(path)]
    found = data_files(path, split)
    kinds = {suffix_of(one) for one in found}
    if kinds == {".npy"}:
        return [_open_npy(found, path)]
    if len(kinds) != 1:
        there = ", ".join(sorted(kinds)) or f"no {', '.join(SUFFIXES)}"
        message = f"{path} holds {there}: files of one kind are read as a dataset"
        hint = 'convert each file or folder, then join them: rbdata.concat(["my/a", "my/b"]).save("my/all")'
        raise UsageError(message, hint=hint if kinds else None)
    every = []
    folders = Counter(one.parent for one in found)
    for one in found:
        tables, inside = _open_file(one, scratch, files), one.relative_to(path).parent
        for table in tables:
            table.name = (inside / table.name).as_posix()  # files of one name lie in folders of their own
        if len(tables) == 1 and len(found) > 1:
            table.is_part = SHARD.search(one.name) is not None
            own = one.stem if folders[one.parent] > 1 else f"{inside.name}/{one.stem}"
            table.is_episode |= not table.is_part and EPISODE.search(own) is not None
        every += tables
    return every


# -- NumPy ---------------------------------------------------------------------------------------------------------------


def _open_npy(found: Sequence[Path], path: Path) -> Table:
    """A table of ``.npy`` files, by their names in their folder."""
    top = path if len({one.parent for one in found}) > 1 else found[0].parent
    table = Table(path.name, {})
    for one in found:
        try:
            table.values[one.relative_to(top).with_suffix("").as_posix()] = npy_rows(one)
        except (ValueError, EOFError) as error:
            raise CorruptSourceError(f"{one.name} is not a .npy file of numbers: {reason(error)}") from error
    return table


def _open_npz(path: Path, scratch: Path) -> Table:
    table = Table(path.name, {})
    with ZipArchive(path, path.name) as archive:
        for member in archive.members:
            name, is_array = member.removesuffix(".npy"), member.endswith(".npy")
            try:
                if is_array:
                    table.values[name] = _member_rows(path, archive, member, scratch)
            except CorruptSourceError:
                raise
            except (ValueError, EOFError) as error:  # objects, mostly
                table.unreadable[name] = reason(error)
            except OSError as error:
                refuse_full(error, path, scratch)
                raise
    return table


def _member_rows(path: Path, archive: ZipArchive, member: str, scratch: Path) -> FileRows:
    """An array of an archive: read where it is stored, else unpacked first. Either way its checksum is compared."""
    if place := archive.place_if_stored(member):
        deque(archive.stream(member), 0)
        return npy_rows(path, *place)
    scratch.mkdir(parents=True, exist_ok=True)
    handle, unpacked = mkstemp(".npy", dir=scratch)
    with os.fdopen(handle, "wb") as target:
        target.writelines(archive.stream(member))
    return npy_rows(Path(unpacked))
