"""Plan, fill, commit: how a dataset folder comes to be.

1. *Plan*: step leaves and the episode table are written from what is cheap to read; all row counts are then known.
2. *Fill*: workers fill the state leaves, part by part (``parts``); the journal records every finished part. Finished
   compressed parts are appended to the blob in order, while later ones are still on their way.
3. *Commit*: the manifest is written and the working folder renamed to the dataset.

Where the row counts are only known when a part is done (`preprocess`), all bulk leaves are *appended*: as compressed parts
are, every part is a file of its own until its turn comes, and the plan (episode table, constant leaves) follows the fill.

Killed at any moment, the next writer with the same fingerprint goes on from the journal and ends with the same bytes. A
working folder with another fingerprint is not silently thrown away.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DatasetExistsError, RbdataError
from .checksums import Crc32c, crc32c
from .codecs.zstd import RowEncoder
from .column_writer import ColumnWriter, leaf_path
from .episodes import FOLDER as EPISODES
from .episodes import EpisodeTable
from .folder import JOURNAL, PARTS, RAW, DatasetPlace, remove_tree
from .journal import Journal
from .manifest import Manifest, sync_folder, write_atomically, write_manifest
from .schema import Leaf, Schema
from .sinks import RawSink, Sink, TedSink, ZstdSink, part_is_there, part_path, preallocate, read_lengths, read_pieces
from .tensordict_meta import write_meta

Files = dict[str, list[list[Any]]]


class DatasetWriter:
    """Writes one dataset. Use it with the place's lock held.

    ``fingerprint`` is a string that stands for everything the resulting bytes depend on. ``restart`` throws unfinished
    work away instead of going on with it, except what a restart of the same fingerprint began; without it, unfinished
    work of another fingerprint raises DatasetExistsError.
    ``bulk`` names the leaves that workers fill in ``parts`` parts; the plan appends all others. ``appended``: parts of raw
    leaves are appended too (`parts.GrowingSink` writes them), instead of having their place in a preallocated file.
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
    ) -> None:
        self.place, self.schema, self.parts, self.appended = place, schema, parts, appended
        self.bulk = tuple(schema[name] for name in bulk)
        self.folder = place.working
        self.files: Files = {}
        place.check_free()
        journal = Journal(self.folder / JOURNAL)
        began_anew = journal.fingerprint == fingerprint and bool(journal.find("restart"))
        if journal.fingerprint is None or (restart and not began_anew):
            place.discard_working()
            self.folder.mkdir(parents=True)
            journal = Journal(self.folder / JOURNAL)
            journal.start(fingerprint)
            if restart:
                journal.record({"kind": "restart"})
        elif journal.fingerprint != fingerprint:
            message = f"an unfinished {place.id} is there, begun with other options, shards or source files"
            hint = f"go on with the options it was begun with, or start over with --force ({self.folder})"
            raise DatasetExistsError(message, hint=hint)
        if not journal.find("plan"):
            journal.record({"kind": "plan", "parts": parts})
        self._journal = journal

    def lay_out(self, schema: Schema, bulk: tuple[str, ...] = (), parts: int = 0) -> None:
        """Set what is only known when the raw files have been looked into; before ``columns``, if at all."""
        self.schema, self.parts = schema, parts
        self.bulk = tuple(schema[name] for name in bulk)
        if self.appended and not self._rows_are_there():
            self._journal.forget(("part", "merged"))

    def remember(self, kind: str, content: Mapping[str, Any], number: int = 0) -> None:
        """Keep something that was found out for the next run, should this one be interrupted."""
        self._journal.record({**content, "kind": kind, "number": number})

    def remembered(self, kind: str) -> dict[int, dict[str, Any]]:
        """What an interrupted run found out of this kind, by number."""
        return self._journal.find(kind)

    # -- plan ------------------------------------------------------------------------------------------------------

    def columns(self) -> ColumnWriter:
        """Where the plan appends step rows; they are written anew on every run, and come out the same."""
        return ColumnWriter(self.folder, Schema(tuple(leaf for leaf in self.schema.steps if leaf not in self.bulk)))

    def planned(self, files: Mapping[str, list[list[Any]]], episodes: EpisodeTable, digest: str = "") -> None:
        """Take over the finished columns (``ColumnWriter.close``) and the episode table, and make room for the states.

        ``digest`` stands for the plan as it was made from the source's data. Raises DatasetExistsError when unfinished
        work was planned from other data.
        """
        before = self._journal.find("digest").get(None)
        if before is None:
            self._journal.record({"kind": "digest", "digest": digest})
        elif before["digest"] != digest:
            message = f"the source files of the unfinished {self.place.id} have changed since it was begun"
            raise DatasetExistsError(message, hint=f"start over with --force ({self.folder})")
        self.files.update(files)
        self.files.update(episodes.write(self.folder))
        self.episodes = episodes
        self.steps, self.states = episodes.steps, episodes.steps + len(episodes)
        if not self._rows_are_there():
            self._journal.forget(("part", "merged"))
        for leaf in self.bulk:
            if leaf.codec == "raw" and not self.appended:
                preallocate(leaf_path(self.folder, leaf), self._raw_bytes(leaf))

    def _raw_bytes(self, leaf: Leaf) -> int:
        return (self.states if leaf.kind == "state" else self.steps) * leaf.row_bytes

    def _rows_are_there(self) -> bool:
        """Whether the files that finished parts were written to are as large as the journal says."""
        merged = self._journal.find("merged")
        for leaf in self.bulk:
            if leaf.codec == "raw" and not self.appended:
                path = leaf_path(self.folder, leaf)
                if self._journal.find("part") and not _has_bytes(path, self._raw_bytes(leaf), exactly=True):
                    return False
            elif merged:
                last = merged[max(merged)]["leaves"][leaf.name]
                sizes = {"blob": last["blob"], "offsets": 8 * (last["rows"] + 1)}
                for name in _FILES[leaf.codec]:
                    if not _has_bytes(self.folder / _file_name(leaf, name), sizes[name]):
                        return False
        return True

    def stored_dictionary(self, leaf: Leaf) -> bytes | None:
        """The dictionary that an interrupted run stored, if it is still what was stored."""
        entry = self._journal.find("dictionary").get(leaf.name)
        path = self.folder.joinpath(*leaf.key) / "dictionary"
        if entry is None or not path.is_file():
            return None
        data = path.read_bytes()
        return data if crc32c(data) == entry["crc32c"] else None

    def dictionary(self, leaf: Leaf, data: bytes) -> None:
        """Store the dictionary of a compressed leaf; rows finished with another one are forgotten."""
        path = self.folder.joinpath(*leaf.key) / "dictionary"
        entry = self._journal.find("dictionary").get(leaf.name)
        if entry is None or entry["crc32c"] != crc32c(data):
            self._journal.forget(("part", "merged", "dictionary"))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
            self._journal.record({"kind": "dictionary", "number": leaf.name, "crc32c": crc32c(data)})
        elif self.stored_dictionary(leaf) is None:
            write_atomically(path, data)
        self.files[f"{leaf.name}/dictionary"] = [[len(data), crc32c(data)]]

    # -- fill ------------------------------------------------------------------------------------------------------

    def part_done(self, number: int, record: Mapping[str, Any]) -> None:
        """Record a filled part: ``leaves`` holds for each bulk leaf what its sink's ``finish`` returned."""
        self._journal.record({**record, "kind": "part", "number": number})

    def parts_done(self) -> dict[int, dict[str, Any]]:
        """The records of the parts that are filled, by number; a part whose files were lost is to be filled again."""
        merged = self._journal.find("merged")
        return {
            number: record
            for number, record in self._journal.find("part").items()
            if number in merged or all(self._is_there(leaf, number, record) for leaf in self._in_parts())
        }

    def _is_there(self, leaf: Leaf, number: int, record: Mapping[str, Any]) -> bool:
        path, pieces = part_path(self.folder, leaf, number), record["leaves"][leaf.name]["pieces"]
        return part_is_there(path, pieces, compressed=leaf.codec == "zstd")

    def merge(self) -> None:
        """Append to the blobs the finished parts that are next in line, all of them at once."""
        finished, merged = self.parts_done(), self._journal.find("merged")
        first = len(merged)
        numbers = list(takewhile(finished.__contains__, range(first, self.parts)))
        if not numbers:
            return
        before = merged[first - 1]["leaves"] if first else {}
        entries: list[dict[str, Any]] = [{"kind": "merged", "number": number, "leaves": {}} for number in numbers]
        for leaf in self._in_parts():
            parts = {number: finished[number]["leaves"][leaf.name] for number in numbers}
            last = before.get(leaf.name, {"blob": 0, "rows": 0})
            for entry, record in zip(entries, self._merge_parts(leaf, parts, last)):
                entry["leaves"][leaf.name] = record
        self._journal.record(*entries)
        for leaf in self._in_parts():
            for number in numbers:
                path = part_path(self.folder, leaf, number)
                path.unlink(missing_ok=True)
                path.with_suffix(".lengths").unlink(missing_ok=True)

    def _merge_parts(
        self, leaf: Leaf, parts: Mapping[int, Mapping[str, Any]], last: Mapping[str, int]
    ) -> list[dict[str, Any]]:
        """Append parts of one leaf; returns an entry for each."""
        paths = [part_path(self.folder, leaf, number) for number in parts]
        pieces = [read_pieces(path, part["pieces"]) for path, part in zip(paths, parts.values())]
        blobs = _append(self.folder / _file_name(leaf, "blob"), last["blob"], pieces)
        entries: list[dict[str, Any]] = []
        blob, rows = last["blob"], last["rows"]
        tables: list[np.ndarray] = []
        for path, part, written in zip(paths, parts.values(), blobs):
            if leaf.codec == "raw":
                rows += part["rows"]
            else:
                lengths = read_lengths(path)
                tables.append(blob + np.cumsum(lengths))
                rows += len(lengths)
            blob += written.length
            entries.append({"blob": blob, "rows": rows, "ranges": {"blob": list(written.range)}})
        if tables:
            if 0 in parts:
                tables[0] = np.concatenate([[0], tables[0]])  # a row begins where the one before it ends
            table_at = 0 if 0 in parts else 8 * (last["rows"] + 1)
            blocks = [[table.astype("<i8").tobytes()] for table in tables]
            for entry, written in zip(entries, _append(self.folder / _file_name(leaf, "offsets"), table_at, blocks)):
                entry["ranges"]["offsets"] = list(written.range)
        return entries

    def _in_parts(self) -> list[Leaf]:
        """The leaves whose parts are files of their own until they are appended."""
        return [leaf for leaf in self.bulk if self.appended or leaf.codec == "zstd"]

    # -- commit ----------------------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest) -> Path:
        """Write the manifest (its ``files`` are filled in here) and make the folder the dataset; returns its path."""
        self.merge()
        finished, merged = self._journal.find("part"), self._journal.find("merged")
        missing = [number for number in range(self.parts) if number not in merged]
        if missing:
            raise RbdataError(f"{self.place.id} is not finished: parts {missing} are missing")
        for number in range(self.parts):
            for record in finished[number]["leaves"].values():
                for path, ranges in record.get("ranges", {}).items():
                    self.files.setdefault(path, []).extend(ranges)
            for leaf in self._in_parts():
                for name, piece in merged[number]["leaves"][leaf.name]["ranges"].items():
                    self.files.setdefault(_file_name(leaf, name), []).append(piece)
        shown = {
            leaf.name: (leaf.dtype, (self.steps, *leaf.shape)) for leaf in self.schema.steps if leaf.codec == "raw"
        }
        self.files.update(write_meta(self.folder, "", shown, self.steps))
        manifest.files = dict(sorted(self.files.items()))
        _sync_files(self.folder, manifest.files)
        write_manifest(self.folder, manifest)
        remove_tree(self.folder / PARTS)
        remove_tree(self.folder / RAW)
        (self.folder / JOURNAL).unlink()
        self.place.install()
        return self.place.path


def open_sink(
    folder: Path, schema: Schema, name: str, number: int, first: int, rows: int, states: int, encoder: RowEncoder | None
) -> Sink:
    """The sink for one part of a bulk leaf in a working folder. Called in the workers.

    ``first`` and ``rows`` are the part's state rows, ``states`` those of the whole dataset. A leaf that is a step leaf
    takes state rows all the same, and its ``next/`` twin is filled with it.
    """
    leaf = schema[name]
    if leaf.kind == "step":
        start = np.fromfile(folder / EPISODES / "start.memmap", "<i8")
        return TedSink(folder, leaf, first, rows, start + np.arange(len(start)), states)
    if leaf.codec == "zstd":
        assert encoder is not None
        return ZstdSink(folder, number, leaf, rows, encoder)
    return RawSink(folder, leaf, first, rows)


def fingerprint(content: Mapping[str, Any]) -> str:
    """A short string for everything the resulting bytes depend on."""
    import hashlib

    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


#: What a leaf filled part by part consists of.
_FILES = {"raw": ("blob",), "zstd": ("blob", "offsets")}


def _file_name(leaf: Leaf, name: str) -> str:
    """A leaf's file, relative to the folder; the blob of a raw leaf is all of it."""
    return f"{leaf.name}.memmap" if leaf.codec == "raw" else f"{leaf.name}/{name}"


def _has_bytes(path: Path, size: int, *, exactly: bool = False) -> bool:
    """Whether a file is there and large enough."""
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        return False
    return found == size if exactly else found >= size


def _append(path: Path, at: int, parts: Iterable[Iterable[bytes]]) -> list[Crc32c]:
    """Write the blocks of parts from byte ``at`` on, cutting off whatever an interrupted run left behind it.

    Returns the checksum of each part.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    checksums: list[Crc32c] = []
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(at)
        for blocks in parts:
            checksum = Crc32c()
            for block in blocks:
                file.write(block)
                checksum.update(block)
            checksums.append(checksum)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return checksums


def _sync_files(folder: Path, files: Mapping[str, Any]) -> None:
    """Make every file durable before the manifest says it is there."""
    for name in files:
        descriptor = os.open(folder / name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for parent in sorted({(folder / name).parent for name in files}):
        sync_folder(parent)
