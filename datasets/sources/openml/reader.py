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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import ChecksumError, CorruptSourceError, UsageError
from ....storage.episodes import EpisodeTable
from ....storage.schema import FLAGS, Leaf, Schema
from ...formats.arff import ArffTable, Attribute, ColumnValues
from ...formats.limits import check_row_bytes
from ...ingest.block import END_TERMINATED, Block
from ...ingest.records import ConvertOptions, RawObject, count_notes, name_left_out
from ...ingest.unit import LEAD, Facts, Part, Unit
from ...ingest.whole_file import ACCEPT, WholeFileReader
from .client import Description
from .columns import ColumnRoles, Encoder, TableOptions, column_roles, to_stored

#: Float32 holds every whole number up to this one.
_EXACT = 1 << 24
#: Rows that are made into observations at a time, and bytes of these where they are wide.
_BLOCK_ROWS, _BLOCK_BYTES = 4096, 16 << 20
_MISSING = {
    "keep": "they are NaN in the observation (all zeros where one-hot)",
    "code": "they have their own code, the last",
    "drop": "their rows are left out",
    "error": "they are refused",
}
_REFUSED = {"error": "misses a value", "code": "misses a number, which has no codes"}


def table_options(options: ConvertOptions, preset: Mapping[str, Any]) -> TableOptions:
    """The options given, over those of a preset. Raises UsageError for an option that names no column."""
    given = {**preset, **{name: value for name, value in options.extra.items() if value is not None}}
    given.pop("accept_changed", None)
    for name in given.keys() & {"target", "exclude"}:
        columns = tuple(part.strip() for part in given[name].split(",") if part.strip())
        if not columns:
            raise UsageError(f"{name} names no column", hint=f"for example: {name} = 'age,income'")
        given[name] = columns
    return TableOptions(**given)


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

    @property
    def targets(self) -> list[Attribute]:
        """The columns of the label."""
        return [self.attributes[at] for at in self.roles.targets]

    @property
    def label_dtype(self) -> str:
        """That of the action."""
        return "int64" if self.targets[0].kind == "nominal" else "float32"


class OpenmlReader(WholeFileReader):
    """One table. Its rows are read as the lead; there are no other units. The last of ``raws`` is the file, the others are the
    answers of the API that led to it."""

    source, converter = "openml", "openml 2"
    #: Set by `take_head` and `units`.
    head: Head
    _lead: Mapping[str, Any]

    def __init__(
        self,
        about: Description,
        raws: Sequence[RawObject],
        table: TableOptions,
        notes: Sequence[str],
        options: ConvertOptions,
    ) -> None:
        super().__init__(about.name, raws[-1].location, raws[-1].item, options)
        self.about_table, self.table, self._raws, self._notes = about, table, raws, notes
        self.licence, self.citation = about.licence, about.citation
        self._md5 = None if self.accept_changed else about.md5
        if self._md5:
            self.item = replace(self.item, checksums={**self.item.checksums, "md5": self._md5})

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
        with self.open_table(path, encoding) as table:
            attributes = table.attributes
        roles = column_roles(attributes, self.about_table, self.table, self.title)
        encoder = Encoder([(at, attributes[at]) for at in roles.features], self.table)
        check_row_bytes(4 * encoder.width, self.title)
        return Head(digests, encoding, lines + 1, attributes, roles, encoder)

    def take_head(self, head: Head) -> None:
        self.head, self.sha256 = head, head.digests["sha256"]
        self.schema = schema(head.encoder.width, head.label_dtype, len(head.targets))

    def lead(self) -> TableUnit:
        return TableUnit(LEAD, self.title, self.head.most_rows, self.sha256, self)

    def units(self, lead: Part | None) -> list[TableUnit]:
        assert lead is not None
        self._lead = lead.about
        self.notes = self._sentences(self._lead["counts"])
        self.digest = f"{self.sha256} {json.dumps(self.table.to_json(self.table.target), sort_keys=True)}"
        return []

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        return Facts(self._lead["counts"], self.notes, spaces=self._spaces())

    @contextmanager
    def open_table(self, path: Path, encoding: str) -> Iterator[ArffTable]:
        """The table, from its beginning."""
        with path.open(encoding=encoding) as lines:
            yield ArffTable(lines, self.item.url)

    # -- what the manifest says ------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        return [{"name": self.item.name, "size": self.path.stat().st_size, "crc32c": None, **self.head.digests}]

    def raw_objects(self) -> list[RawObject]:
        return list(self._raws)

    def unverified(self) -> list[str]:
        """The answers of the API are read, not stored; OpenML states the MD5 of its files."""
        return [*self.unverified_before, *[self.item.name] * ("://" in self.item.url and not self.item.checksums)]

    def describe(self) -> dict[str, Any]:
        about, labels = self.about_table, [target.name for target in self.head.targets]
        return {
            "number": about.id,
            "version": about.version,
            "status": about.status,
            "format": about.format,
            "options": self.table.to_json(labels),
            "left_out": self.head.roles.left_out,
        }

    @property
    def title(self) -> str:
        return f"{self.about_table.name} (version {self.about_table.version})"

    def _spaces(self) -> dict[str, Any]:
        targets, label = self.head.targets, self.schema["action"]
        values = {target.name: list(target.values) for target in targets}
        action: dict[str, Any] = {"type": "Box", "shape": list(label.shape), "dtype": "float32"}
        if label.dtype == "int64" and len(targets) == 1:
            action = {"type": "Discrete", "n": len(targets[0].values), "labels": list(targets[0].values)}
        elif label.dtype == "int64":
            action = {"type": "MultiDiscrete", "nvec": [len(target.values) for target in targets], "labels": values}
        observation = {"type": "Box", "shape": [self.head.encoder.width], "dtype": "float32"}
        return {
            "observation": {**observation, "columns": self._lead["columns"]},
            "action": {**action, "columns": list(values)},
        }

    def _sentences(self, counts: Mapping[str, int]) -> list[str]:
        about, left_out = self.about_table, self.head.roles.left_out
        labels = ", ".join(target.name for target in self.head.targets)
        row = f"every row is an episode of one step, its action the label ({labels}), its reward 1."
        counted = {
            "missing_values": f"{{n:value is|values are}} missing; {_MISSING[self.table.missing]}.",
            "dropped_rows": "Left out: {n} of {rows} rows, where a value is missing.",
            "rounded_integers": "{n:whole number} above 2**24 rounded to float32.",
            "not_finite": "{n:value of an observation is|values of observations are} infinite.",
        }
        standardised = "Columns are standardised with the mean and deviation of all rows kept, which spaces hold."
        return [
            *self._notes,
            f"{self.title}, number {about.id} on OpenML: {row}",
            *[f"This version is {about.status} on OpenML."] * (about.status not in ("active", "unknown")),
            *count_notes(counted, counts),
            *[standardised] * (self.table.standardize != "none"),
            *[f"Columns left out: {name_left_out(left_out)}."] * bool(left_out),
        ]


@dataclass(frozen=True)
class TableUnit(Unit):
    """All rows of a table, as steps."""

    reader: OpenmlReader

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        encoder, title, steps = self.reader.head.encoder, self.reader.title, 0
        if encoder.scaled:
            encoder.fit(block for block, _ in self._kept(Counter()))
        counts = Counter(dict.fromkeys(("rows", "dropped_rows", "missing_values", "rounded_integers", "not_finite"), 0))
        for block, rows in self._kept(counts):
            observation = encoder.encode(block, title, steps)
            columns = {"observation": observation, "action": self._labels(block, steps)}
            self._count(block, observation, counts)
            steps += rows
            if rows:
                yield Block(columns, np.full(rows, END_TERMINATED, np.uint8), done=counts["rows"])
        if not steps:
            which = " that miss nothing" if counts["rows"] else ""
            raise CorruptSourceError(f"{title} holds no rows{which}")
        yield Block({}, done=self.rows, record={"counts": dict(counts), "columns": encoder.columns()})

    def _kept(self, counts: Counter[str]) -> Iterator[tuple[list[ColumnValues], int]]:
        """Blocks of the rows that are kept, with their number; counts rows. Raises UsageError for rows without a label, and as
        the option says for those that miss a value."""
        reader, head = self.reader, self.reader.head
        missing = reader.table.missing
        size = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (4 * max(1, head.encoder.width))))
        with reader.open_table(reader.path, head.encoding) as table:
            for block in table.blocks(size):
                unlabelled = np.logical_or.reduce([_is_missing(block[at]) for at in head.roles.targets])
                incomplete, rows = head.encoder.missing_rows(block), len(unlabelled)
                for odd, problem in ((unlabelled, "has no label"), (incomplete, _REFUSED.get(missing))):
                    if problem and missing != "drop" and odd.any():
                        message = f"row {counts['rows'] + int(odd.argmax())} of {reader.title} {problem}"
                        raise UsageError(message, hint="leave such rows out: --missing drop")
                counts["rows"] += rows
                if missing == "drop":
                    keep = ~(unlabelled | incomplete)
                    counts["dropped_rows"] += int(rows - keep.sum())
                    block = [None if column is None else column[keep] for column in block]
                    rows = int(keep.sum())
                yield block, rows

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

    def _labels(self, block: Sequence[ColumnValues], first: int) -> np.ndarray:
        head, title = self.reader.head, self.reader.title
        named = [(np.asarray(block[at]), one.name) for at, one in zip(head.roles.targets, head.targets)]
        columns = [to_stored(values, head.label_dtype, name, title, first) for values, name in named]
        return columns[0] if len(columns) == 1 else np.stack(columns, 1)


def _look_through(path: Path) -> tuple[dict[str, str], str, int]:
    """The checksums of a whole file, its encoding (UTF-8, or else Latin-1), and how many lines it has."""
    lines, utf8, encoding = 0, codecs.getincrementaldecoder("utf-8")(), "utf-8-sig"
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in ("md5", "sha256")}
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            for digest in digests.values():
                digest.update(block)
            lines += block.count(b"\n")
            try:
                utf8.decode(block)
            except UnicodeDecodeError:
                encoding = "latin-1"
    if utf8.getstate()[0]:
        encoding = "latin-1"  # it ends inside a character
    return {name: digest.hexdigest() for name, digest in digests.items()}, encoding, lines


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
