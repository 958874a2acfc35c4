"""The manifest, ``rbdata.json``, which makes a folder a dataset.

Format version 1. One JSON object:

    format, format_version   "rbdata", 1
    id                       full dataset id, "atari/Pong/5"
    steps, episodes          row counts; state leaves have steps + episodes rows
    leaves                   [{name, kind, dtype, shape, codec, constant?}]
    spaces                   {"observation": ..., "action": ...} as JSON
    source                   {name, options, objects: [{name, size, checksums}], ...}: what was converted, and how
    counts                   statistics of the conversion: pads, dropped rows, gaps, cut episodes, ...
    notes                    sentences for people, shown by inspect
    returns, lengths         {mean, std, min, max} over episodes
    parts                    [{name, states, rows}]: which state rows came from which source object
    files                    {path: [[length, crc32c], ...]}: every other file, in ranges
    blocks                   {size, files: [path, ...]}: the files that the table of `integrity` covers; only with a
                             table
    licence, citation, lineage
    provenance               when, by which version, from where: the only part that differs between two
                             conversions of the same data
    checksum                 crc32c of all of the above, as canonical JSON (sorted keys, no spaces)

It is written last, to a temporary name, synced, and renamed: a folder without it is not a dataset. Readers refuse a larger
format_version and ignore unknown keys.

A manifest is data from elsewhere (a mirror, a shared disk, a colleague). Types and bounds of its fields are declared here and
checked by msgspec; what is in ``source``, ``parts``, ``lineage`` and ``provenance`` is as whoever wrote it says, since its
checksum shows that nothing changed it. `check_sizes` compares only the sizes of a folder's files with it, which is quick enough
for a list of datasets.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from ..errors import DamagedDatasetError, DatasetNotFoundError, reason
from .checksums import crc32c
from .durable import is_about_reader, is_dangling, write_atomically
from .leaf import Leaf
from .schema import Schema, check_ted

# -- types of the fields -------------------------------------------------------------------------------------------------

#: The file of the checksums of blocks; no leaf has this name.
BLOCK_TABLE = "blocks.crc32c"
#: The statistics of returns and lengths, if there are episodes.
STATISTICS = {"mean", "std", "min", "max"}

#: Steps, rows, bytes: the limit exceeds any disk, and products with row sizes stay small enough to be compared.
Count = Annotated[int, Meta(ge=0, le=1 << 56)]
Text = Annotated[str, Meta(max_length=1 << 20)]
Checksum = Annotated[str, Meta(pattern="^[0-9a-f]{8}$")]


class BlocksRecord(TypedDict):
    """The files that the table of block checksums covers, in its order, and the size of a block in bytes."""

    size: Annotated[int, Meta(ge=1 << 12, le=1 << 30)]
    files: Annotated[list[Text], Meta(min_length=1)]


# -- the manifest --------------------------------------------------------------------------------------------------------

FILENAME = "rbdata.json"
FORMAT = "rbdata"
FORMAT_VERSION = 1
#: Limit in bytes of what is fetched as one; the manifest of a run with thousands of parts has a few MB.
LARGEST_MANIFEST = 1 << 28
_REDO = "download or convert the dataset again with --force"


@dataclass
class Manifest:
    """A manifest, read or about to be written. Its fields are those of the format above, ``schema`` is ``leaves``."""

    id: Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]
    schema: Schema
    steps: Count
    episodes: Count
    source: dict[str, Any]
    files: dict[Text, list[tuple[Count, Checksum]]] = field(default_factory=dict)
    parts: list[dict[str, Any]] = field(default_factory=list)
    spaces: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    notes: list[Text] = field(default_factory=list)
    returns: dict[str, float] = field(default_factory=dict)
    lengths: dict[str, float] = field(default_factory=dict)
    licence: Text | None = None
    citation: Text | None = None
    lineage: dict[str, Any] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    blocks: BlocksRecord | None = None

    @property
    def statistics(self) -> dict[str, Any]:
        """Statistics that preprocessing computed, by function, including those of earlier datasets in the lineage."""
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
        """Return rows of a leaf."""
        return self.steps if leaf.kind == "step" else self.states

    @property
    def environment(self) -> str | None:
        """The id of the environment that the data were recorded in, if the source states it."""
        stated = self.source.get("environment")
        found = stated.get("id") if isinstance(stated, dict) else stated
        return found if isinstance(found, str) else None

    def size_of(self, path: str) -> int:
        """Return bytes of a file."""
        return sum(length for length, _ in self.files[path])

    @property
    def bytes(self) -> int:
        """Bytes on disk of everything the manifest lists."""
        return sum(map(self.size_of, self.files))

    @property
    def content(self) -> str:
        """sha256 (hex) of the content of the dataset, without the table of blocks; independent of place and time."""
        files = {path: ranges for path, ranges in self.files.items() if path != BLOCK_TABLE}
        leaves = [leaf.to_json() for leaf in self.schema]
        held = {"leaves": leaves, "steps": self.steps, "episodes": self.episodes, "files": files}
        return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, checksum included."""
        record: dict[str, Any] = {"format": FORMAT, "format_version": FORMAT_VERSION}
        record |= {entry.name: getattr(self, entry.name) for entry in fields(Manifest)}
        named = {"leaves" if name == "schema" else name: value for name, value in record.items()}
        named["leaves"] = [leaf.to_json() for leaf in self.schema]
        if not self.blocks:
            del named["blocks"]
        # The checksum is that of the object as it will be read: numeric keys become strings, for example.
        read = json.loads(json.dumps(named))
        return {**read, "checksum": _checksum(read)}


@dataclass
class ViewManifest(Manifest):
    """The manifest of a view, which has no files. ``identity`` determines its content."""

    identity: Mapping[str, Any] = field(default_factory=dict)
    #: The members, as a lineage names them.
    parents: list[dict[str, Any]] = field(default_factory=list)

    @property
    def content(self) -> str:
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path, name: str = FILENAME) -> Manifest:
    """Read a dataset's manifest, from a file of another ``name`` if given.

    Raises DatasetNotFoundError without a file written by this rbdata or an older one, DamagedDatasetError if its checksum
    does not match.
    """
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)) and not is_dangling(folder):
            raise
        hint = "`rbdata list --local` shows the datasets that are there"
        raise DatasetNotFoundError(why_missing(folder, os.fspath(folder), name), hint=hint) from error
    return parse_manifest(data, os.fspath(folder), name)


def parse_manifest(data: bytes, folder: str, name: str = FILENAME) -> Manifest:
    """Return the manifest in the bytes of a file ``name``; messages say that it is from ``folder``.

    Raises as `read_manifest`.
    """
    path = f"{folder}/{name}"
    try:
        record = json.loads(data)
        whole = isinstance(record, dict) and record.get("checksum") == _checksum(record)
    except (ValueError, RecursionError) as error:  # also bytes that are no text
        raise DamagedDatasetError(f"{path} is not JSON: {reason(error)}", hint=_REDO) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise DatasetNotFoundError(f"{path} is not a manifest written by rbdata")
    version = record.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        message = f"{folder} was written in format version {version}; this rbdata reads up to {FORMAT_VERSION}"
        raise DatasetNotFoundError(message, hint="upgrade it: pip install -U rbdata")
    if not whole:
        raise DamagedDatasetError(f"{path} does not match its own checksum: it was edited or damaged", hint=_REDO)
    try:
        manifest = msgspec.convert({**record, "schema": record}, Manifest)
        _check(manifest)
    # Before msgspec 0.20 a ValidationError is no ValueError.
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        raise DamagedDatasetError(f"{path} is malformed: {reason(error)}", hint=_REDO) from error
    return manifest


def _check(manifest: Manifest) -> None:
    """Raise ValueError, naming the field, for what the types of the fields do not exclude."""
    check_ted(manifest.schema)
    for path in manifest.files:
        if not path or path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise ValueError(f"files: {path!r} lies outside its dataset")
    for name, found in (("returns", manifest.returns), ("lengths", manifest.lengths)):
        if found and not found.keys() >= STATISTICS:
            raise ValueError(f"{name} lacks some of {', '.join(sorted(STATISTICS))}")
    if manifest.blocks:
        size, covered = manifest.blocks["size"], manifest.blocks["files"]
        if len({*covered, BLOCK_TABLE}) <= len(covered) or not manifest.files.keys() >= {BLOCK_TABLE, *covered}:
            raise ValueError("blocks: names a file twice, or one that is not in files")
        if manifest.size_of(BLOCK_TABLE) != 4 * sum(-(-manifest.size_of(path) // size) for path in covered):
            raise ValueError(f"blocks: {BLOCK_TABLE} does not have 4 bytes for every block")


def why_missing(folder: Path, shown: str, name: str = FILENAME) -> str:
    """Return why there is no manifest in a folder, which the text calls ``shown``, as the user did."""
    with suppress(OSError):  # not a valid name of a folder
        if is_dangling(folder):
            return f"{shown} is a link to {folder.readlink()}, which does not exist"
        if folder.is_dir():
            return f"{shown} holds no dataset: there is no {name} in it"
        if folder.is_file():
            return f"{shown} is a file, not the folder of a dataset"
    return f"no such folder: {shown}"


def write_manifest(folder: Path, manifest: Manifest, name: str = FILENAME) -> None:
    """Write ``rbdata.json``, or another ``name``, atomically and durably."""
    write_atomically(folder / name, json.dumps(manifest.to_json(), indent=1).encode() + b"\n")


def _checksum(record: dict[str, Any]) -> str:
    content = {key: value for key, value in record.items() if key != "checksum"}
    # Python writes floats in their shortest exact form, so reading and writing again gives the same text.
    return crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


# -- sizes of files ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A problem of one file.

    In a file of the right size, ``length`` bytes from ``begin`` are wrong; if it is None, the whole file is.
    """

    path: str
    what: str
    begin: int = 0
    length: int | None = None


def check_sizes(folder: Path, manifest: Manifest) -> list[Problem]:
    """Return the files that are missing or have another size than the manifest states; none is read."""
    found = {path: check_size(folder, path, manifest.size_of(path)) for path in sorted(manifest.files)}
    return [Problem(path, what) for path, what in found.items() if what is not None]


def check_size(folder: Path, path: str, size: int) -> str | None:
    """Return how a file differs from a regular file of this size, None if it does not."""
    try:
        if not (folder / path).is_file():
            return "is not a file" if (folder / path).exists() else "is missing"
        found = (folder / path).stat().st_size
    except OSError as error:
        if is_about_reader(error):
            raise
        return f"cannot be read: {error.strerror}"
    return None if found == size else f"has {found} bytes instead of {size}"
