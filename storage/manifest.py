"""The manifest: ``rbdata.json``, what makes a folder a dataset.

Format version 1. One JSON object:

    format, format_version   "rbdata", 1
    id                       full dataset id, "atari/Pong/5"
    steps, episodes          row counts; state leaves have steps + episodes rows
    leaves                   [{name, kind, dtype, shape, codec, constant?}]
    spaces                   {"observation": ..., "action": ...} as JSON
    source                   {name, options, objects: [{name, size, checksums}], ...}: what was converted, and how
    counts                   what the conversion met and did: pads, given-up rows, gaps, cut episodes, ...
    notes                    sentences for people, shown by inspect
    returns, lengths         {mean, std, min, max} over episodes
    parts                    [{name, states, rows}]: which state rows came from which source object
    files                    {path: [[length, crc32c], ...]}: every file but this one, in ranges
    blocks                   {size, files: [path, ...]}: the files that `block_checksums` has a table of; left out where
                             there is none
    licence, citation, lineage
    provenance               when, by which version, from where: the only part that differs between two
                             conversions of the same data
    checksum                 crc32c of all of the above, as canonical JSON (sorted keys, no spaces)

It is written last, to a temporary name, synced, and renamed: a folder without it is not a dataset. Readers refuse a
larger format_version and ignore keys they do not know.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import DamagedDatasetError, FormatVersionError, NotADatasetError, reason
from .checksums import crc32c
from .durable import leads_nowhere, read_plain, write_atomically
from .leaf import Leaf
from .manifest_types import BLOCK_TABLE, check_types
from .outside_json import parse_json
from .schema import Schema, check_ted

FILENAME = "rbdata.json"
FORMAT = "rbdata"
FORMAT_VERSION = 1
#: Bytes; the manifest of a run with thousands of parts has a few MB.
LARGEST_MANIFEST = 1 << 28


@dataclass
class Manifest:
    """The manifest, read or about to be written. Fields are those of the format above."""

    id: str
    schema: Schema
    steps: int
    episodes: int
    source: dict[str, Any]
    files: dict[str, list[list[Any]]] = field(default_factory=dict)
    parts: list[dict[str, Any]] = field(default_factory=list)
    spaces: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    returns: dict[str, float] = field(default_factory=dict)
    lengths: dict[str, float] = field(default_factory=dict)
    licence: str | None = None
    citation: str | None = None
    lineage: dict[str, Any] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    blocks: dict[str, Any] | None = None

    @property
    def statistics(self) -> dict[str, Any]:
        """What first passes over the data found (`preprocess`), by function; those of earlier datasets in the lineage too."""
        found: dict[str, Any] = {}
        lineage = self.lineage
        while lineage:
            found = {**(lineage.get("statistics") or {}), **found}
            lineage = (lineage.get("input") or {}).get("lineage")
        return found

    @property
    def states(self) -> int:
        """Rows of the state leaves."""
        return self.steps + self.episodes

    def rows(self, leaf: Leaf) -> int:
        """Rows of a leaf."""
        return self.steps if leaf.kind == "step" else self.states

    @property
    def environment(self) -> str | None:
        """The id of the environment that the data were recorded in, where the source states it."""
        stated = self.source.get("environment")
        found = stated.get("id") if isinstance(stated, dict) else stated
        return found if isinstance(found, str) else None

    @property
    def bytes(self) -> int:
        """Bytes on disk of everything the manifest lists."""
        return sum(length for ranges in self.files.values() for length, _ in ranges)

    @property
    def content(self) -> str:
        """sha256 (hex) of the content of the dataset, independent of place and time; a table of blocks is left out of it."""
        record = self.to_json()
        held = {name: record[name] for name in ("leaves", "steps", "episodes", "files")}
        held["files"].pop(BLOCK_TABLE, None)
        return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The JSON object, checksum included."""
        record: dict[str, Any] = {"format": FORMAT, "format_version": FORMAT_VERSION}
        for entry in fields(self):
            if entry.name == "schema":
                record["leaves"] = [leaf.to_json() for leaf in self.schema]
            elif entry.name != "blocks" or self.blocks:
                record[entry.name] = getattr(self, entry.name)
        # The checksum is that of the object as it will be read: keys that are numbers become strings, for example.
        record = json.loads(json.dumps(record))
        record["checksum"] = _checksum(record)
        return record


def read_manifest(folder: Path, name: str = FILENAME) -> Manifest:
    """Read a dataset's manifest, or that of another ``name``.

    Raises NotADatasetError when there is none or it is something else, FormatVersionError when a newer rbdata wrote it,
    DamagedDatasetError when its own checksum does not match.
    """
    path = folder / name
    try:
        data = read_plain(path, LARGEST_MANIFEST)
    except OSError as error:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) or leads_nowhere(folder):
            hint = "`rbdata list --local` shows the datasets that are there"
            raise NotADatasetError(why_missing(folder, os.fspath(folder), name), hint=hint) from error
        if error.errno == errno.ELOOP:
            raise NotADatasetError(f"{path} is not a file") from error
        if error.errno == errno.EFBIG:
            raise DamagedDatasetError(f"{path} is no manifest: {error.strerror}", hint=_REDO) from error
        raise
    return parse_manifest(data, os.fspath(folder), name)


def parse_manifest(data: bytes, folder: str, name: str = FILENAME) -> Manifest:
    """The manifest in the bytes of a file ``name``; ``folder`` is where it is from, for messages. Raises as `read_manifest`."""
    path = f"{folder}/{name}"
    try:
        record = parse_json(data.decode(), _unique_keys)
        whole = isinstance(record, dict) and record.get("checksum") == _checksum(record)
    except UnicodeDecodeError as error:
        raise DamagedDatasetError(f"{path} is not text", hint=_REDO) from error
    except (ValueError, RecursionError) as error:
        raise DamagedDatasetError(f"{path} is not JSON: {reason(error)}", hint=_REDO) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise NotADatasetError(f"{path} is not a manifest written by rbdata")
    version = record.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        message = f"{folder} was written in format version {version}; this rbdata reads up to {FORMAT_VERSION}"
        raise FormatVersionError(message, hint="upgrade it: pip install -U rbdata")
    if not whole:
        raise DamagedDatasetError(f"{path} does not match its own checksum: it was edited or damaged", hint=_REDO)
    try:
        check_types(record)
        values = {entry.name: record[entry.name] for entry in fields(Manifest) if entry.name in record}
        manifest = Manifest(schema=Schema(tuple(Leaf.from_json(leaf) for leaf in record["leaves"])), **values)
        check_ted(manifest.schema)
    except (ValueError, KeyError, RecursionError) as error:
        raise DamagedDatasetError(f"{path} is malformed: {reason(error)}", hint=_REDO) from error
    return manifest


def why_missing(folder: Path, shown: str, name: str = FILENAME) -> str:
    """Why there is no manifest in a folder; the words call it ``shown``, as the user did."""
    with suppress(OSError):  # no name that a folder could have
        if leads_nowhere(folder):
            return f"{shown} is a link to {folder.readlink()}, which is not there"
        if folder.is_dir():
            return f"{shown} holds no dataset: there is no {name} in it"
        if folder.is_file():
            return f"{shown} is a file, not the folder of a dataset"
    return f"no such folder: {shown}"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError where a key is there twice, or is no text that could be printed."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    for name, value in pairs:
        name.encode()
        if isinstance(value, str):
            value.encode()
    return found


def write_manifest(folder: Path, manifest: Manifest, name: str = FILENAME) -> None:
    """Write ``rbdata.json``, or another ``name``, atomically and durably."""
    record = manifest.to_json()
    text = json.dumps(record, ensure_ascii=False)
    # Lone surrogates, of a path that is no Unicode, are refused by readers.
    if any("\ud800" <= character <= "\udfff" for character in text):
        record = json.loads(text.encode("utf-8", "replace"))
        record["checksum"] = _checksum(record)
    write_atomically(folder / name, json.dumps(record, indent=1).encode() + b"\n")


def _checksum(record: dict[str, Any]) -> str:
    content = {key: value for key, value in record.items() if key != "checksum"}
    # Python writes floats in their shortest exact form, so reading and writing again gives the same text.
    return crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


_REDO = "download or convert the dataset again with --force"
