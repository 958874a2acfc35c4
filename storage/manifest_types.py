"""What the fields of a manifest may hold, checked when it is read.

A manifest may come from anywhere (a mirror, a shared disk, a colleague), and its checksum only shows that it is as its writer
meant it. Types and bounds are declared here and checked by msgspec; keys that are not declared are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

#: The file of the checksums of blocks; no leaf has this name.
BLOCK_TABLE = "blocks.crc32c"
#: What is stated of the episodes' returns and lengths, where there are episodes.
STATISTICS = {"mean", "std", "min", "max"}

#: Steps, rows, bytes: more than any disk holds, and small enough for products with row sizes to be compared.
Count = Annotated[int, Meta(ge=0, le=1 << 56)]
Text = Annotated[str, Meta(max_length=1 << 20)]
Checksum = Annotated[str, Meta(pattern="^[0-9a-f]{8}$")]


class SourceObject(TypedDict, total=False):
    """One remote object."""

    name: Text | None
    size: Count | None
    crc32c: Checksum | None


class SourceRecord(TypedDict, total=False):
    """What was converted, and how."""

    name: Text
    options: dict[str, Any]
    objects: list[SourceObject]
    shards: list[int]
    all_shards: bool


class PartRecord(TypedDict, total=False):
    """The state rows that came from one object."""

    name: Text
    number: Count
    first_state: Count
    states: Count
    layout: Text
    object: SourceObject


class FunctionRecord(TypedDict, total=False):
    """One function of a preprocess run."""

    function: Text
    source_sha256: Text | None
    file_sha256: Text | None
    fn_sha256: Text | None
    args: dict[str, Any]
    args_sha256: Text | None
    files: dict[Text, Text]


class InputRecord(TypedDict, total=False):
    """The dataset that a preprocessed one was made from."""

    id: Text
    content: Text | None
    steps: Count
    episodes: Count
    source: SourceRecord
    lineage: LineageRecord | None


class LineageRecord(TypedDict, total=False):
    """How a preprocessed dataset was made; see `preprocess.lineage`."""

    input: InputRecord
    functions: list[FunctionRecord]
    windows: dict[str, Any] | None
    versions: dict[str, Any] | None
    statistics: dict[str, Any] | None
    leaves: dict[str, list[Text]] | None
    unchained: list[Text]
    fingerprint: Text


class BlocksRecord(TypedDict):
    """The files that the table of checksums of blocks covers, in its order, and the size of a block in bytes."""

    size: Annotated[int, Meta(ge=1 << 12, le=1 << 30)]
    files: Annotated[list[Text], Meta(min_length=1)]


class LaterFields(TypedDict, total=False):
    """What manifests of earlier versions lack."""

    blocks: BlocksRecord | None


class ManifestRecord(LaterFields):
    """The fields that readers rely on; see `manifest` for what they mean."""

    id: Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x20\x7f]+$")]
    steps: Count
    episodes: Count
    leaves: Annotated[list[dict[str, Any]], Meta(max_length=100_000)]
    spaces: dict[str, dict[str, Any] | None]
    source: SourceRecord
    counts: dict[str, Any]
    notes: list[Text]
    returns: dict[str, float]
    lengths: dict[str, float]
    parts: list[PartRecord]
    files: dict[Text, list[tuple[Count, Checksum]]]
    licence: Text | None
    citation: Text | None
    lineage: LineageRecord | None
    provenance: dict[str, Any]


def check_types(record: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the field, where a parsed manifest is not what is declared above."""
    try:
        msgspec.convert(record, ManifestRecord)
    except msgspec.ValidationError as error:  # no ValueError before msgspec 0.20
        raise ValueError(str(error)) from error
    for path in record["files"]:
        if not path or path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise ValueError(f"files: {path!r} lies outside its dataset")
    if record.get("blocks"):
        _check_blocks(record["blocks"]["size"], record["blocks"]["files"], record["files"])
    for name in ("returns", "lengths"):
        if record[name] and not set(record[name]) >= STATISTICS:
            raise ValueError(f"{name} lacks some of {', '.join(sorted(STATISTICS))}")


def _check_blocks(size: int, covered: list[str], files: Mapping[str, list[tuple[int, str]]]) -> None:
    if len(set(covered)) < len(covered) or BLOCK_TABLE in covered or not files.keys() >= {BLOCK_TABLE, *covered}:
        raise ValueError("blocks: names files twice, or such as are not in files")
    lengths = {path: sum(length for length, _ in files[path]) for path in (BLOCK_TABLE, *covered)}
    if lengths[BLOCK_TABLE] != 4 * sum(-(-lengths[path] // size) for path in covered):
        raise ValueError(f"blocks: {BLOCK_TABLE} does not have 4 bytes for every block")
