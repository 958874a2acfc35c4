"""One table of OpenML, from a place to a dataset: every row is an episode of one step.

observation         float32 [width]: the features, see `columns`
action              the label: its code, int64 []; or the target, float32 []; several: [k]
next/reward         1, since the action is the right one
next/terminated     True; next/observation is zeros
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import ChecksumError, CorruptSourceError, UsageError
from ....storage.episodes import EpisodeTable
from ....storage.schema import FLAGS, Leaf, Schema
from ...formats.arff import ArffTable, Attribute, ColumnValues
from ...formats.arrow import ParquetTable
from ...formats.limits import check_row_bytes
from ...ingest.block import END_TERMINATED, Block
from ...ingest.records import ConvertOptions, RawObject, count_notes, name_left_out
from ...ingest.unit import LEAD, Facts, Part, Unit
from ...ingest.whole_file import ACCEPT, WholeFileReader
from .client import Description
from .columns import ColumnCastError, ColumnRoles, Encoder, column_roles, to_stored
from .table_options import TableOptions

#: Float32 holds every whole number up to this one.
_EXACT = 1 << 24
#: Rows that are made into observations at a time, and bytes of these where they are wide.
_BLOCK_ROWS, _BLOCK_BYTES = 4096, 16 << 20


@dataclass(frozen=True)
class Head:
    """What a table's file holds: checksums by algorithm, its encoding, the most rows that it can have, its columns, and what is
    made of them."""

    digests: dict[str, str]
    encoding: str
    most_rows: int
    attributes: Sequence[Attribute]
    roles: ColumnRoles
    encoder: Encoder


class OpenmlReader(WholeFileReader):
    """One table. Its rows are read as the lead; there are no other units."""

    source, converter = "openml", "openml 2"
    #: Set by `take_head` and `units`.
    head: Head
    _lead: Mapping[str, Any]

    def __init__(
        self,
        about: Description,
        file: RawObject,
        table: TableOptions,
        notes: Sequence[str],
        answers: Sequence[RawObject],
        options: ConvertOptions,
        *,
        is_parquet: bool,
    ) -> None:
        super().__init__(about.name, file.location, file.item, options)
        self.about_table, self.table = about, table
        self.licence, self.citation = about.licence, about.citation
        self._md5 = None if is_parquet or self.accept_changed else about.md5
        if self._md5:
            self.item = replace(self.item, checksums={**self.item.checksums, "md5": self._md5})
        self.is_parquet = is_parquet
        self.native_libraries = ("pyarrow.parquet",) if is_parquet else ()
        self._notes, self._mirrored = notes, [*answers, file]

    def identity(self) -> dict[str, Any]:
        # Without what the place states about the file: if that differs, the file is fetched again. Its checksum and the options
        # are in the digest.
        about = self.about_table
        return {"converter": self.converter, "dataset": [about.id, about.version], "file": self.item.name}

    def read_head(self, path: Path) -> Head:
        """Hash the file, read its header, decide what every column is. Raises CorruptSourceError, ChecksumError, UsageError."""
        digests, encoding, lines = _look_through(path)
        if self._md5 and digests["md5"] != self._md5:
            message = f"{self.item.url}: its md5 is {digests['md5']}, OpenML states {self._md5}"
            raise ChecksumError(message, hint=f"fetch it again, or use another mirror; {ACCEPT}")
        self.sha256 = digests["sha256"]
        self.check_recorded()
        with self._open(path, encoding) as table:
            attributes = table.attributes
            most_rows = table.rows if isinstance(table, ParquetTable) else lines + 1
        roles = column_roles(attributes, self.about_table, self.table, self.title)
        encoder = Encoder([(at, attributes[at]) for at in roles.features], self.table)
        check_row_bytes(4 * encoder.width, self.title)
        return Head(digests, encoding, most_rows, attributes, roles, encoder)

    def take_head(self, head: Head) -> None:
        self.head, self.sha256 = head, head.digests["sha256"]
        self.schema = schema(head.encoder.width, self.label_dtype(), len(head.roles.targets))

    def lead(self) -> TableUnit:
        return TableUnit(LEAD, self.title, self.head.most_rows, self.sha256, self)

    def units(self, lead: Part | None) -> list[TableUnit]:
        assert lead is not None
        self._lead = lead.about
        self.notes = self._sentences(self._lead["counts"])
        self.digest = f"{self.sha256} {json.dumps(self.table.to_json(), sort_keys=True)}"
        return []

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        return Facts(self._lead["counts"], self.notes, spaces=self._spaces())

    @contextmanager
    def _open(self, path: Path, encoding: str) -> Iterator[ArffTable | ParquetTable]:
        if self.is_parquet:
            nominal = {one.name: one.values for one in self.about_table.features if one.kind == "nominal"}
            yield ParquetTable(path, self.item.url, nominal)
            return
        with path.open(encoding=encoding) as lines:
            yield ArffTable(lines, self.item.url)

    def open_table(self) -> AbstractContextManager[ArffTable | ParquetTable]:
        """The table, from its beginning."""
        return self._open(self.path, self.head.encoding)

    def label_dtype(self) -> str:
        """That of the action."""
        return "int64" if self.head.attributes[self.head.roles.targets[0]].kind == "nominal" else "float32"

    # -- what the manifest says ------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        return [{"name": self.item.name, "size": self.path.stat().st_size, "crc32c": None, **self.head.digests}]

    def raw_objects(self) -> list[RawObject]:
        return self._mirrored

    def unverified(self) -> list[str]:
        """The answers of the API are read, not stored; OpenML states the MD5 of its ARFF files."""
        return [*self.unverified_before, *[self.item.name] * ("://" in self.item.url and not self.item.checksums)]

    def describe(self) -> dict[str, Any]:
        about = self.about_table
        return {
            "number": about.id,
            "version": about.version,
            "status": about.status,
            "format": "parquet" if self.is_parquet else about.format,
            "options": {**self.table.to_json(), "target": ",".join(self.label_names())},
            "left_out": self.head.roles.left_out,
        }

    @property
    def title(self) -> str:
        return f"{self.about_table.name} (version {self.about_table.version})"

    def label_names(self) -> list[str]:
        return [self.head.attributes[at].name for at in self.head.roles.targets]

    def _spaces(self) -> dict[str, Any]:
        targets = [self.head.attributes[at] for at in self.head.roles.targets]
        width = self.head.encoder.width
        action: dict[str, Any]
        if targets[0].kind == "numeric":
            action = {"type": "Box", "shape": list(self.schema["action"].shape), "dtype": "float32"}
        elif len(targets) == 1:
            action = {"type": "Discrete", "n": len(targets[0].values), "labels": list(targets[0].values)}
        else:
            labels = {target.name: list(target.values) for target in targets}
            action = {"type": "MultiDiscrete", "nvec": [len(target.values) for target in targets], "labels": labels}
        return {
            "observation": {"type": "Box", "shape": [width], "dtype": "float32", "columns": self._lead["columns"]},
            "action": {**action, "columns": [target.name for target in targets]},
        }

    def _sentences(self, counts: Mapping[str, int]) -> list[str]:
        about = self.about_table
        names = ", ".join(self.label_names())
        notes = [
            *self._notes,
            f"{self.title}, number {about.id} on OpenML: every row is an episode of one step, its action the label "
            f"({names}), its reward 1.",
        ]
        if about.status not in ("active", "unknown"):
            notes.append(f"This version is {about.status} on OpenML.")
        counted = {
            "missing_values": f"{{n:value is|values are}} missing; {_MISSING[self.table.missing]}.",
            "dropped_rows": "Left out: {n} of {rows} rows, where a value is missing.",
            "rounded_integers": "{n:whole number} above 2**24 rounded to float32.",
            "not_finite": "{n:value of an observation is|values of observations are} infinite.",
        }
        notes += count_notes(counted, counts)
        if self.table.standardize != "none":
            notes.append("Columns are standardised with the mean and deviation of all rows kept, which spaces hold.")
        if self.head.roles.left_out:
            notes.append(f"Columns left out: {name_left_out(self.head.roles.left_out)}.")
        return notes


@dataclass(frozen=True)
class TableUnit(Unit):
    """All rows of a table, as steps."""

    reader: OpenmlReader

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        reader, head = self.reader, self.reader.head
        encoder, title = head.encoder, reader.title
        size = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (4 * max(1, encoder.width))))
        if encoder.must_fit:
            encoder.fit(block for block, _ in self._kept(size, Counter()))
        counts, steps = (
            Counter({"rows": 0, "dropped_rows": 0, "missing_values": 0, "rounded_integers": 0, "not_finite": 0}),
            0,
        )
        for block, rows in self._kept(size, counts):
            try:
                observation, labels = encoder.encode(block), self._labels(block)
            except ColumnCastError as error:
                message = f"the column {error.column} of {title} {error}, in step {steps + error.row}"
                raise UsageError(message, hint=f"leave it out: --exclude {error.column}") from error
            self._count(block, observation, counts)
            steps += rows
            if rows:
                bits = np.full(rows, END_TERMINATED, np.uint8)
                yield Block({"observation": observation, "action": labels}, bits, done=counts["rows"])
        if not steps:
            which = " that miss nothing" if counts["rows"] else ""
            raise CorruptSourceError(f"{title} holds no rows{which}")
        yield Block({}, done=self.rows, record={"counts": dict(counts), "columns": encoder.columns()})

    def _kept(self, size: int, counts: Counter[str]) -> Iterator[tuple[list[ColumnValues], int]]:
        """Blocks of the rows that are kept, with their number; counts rows."""
        missing, roles = self.reader.table.missing, self.reader.head.roles
        with self.reader.open_table() as table:
            for block in table.blocks(size):
                rows = len(next(column for column in block if column is not None))
                unlabelled = np.logical_or.reduce([_is_missing(block[at]) for at in roles.targets])
                incomplete = self.reader.head.encoder.missing_rows(block)
                self._check_complete(unlabelled, incomplete, counts["rows"])
                counts["rows"] += rows
                if missing == "drop":
                    keep = ~(unlabelled | incomplete)
                    counts["dropped_rows"] += int(rows - keep.sum())
                    block = [None if column is None else column[keep] for column in block]
                    rows = int(keep.sum())
                yield block, rows

    def _check_complete(self, unlabelled: np.ndarray, incomplete: np.ndarray, done: int) -> None:
        missing = self.reader.table.missing
        refused = {"error": "misses a value", "code": "misses a number, which has no codes"}.get(missing)
        for rows, problem in ((unlabelled, missing != "drop" and "has no label"), (incomplete, refused)):
            if problem and rows.any():
                message = f"row {done + int(rows.argmax())} of {self.reader.title} {problem}"
                raise UsageError(message, hint="leave such rows out: --missing drop")

    def _count(self, block: Sequence[ColumnValues], observation: np.ndarray, counts: Counter[str]) -> None:
        for at in self.reader.head.roles.features:
            column = block[at]
            assert column is not None
            counts["missing_values"] += int(_is_missing(column).sum())
            if column.dtype.kind == "f" and self.reader.table.standardize == "none":
                large = column[np.abs(column) > _EXACT]
                whole = large[np.isfinite(large) & (large == np.floor(large))]
                counts["rounded_integers"] += int((whole.astype(np.float32) != whole).sum())
        counts["not_finite"] += int(np.isinf(observation).sum())

    def _labels(self, block: Sequence[ColumnValues]) -> np.ndarray:
        named, dtype = zip(self.reader.head.roles.targets, self.reader.label_names()), self.reader.label_dtype()
        columns = [to_stored(np.asarray(block[at]), dtype, name) for at, name in named]
        return columns[0] if len(columns) == 1 else np.stack(columns, 1)


def _look_through(path: Path) -> tuple[dict[str, str], str, int]:
    """The checksums of a whole file, its encoding, and how many lines it has."""
    lines, utf8, encoding = 0, codecs.getincrementaldecoder("utf-8")(), "utf-8-sig"
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in ("md5", "sha256")}
    with path.open("rb") as file:
        for block in chain(iter(lambda: file.read(1 << 20), b""), [b""]):
            for digest in digests.values():
                digest.update(block)
            lines += block.count(b"\n")
            if encoding != "latin-1":
                try:
                    utf8.decode(block, final=not block)
                except UnicodeDecodeError:
                    encoding = "latin-1"
    return {name: digest.hexdigest() for name, digest in digests.items()}, encoding, lines


_MISSING = {
    "keep": "they are NaN in the observation (all zeros where one-hot)",
    "code": "they have their own code, the last",
    "drop": "their rows are left out",
    "error": "they are refused",
}


def schema(width: int, label_dtype: str, labels: int) -> Schema:
    """The leaves of a table; a leaf with the same value in every row is a constant."""
    return Schema(
        (
            Leaf("observation", "step", "float32", (width,)),
            Leaf("next/observation", "step", "float32", (width,), constant=0.0),
            Leaf("action", "step", label_dtype, () if labels == 1 else (labels,)),
            *(Leaf(flag, "step", "bool", (1,), constant=False) for flag in FLAGS),
            Leaf("next/reward", "step", "float32", (1,), constant=1.0),
            *(Leaf("next/" + flag, "step", "bool", (1,), constant=flag != "truncated") for flag in FLAGS),
        )
    )


def _is_missing(column: ColumnValues) -> np.ndarray:
    assert column is not None
    return np.isnan(column) if column.dtype.kind == "f" else column < 0
