"""Writes a dataset folder in three steps: plan, fill, commit.

1. *Plan*: step leaves and the episode table are written from what is cheap to read; all row counts are then known. Step
   leaves are small (13 bytes a step for Atari): one process appends them in step order (`ColumnWriter`), a block at a time.
2. *Fill*: workers fill the state leaves, part by part (``parts``); the journal records every finished part. Finished
   compressed parts are appended to the blob in order, while later ones are still being filled.
3. *Commit*: the manifest is written and the working folder renamed to the dataset.

If row counts are known only when a part is done (`preprocess`), all bulk leaves are *appended*: like compressed parts, every
part is a separate file until its turn comes, and the plan (episode table, constant leaves) follows the fill.

If a writer is killed at any moment, the next one with the same fingerprint resumes from the journal and produces the same
bytes; work of earlier runs is compared with its checksums once. A working folder with another fingerprint is never silently
discarded.

A larger dataset replaces a smaller one of the same id: the parts that both begin with (`OldDataset`) are copied instead of
fetched again. The new dataset is written next to the old one and then takes its place; readers of the old one go on reading it.
Parts are the same if they are of the same rows (``layout``) of the same object, and a part is copied if its bytes still match
the old manifest; the dictionary of compressed leaves is copied too.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import DamagedDatasetError, RbdataError, SchemaError, UnfinishedDatasetError
from .checksums import Crc32c, crc32c, damaged_ranges, join_ranges, sum_pieces
from .codecs import PLAIN, codec_of
from .codecs.codec import Codec, Sink
from .durable import open_plain, open_replacement, preallocate, replace_by_copy, sync_files, write_atomically
from .episodes import FOLDER as EPISODES
from .episodes import EpisodeTable
from .folder import JOURNAL, RAW, DatasetPlace, check_space, holds_files, remove_links
from .integrity import BlockChecksums, write_table
from .journal import Journal
from .leaf import Leaf
from .manifest import BLOCK_TABLE, FILENAME, Manifest, read_manifest, write_manifest
from .parts import PARTS, TedSink, remove_unfinished
from .schema import Schema
from .tensordict_folder import write_meta

#: Bytes of a constant leaf that are written at once.
_CONSTANT_BLOCK = 1 << 22


class ColumnWriter:
    """Appends rows to every step leaf of a schema in ``folder``; without a folder it only checks and counts.

    Constant leaves are not appended: ``close`` writes them (as a hole if the value is zero).
    """

    def __init__(self, folder: Path | None, schema: Schema) -> None:
        self.rows = 0
        self._folder = folder
        self._leaves = [leaf for leaf in schema.steps if leaf.constant is None]
        self._constants = [leaf for leaf in schema.steps if leaf.constant is not None]
        self._checksums = {leaf.name: Crc32c(0) for leaf in self._leaves}
        self._files: dict[str, BinaryIO] = {}
        if folder is not None:
            for leaf in self._leaves:
                path = folder / leaf.memmap
                path.parent.mkdir(parents=True, exist_ok=True)
                self._files[leaf.name] = open_replacement(path)

    def reserve(self, rows: int) -> None:
        """Raise DiskError if this many rows in total do not fit on the disk."""
        if self._folder is not None:
            size = rows * sum(leaf.row_bytes for leaf in self._leaves)
            check_space(self._folder, size, "the dataset")

    def append(self, columns: Mapping[str, np.ndarray]) -> None:
        """Append rows: one array ``[n, *leaf.shape]`` per step leaf that is not constant.

        Raises SchemaError for other keys, dtypes, shapes or lengths than the schema's.
        """
        names = {leaf.name for leaf in self._leaves}
        if set(columns) != names:
            raise SchemaError(f"columns {sorted(columns)} are not the schema's {sorted(names)}")
        counts = {len(array) for array in columns.values()}
        if len(counts) != 1:
            raise SchemaError(f"columns of different lengths: { ({k: len(v) for k, v in columns.items()}) }")
        for leaf in self._leaves:
            array = columns[leaf.name]
            if array.shape[1:] != leaf.shape or array.dtype.newbyteorder("=") != np.dtype(leaf.dtype):
                got, wanted = f"{array.dtype} {array.shape[1:]}", f"{leaf.dtype} {leaf.shape}"
                raise SchemaError(f"key {leaf.name}: got {got}, the schema says {wanted}")
            if self._folder is not None:
                data = np.ascontiguousarray(array, leaf.np_dtype).tobytes()
                self._checksums[leaf.name].update(data)
                self._files[leaf.name].write(data)
        self.rows += counts.pop()

    def close(self) -> dict[str, list[list[object]]]:
        """Finish all files; returns their recorded ranges by path relative to the folder."""
        if self._folder is None:
            return {}
        ranges: dict[str, list[list[object]]] = {}
        for leaf in self._leaves:
            file = self._files.pop(leaf.name)
            file.close()
            ranges[leaf.memmap] = [self._checksums[leaf.name].record]
        for leaf in self._constants:
            ranges[leaf.memmap] = [_write_constant(self._folder / leaf.memmap, leaf, self.rows)]
        return ranges

    def abandon(self) -> None:
        """Close the files without finishing."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _write_constant(path: Path, leaf: Leaf, rows: int) -> list[object]:
    path.parent.mkdir(parents=True, exist_ok=True)
    total = rows * leaf.row_bytes
    value = np.full((), leaf.constant, leaf.np_dtype)
    block = np.full(min(total, _CONSTANT_BLOCK) // leaf.np_dtype.itemsize, value).tobytes()
    checksum = Crc32c(0)
    with open_replacement(path) as file:
        if not any(value.tobytes()):
            file.truncate(total)
        while checksum.length < total:
            piece = block[: total - checksum.length]
            checksum.update(piece)
            if any(value.tobytes()):
                file.write(piece)
    return checksum.record


Files = dict[str, list[list[Any]]]

#: Kinds of entries that a run can resume from.
_WORK = {"part", "merged", "statistics", "copy", "log"}
#: The entry of a run that no other can go on with.
_ONCE = "once"
#: The entry of appended rows before the first part.
_NOTHING = {"blob": 0, "rows": 0}


class DatasetWriter:
    """Writes one dataset. Use it with the place's lock held.

    ``fingerprint`` identifies everything the resulting bytes depend on. ``restart`` discards unfinished work instead of
    resuming it, unless an earlier restart with the same fingerprint started it; without ``restart``, unfinished work of another
    fingerprint raises UnfinishedDatasetError. ``bulk`` names the leaves that workers fill in ``parts`` parts; the plan appends
    all others. ``appended``: parts of all leaves are appended (`Codec.open_appender` writes them) instead of written in place
    in preallocated files. ``command`` is the command line that continues this run, if there is one. ``continues``: whether
    another run can continue this one's work; otherwise the next run discards it (and ``discarded`` is set).
    """

    def __init__(
        self,
        place: DatasetPlace,
        schema: Schema,
        fingerprint: str,
        *,
        bulk: tuple[str, ...] = (),
        parts: int = 0,
        restart: bool = False,
        appended: bool = False,
        command: str = "",
        continues: bool = True,
    ) -> None:
        self.place, self.schema, self.parts, self.appended = place, schema, parts, appended
        self.bulk = tuple(schema[name] for name in bulk)
        self.folder = place.working
        self.files: Files = {}
        place.check_free(force=restart)
        remove_links(self.folder)
        journal = Journal(self.folder / JOURNAL)
        same = journal.fingerprint == fingerprint
        resumes = same and (not restart or bool(journal.find("restart")))
        self.discarded = bool(journal.find(_ONCE))
        if not resumes and (restart or journal.fingerprint is None or not _holds_work(journal, self.folder)):
            place.discard_working()
            self.folder.mkdir(parents=True)
            journal = Journal(self.folder / JOURNAL)
            journal.start(fingerprint)
            if restart:
                journal.record({"kind": "restart"})
            if not continues:
                journal.record({"kind": _ONCE})
        elif not same:
            message = f"an unfinished {place.id} exists, started with other options, shards or source files"
            asked, command = command, journal.command
            how = f"continue it with `{command}`" if command else "continue it with the options it was started with"
            if command and command == asked:  # the same words: what they name has changed
                how = "undo what was changed since (a file that it reads, or its code) to continue"
            raise UnfinishedDatasetError(message, hint=f"{how}, or start over with --force")
        remove_unfinished(self.folder)
        self._journal = journal
        self._is_proved = False
        if not journal.find("plan"):
            self._record_plan()
        journal.record_command(command)

    def set_schema(self, schema: Schema, bulk: tuple[str, ...], parts: int) -> None:
        """Set the schema and the number of parts if they are known only from the raw files; call before ``columns``."""
        self.schema, self.parts = schema, parts
        self.bulk = tuple(schema[name] for name in bulk)
        if self.appended and self._journal.find("plan")[None].get("parts") != parts:
            self._record_plan()

    def _record_plan(self) -> None:
        self._journal.record({"kind": "plan", "parts": self.parts})

    def remember(self, kind: str, content: Mapping[str, Any], number: int | str = 0) -> None:
        """Record a result in the journal, for the next run if this one is interrupted."""
        self._journal.record({**content, "kind": kind, "number": number})

    def remembered(self, kind: str) -> dict[Any, dict[str, Any]]:
        """The results of this kind that an interrupted run recorded, by number."""
        return self._journal.find(kind)

    def forget(self, kind: str, number: int | str = 0) -> None:
        """Drop a recorded result that is no longer valid."""
        self._journal.forget(lambda entry: (entry.get("kind"), entry.get("number")) == (kind, number))

    def holds_work(self) -> bool:
        """Whether the next run can resume from anything. Reads no files."""
        return _holds_work(self._journal, self.folder)

    # -- plan ------------------------------------------------------------------------------------------------------

    def columns(self) -> ColumnWriter:
        """The writer of step rows for the plan; every run writes them again, with the same bytes."""
        return self.begin_plan()()

    def begin_plan(self) -> Callable[[], ColumnWriter]:
        """A picklable function that opens the writer of `columns`: another process may make the plan."""
        small = Schema(tuple(leaf for leaf in self.schema.steps if leaf not in self.bulk))
        return partial(ColumnWriter, self.folder, small)

    def planned(self, files: Mapping[str, list[list[Any]]], episodes: EpisodeTable, digest: str = "") -> None:
        """Add the finished columns (``ColumnWriter.close``) and the episode table, and preallocate the states.

        ``digest`` identifies the plan made from the source's data. Raises UnfinishedDatasetError if finished parts were planned
        from other data.
        """
        before = self._journal.find("digest").get(None, {}).get("digest")
        if before is not None and before != digest and self._journal.find("part"):
            message = f"the source files of the unfinished {self.place.id} have changed since it was started"
            raise UnfinishedDatasetError(message, hint=f"start over with --force ({self.folder})")
        if before != digest:
            self._journal.record({"kind": "digest", "digest": digest})
        self.files |= {**files, **episodes.write(self.folder)}
        self.steps, self.states = episodes.steps, episodes.steps + len(episodes)
        for leaf in self._in_place():
            rows = self.states if leaf.kind == "state" else self.steps
            preallocate(self.folder / leaf.memmap, rows * leaf.row_bytes)

    def stored_dictionary(self, leaf: Leaf) -> bytes | None:
        """The dictionary that an interrupted run stored, if it is unchanged."""
        entry = self._journal.find("dictionary").get(leaf.name)
        path = self.folder / codec_of(leaf).path("dictionary")
        if entry is None or not path.is_file():
            return None
        data = path.read_bytes()
        return data if crc32c(data) == entry.get("crc32c") else None

    def dictionary(self, leaf: Leaf, data: bytes) -> None:
        """Store the dictionary of a leaf whose codec uses one; parts encoded with another one are dropped."""
        name = codec_of(leaf).path("dictionary")
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = self._journal.find("dictionary").get(leaf.name)
        if entry is None or entry.get("crc32c") != crc32c(data):
            self._journal.forget(lambda entry: entry.get("kind") in ("part", "merged", "dictionary"))
            write_atomically(path, data)
            self._journal.record({"kind": "dictionary", "number": leaf.name, "crc32c": crc32c(data)})
        elif self.stored_dictionary(leaf) is None:
            write_atomically(path, data)
        self.files[name] = [[len(data), crc32c(data)]]

    # -- fill ------------------------------------------------------------------------------------------------------

    def part_done(self, number: int, record: Mapping[str, Any]) -> None:
        """Record a filled part: ``leaves`` holds for each bulk leaf what its sink's ``finish`` returned."""
        self._journal.record({**record, "kind": "part", "number": number})

    def parts_done(self) -> dict[int, dict[str, Any]]:
        """The records of the filled parts by number, without parts whose files are lost or damaged.

        Call it when the leaves are known and the plan is made: what earlier runs filled is compared with its checksums once.
        """
        if not self._is_proved:  # forget those whose bytes changed since, because a disk failed or a file was edited
            in_place = [leaf.memmap for leaf in self._in_place()]
            finished, merged = self._journal.find("part"), self._journal.find("merged")
            self._forget_parts(_find_changed(self.folder, self._in_parts(), in_place, finished, merged))
            self._is_proved = True
        merged = self._journal.find("merged")
        return {
            number: record
            for number, record in self._journal.find("part").items()
            if number in merged or self._is_there(number, record)
        }

    def _forget_parts(self, numbers: Container[Any]) -> None:
        kinds = ("part", "merged")
        self._journal.forget(lambda entry: entry.get("kind") in kinds and entry.get("number") in numbers)

    def _is_there(self, number: int, record: Mapping[str, Any]) -> bool:
        return all(
            codec.part_is_there(self.folder, number, record["leaves"][codec.leaf.name], contents=False)
            for codec in self._in_parts()
        )

    def merge(self) -> None:
        """Append to the blobs the finished parts that are next in line, all of them at once."""
        while self._merge_next():  # once, unless lost parts between others were filled again
            pass

    def _merge_next(self) -> bool:
        """Append the next parts, or rewrite lost parts in a gap; returns whether there were any."""
        finished, merged = self.parts_done(), self._journal.find("merged")
        first = next(number for number in range(self.parts + 1) if number not in merged)
        waiting = {number for number in finished if number not in merged}
        numbers = list(takewhile(waiting.__contains__, range(first, self.parts)))
        if not numbers:
            return False
        first, after = numbers[0], merged.get(numbers[-1] + 1)
        before = merged[first - 1]["leaves"] if first else {}
        inside = False
        if max(merged, default=-1) > first:
            # Refilled parts have the same bytes as before, unless the data changed: then all later parts are useless.
            inside = after is not None and all(
                codec.fits(
                    [finished[number]["leaves"][codec.leaf.name] for number in numbers],
                    before.get(codec.leaf.name, _NOTHING),
                    after["leaves"][codec.leaf.name],
                )
                for codec in self._in_parts()
            )
            if after is None:
                return False  # other lost parts of this gap are still being filled
            if not inside:
                self._forget_parts(range(numbers[-1] + 1, self.parts))
                for codec in self._in_parts():  # readers keep the old inode when the file is truncated
                    for name in codec.appended:
                        replace_by_copy(self.folder / codec.path(name))
        entries: list[dict[str, Any]] = [{"kind": "merged", "number": number, "leaves": {}} for number in numbers]
        for codec in self._in_parts():
            name = codec.leaf.name
            parts = {number: finished[number]["leaves"][name] for number in numbers}
            last = before.get(name, _NOTHING)
            for entry, record in zip(entries, codec.append_parts(self.folder, parts, last, cut=not inside)):
                entry["leaves"][name] = record
        self._journal.record(*entries)
        for codec in self._in_parts():
            for number in numbers:
                codec.remove_part(self.folder, number)
        return True

    def _in_parts(self) -> list[Codec]:
        """The leaves whose parts are separate files until they are appended."""
        return [codec for codec in map(codec_of, self.bulk) if self.appended or not codec.fixed_rows]

    def _in_place(self) -> list[Leaf]:
        """The leaves whose parts are written in place in a preallocated file."""
        return [leaf for leaf in self.bulk if not self.appended and codec_of(leaf).fixed_rows]

    # -- commit ----------------------------------------------------------------------------------------------------

    def commit(
        self, manifest: Manifest, ranges: Sequence[tuple[int, int]] | None = None, original: Manifest | None = None
    ) -> Path:
        """Write the manifest (its ``files`` are filled in here) and make the folder the dataset; returns its path.

        ``ranges``: the first part of each checksum range, and the first part after it (None: a range per part). With
        ``original``, the files must be those that it lists, and it is written unchanged, so that the folder is the same byte
        for byte. Raises DamagedDatasetError if they differ.
        """
        self.merge()
        merged = self._journal.find("merged")
        missing = [number for number in range(self.parts) if number not in merged]
        if missing:
            raise RbdataError(f"{self.place.id} is not finished: parts {missing} are missing")
        shown = {leaf.name: (leaf.dtype, leaf.shape) for leaf in self.schema.steps if leaf.codec == PLAIN}
        self.files.update(write_meta(self.folder, "", shown, self.steps))
        files = self._collect_ranges(ranges or [(number, number + 1) for number in range(self.parts)])
        # Checksums cover only these bytes; another program may have appended others.
        for path, records in files.items():
            with open_plain(self.folder / path, "r+b") as file:
                if os.fstat(file.fileno()).st_size > (size := sum(record[0] for record in records)):
                    file.truncate(size)
        if original is None or original.blocks:
            manifest.blocks, table = write_table(self.folder, self.files)
            files.update({BLOCK_TABLE: table} if table else {})
        manifest.files = dict(sorted(files.items()))
        if original is not None:
            self._check_same(manifest, original)
            manifest = original
        sync_files(self.folder, manifest.files)
        write_manifest(self.folder, manifest)
        self.place.install()
        return self.place.path

    def _collect_ranges(self, ranges: Sequence[tuple[int, int]]) -> Files:
        """The checksum ranges of all files for the manifest; ``files`` gets those of the parts as they were recorded."""
        finished, merged = self._journal.find("part"), self._journal.find("merged")
        for number in range(self.parts):
            for record in finished[number]["leaves"].values():
                for path, written in record.get("ranges", {}).items():
                    self.files.setdefault(path, []).extend(written)
        joined: Files = {}
        for codec in self._in_parts():
            entries = [merged[number]["leaves"][codec.leaf.name]["ranges"] for number in range(self.parts)]
            for name in entries[0] if entries else ():
                self.files[codec.path(name)] = [entry[name] for entry in entries]
            for first, last in ranges:
                for name in entries[first]:
                    piece = join_ranges([entry[name] for entry in entries[first:last]])
                    joined.setdefault(codec.path(name), []).append(piece)
        return {path: joined.get(path) or [record[:2] for record in records] for path, records in self.files.items()}

    def _check_same(self, manifest: Manifest, original: Manifest) -> None:
        """Raise DamagedDatasetError if files differ from those of ``original``; their ranges may differ."""
        found = {name: join_ranges(ranges) for name, ranges in manifest.files.items()}
        other = [name for name, ranges in original.files.items() if found.get(name) != join_ranges(ranges)]
        if other or len(manifest.files) != len(original.files):
            message = f"the data that {self.place.id} was made from now result in other bytes: {', '.join(other)}"
            raise DamagedDatasetError(message, hint="start over with --force")


def _holds_work(journal: Journal, folder: Path) -> bool:
    """Whether a working folder holds anything that a run can resume from."""
    kinds = {entry.get("kind") for entry in journal.entries}
    if _ONCE in kinds:
        return False
    return bool(kinds & _WORK) or holds_files(folder / RAW) or holds_files(folder / PARTS)


def finished_parts(folder: Path, fingerprint: str, *, restart: bool) -> set[int] | None:
    """The parts that the next run with this fingerprint will find finished; None if it will start over."""
    journal = Journal(folder / JOURNAL)
    if journal.fingerprint != fingerprint or (restart and not journal.find("restart")):
        return None
    return {number for number in journal.find("part") if isinstance(number, int)}


def open_sink(folder: Path, leaf: Leaf, number: int, first: int, rows: int, states: int, threads: int = 1) -> Sink:
    """The sink for one part of a bulk leaf in a working folder. Called in workers.

    ``first`` and ``rows`` are the part's state rows, ``states`` those of the whole dataset. A step leaf takes state rows too
    (plain TED holds every state twice), and its ``next/`` twin is filled with it. ``threads`` encode in parallel.
    """
    if leaf.kind == "step":
        start = np.fromfile(folder / EPISODES / "start.memmap", "<i8")
        return TedSink(folder, leaf, first, rows, start + np.arange(len(start)), states)
    return codec_of(leaf).open_sink(folder, number, first, rows, threads)


def fingerprint(content: Mapping[str, Any]) -> str:
    """A short string for everything the resulting bytes depend on."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# -- checking earlier work -----------------------------------------------------------------------------------------------

#: Errors of lost files or a failing disk; others (too many open files) say nothing about the work.
_LOST = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO}

Records = Mapping[int, Mapping[str, Any]]


def _find_changed(
    folder: Path, in_parts: Sequence[Codec], in_place: Collection[str], finished: Records, merged: Records
) -> set[int]:
    """The numbers of parts whose files, or whose rows in the leaves' files, differ from the journal.

    ``in_parts`` are the leaves whose parts are appended (``merged``: their entries so far), ``in_place`` the files in which
    parts are written in place. Everything is read once, by several threads.
    """

    def is_proved(number: int) -> bool:
        try:
            return _is_in_place(folder, in_place, finished[number]) and all(
                codec.has_appended(folder, merged[number]["leaves"][codec.leaf.name])
                if number in merged
                else codec.part_is_there(folder, number, finished[number]["leaves"][codec.leaf.name], contents=True)
                for codec in in_parts
            )
        except OSError as error:
            if error.errno in _LOST:
                return False
            raise
        except (RbdataError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return False  # an invalid record

    numbers = {*finished, *merged}
    counted = sorted(number for number in numbers if isinstance(number, int))
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "rbdata-proof") as pool:
        return numbers - {number for number, proved in zip(counted, pool.map(is_proved, counted)) if proved}


def _is_in_place(folder: Path, in_place: Collection[str], record: Mapping[str, Any]) -> bool:
    """Whether the rows of a part that were written in place match the record."""
    records = [leaf for leaf in record["leaves"].values() if "begin" in leaf]
    if {path for leaf in records for path in leaf["ranges"]} != set(in_place):
        return False
    return all(
        sum_pieces(folder / path, leaf["begin"][path], [one[0] for one in ranges]) == [one[:2] for one in ranges]
        for leaf in records
        for path, ranges in leaf["ranges"].items()
    )


# -- parts of an older dataset -------------------------------------------------------------------------------------------


class OldDataset:
    """A dataset that is about to be replaced by a larger one, which takes over the parts that both begin with."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._ranges = BlockChecksums(manifest, None)

    @classmethod
    def open(cls, folder: Path, schema: Schema) -> OldDataset | None:
        """The dataset in a folder, if its rows fit this schema; otherwise None."""
        if not (folder / FILENAME).is_file():
            return None
        manifest = read_manifest(folder)
        usable = [leaf.to_json() for leaf in manifest.schema] == [leaf.to_json() for leaf in schema]
        old = cls(folder, manifest)
        return old if usable and schema.states and old._dictionaries_are_sound() else None

    def _dictionaries_are_sound(self) -> bool:
        """Whether the dictionaries are intact; with a damaged one the old rows cannot be decoded."""
        try:
            names = [name for name in self.manifest.files if name.endswith("/dictionary")]
            return not any(list(damaged_ranges(self.folder / name, self.manifest.files[name])) for name in names)
        except OSError:
            return False

    def dictionary(self, leaf: Leaf) -> bytes:
        """The dictionary of a leaf whose codec uses one."""
        return codec_of(leaf).read_dictionary(self.folder)

    def bytes_of_state(self) -> float:
        """Average bytes on disk of a state."""
        paths = [path for leaf in self.manifest.schema.states for path in codec_of(leaf).files]
        total = sum(length for path in paths for length, _ in self.manifest.files[path])
        return total / max(1, self.manifest.states)

    def common(self, parts: Sequence[Mapping[str, Any]]) -> int:
        """How many of the first ``parts`` this dataset begins with, too: the same rows of objects of the same name, size and
        checksum, as far as these are stated."""

        def is_same(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
            stated = (new["object"][key] in (None, old["object"][key]) for key in ("name", "size", "crc32c"))
            return new["layout"] == old.get("layout") and all(stated)

        return sum(1 for _ in takewhile(bool, map(is_same, parts, self.manifest.parts)))

    def take_over(self, writer: DatasetWriter, index: int) -> dict[str, Any] | None:
        """Copy the rows of a part that both begin with; returns the journal record, None if they are missing or damaged."""
        part = self.manifest.parts[index]
        try:
            leaves = {
                leaf.name: self._copy(leaf, writer, index, part["first_state"], part["states"]) for leaf in writer.bulk
            }
            return {"leaves": leaves, "crc32c": part["object"]["crc32c"]}
        except (OSError, RbdataError):
            return None  # damaged or missing: the part is fetched

    def _copy(self, leaf: Leaf, writer: DatasetWriter, index: int, first: int, rows: int) -> dict[str, Any]:
        codec, files = codec_of(leaf), self.manifest.files
        if codec.fixed_rows:
            # The ranges of a part are the pieces in which it was written, so parts share none.
            for piece in self._ranges.covering(leaf.memmap, first * leaf.row_bytes, (first + rows) * leaf.row_bytes):
                if not piece.is_in(self.folder):
                    raise RbdataError("the old part is damaged")
        return codec.copy_part(self.folder, files, writer.folder, index, first, rows)
