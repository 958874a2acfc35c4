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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import ChecksumError, CorruptSourceError, UsageError
from ....storage.episodes import TERMINATED, EpisodeTable
from ....storage.schema import FLAGS, Leaf, Schema
from ....storage.writer import ColumnWriter
from ...formats.arff import ArffTable, Attribute, ColumnValues
from ...formats.arrow import ParquetTable
from ...formats.limits import check_row_bytes
from ...ingest.job import ConvertOptions, Plan, RawObject, count_notes, name_left_out
from ...ingest.raw_files import ACCEPT, WholeFileJob
from .client import Description
from .columns import ColumnCastError, ColumnRoles, Encoder, column_roles, to_stored
from .table_options import TableOptions

#: Float32 holds every whole number up to this one.
_EXACT = 1 << 24
#: Rows that are made into observations at a time, and bytes of these where they are wide.
_BLOCK_ROWS, _BLOCK_BYTES = 4096, 16 << 20


class OpenmlJob(WholeFileJob):
    """One table. Its rows are all in the plan: there are no parts to fill after it."""

    source, converter = "openml", "openml 2"
    _encoding = "utf-8-sig"
    #: Set by `inspect`: checksums by algorithm, the columns of the file, and what is made of them.
    _digests: dict[str, str]
    _attributes: Sequence[Attribute]
    _roles: ColumnRoles
    _encoder: Encoder

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
        self.counts = {"rows": 0, "dropped_rows": 0, "missing_values": 0, "rounded_integers": 0, "not_finite": 0}

    def identity(self) -> dict[str, Any]:
        # Without what the place states about the file: if that differs, the file is fetched again. Its checksum and the options
        # are in the plan's digest.
        about = self.about_table
        return {"converter": self.converter, "dataset": [about.id, about.version], "file": self.item.name}

    # -- plan ------------------------------------------------------------------------------------------------------

    def inspect(self) -> None:
        """Read the header and decide what every column is. Raises CorruptSourceError, ChecksumError, UsageError."""
        self._rows_at_most = self._look_through()
        with self._reader() as reader:
            self._attributes = reader.attributes
        self._roles = column_roles(self._attributes, self.about_table, self.table, self.title)
        self._encoder = Encoder([(at, self._attributes[at]) for at in self._roles.features], self.table)
        self._block_rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (4 * max(1, self._encoder.width))))
        check_row_bytes(4 * self._encoder.width, self.title)
        self.schema = schema(self._encoder.width, self._label_dtype(), len(self._roles.targets))

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        encoder = self._encoder
        columns.reserve(self._rows_at_most)
        if encoder.must_fit:
            encoder.fit(block for block, _ in self._blocks())
        self.counts = dict.fromkeys(self.counts, 0)
        for block, count in self._blocks():
            try:
                observation, labels = encoder.encode(block), self._labels(block)
            except ColumnCastError as error:
                message = f"the column {error.column} of {self.title} {error}, in step {columns.rows + error.row}"
                raise UsageError(message, hint=f"leave it out: --exclude {error.column}") from error
            self._count(block, observation)
            if count:
                columns.append({"observation": observation, "action": labels})
        steps = columns.rows
        if not steps:
            which = " that miss nothing" if self.counts["rows"] else ""
            raise CorruptSourceError(f"{self.title} holds no rows{which}")
        on_progress(1, 1)
        same = (np.int64(1), np.float64(1), np.uint8(TERMINATED), np.bool_(False))
        return Plan(
            EpisodeTable(np.arange(steps), *(np.broadcast_to(one, steps) for one in same)),
            dict(self.counts),
            self._sentences(),
            spaces=self._spaces(),
            digest=f"{self.sha256} {json.dumps(self.table.to_json(), sort_keys=True)}",
        )

    def _blocks(self) -> Iterator[tuple[list[ColumnValues], int]]:
        """Blocks of the rows that are kept, with their number; counts rows and missing values."""
        done = 0
        with self._reader() as reader:
            for block in reader.blocks(self._block_rows):
                rows = len(next(column for column in block if column is not None))
                unlabelled = np.logical_or.reduce([_is_missing(block[at]) for at in self._roles.targets])
                incomplete = self._encoder.missing_rows(block)
                self._check_complete(unlabelled, incomplete, done)
                done += rows
                self.counts["rows"] += rows
                if self.table.missing == "drop":
                    keep = ~(unlabelled | incomplete)
                    self.counts["dropped_rows"] += int(rows - keep.sum())
                    block = [None if column is None else column[keep] for column in block]
                    rows = int(keep.sum())
                yield block, rows

    def _check_complete(self, unlabelled: np.ndarray, incomplete: np.ndarray, done: int) -> None:
        refused = {"error": "misses a value", "code": "misses a number, which has no codes"}.get(self.table.missing)
        for rows, problem in ((unlabelled, self.table.missing != "drop" and "has no label"), (incomplete, refused)):
            if problem and rows.any():
                message = f"row {done + int(rows.argmax())} of {self.title} {problem}"
                raise UsageError(message, hint="leave such rows out: --missing drop")

    def _count(self, block: Sequence[ColumnValues], observation: np.ndarray) -> None:
        for at in self._roles.features:
            column = block[at]
            assert column is not None
            self.counts["missing_values"] += int(_is_missing(column).sum())
            if column.dtype.kind == "f" and self.table.standardize == "none":
                large = column[np.abs(column) > _EXACT]
                whole = large[np.isfinite(large) & (large == np.floor(large))]
                self.counts["rounded_integers"] += int((whole.astype(np.float32) != whole).sum())
        self.counts["not_finite"] += int(np.isinf(observation).sum())

    def _labels(self, block: Sequence[ColumnValues]) -> np.ndarray:
        named, dtype = zip(self._roles.targets, self._label_names()), self._label_dtype()
        columns = [to_stored(np.asarray(block[at]), dtype, name) for at, name in named]
        return columns[0] if len(columns) == 1 else np.stack(columns, 1)

    def _label_dtype(self) -> str:
        return "int64" if self._attributes[self._roles.targets[0]].kind == "nominal" else "float32"

    # -- the file --------------------------------------------------------------------------------------------------

    @contextmanager
    def _reader(self) -> Iterator[ArffTable | ParquetTable]:
        if self.is_parquet:
            nominal = {one.name: one.values for one in self.about_table.features if one.kind == "nominal"}
            yield ParquetTable(self.path, self.item.url, nominal)
            return
        with self.path.open(encoding=self._encoding) as lines:
            yield ArffTable(lines, self.item.url)

    def _look_through(self) -> int:
        """Check and hash the whole file, find its encoding; returns how many rows it has at most."""
        lines, utf8 = 0, codecs.getincrementaldecoder("utf-8")()
        digests = {name: hashlib.new(name, usedforsecurity=False) for name in ("md5", "sha256")}
        self._encoding = "utf-8-sig"
        with self.path.open("rb") as file:
            for block in chain(iter(lambda: file.read(1 << 20), b""), [b""]):
                for digest in digests.values():
                    digest.update(block)
                lines += block.count(b"\n")
                if self._encoding != "latin-1":
                    try:
                        utf8.decode(block, final=not block)
                    except UnicodeDecodeError:
                        self._encoding = "latin-1"
        self._digests = {name: digest.hexdigest() for name, digest in digests.items()}
        if self._md5 and self._digests["md5"] != self._md5:
            message = f"{self.item.url}: its md5 is {self._digests['md5']}, OpenML states {self._md5}"
            raise ChecksumError(message, hint=f"fetch it again, or use another mirror; {ACCEPT}")
        self.sha256 = self._digests["sha256"]
        self.check_recorded()
        return ParquetTable(self.path, self.item.url, {}).rows if self.is_parquet else lines + 1

    # -- what the manifest says ------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        return [{"name": self.item.name, "size": self.path.stat().st_size, "crc32c": None, **self._digests}]

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
            "options": {**self.table.to_json(), "target": ",".join(self._label_names())},
            "left_out": self._roles.left_out,
        }

    @property
    def title(self) -> str:
        return f"{self.about_table.name} (version {self.about_table.version})"

    def _label_names(self) -> list[str]:
        return [self._attributes[at].name for at in self._roles.targets]

    def _spaces(self) -> dict[str, Any]:
        targets = [self._attributes[at] for at in self._roles.targets]
        width = self._encoder.width
        action: dict[str, Any]
        if targets[0].kind == "numeric":
            action = {"type": "Box", "shape": list(self.schema["action"].shape), "dtype": "float32"}
        elif len(targets) == 1:
            action = {"type": "Discrete", "n": len(targets[0].values), "labels": list(targets[0].values)}
        else:
            labels = {target.name: list(target.values) for target in targets}
            action = {"type": "MultiDiscrete", "nvec": [len(target.values) for target in targets], "labels": labels}
        return {
            "observation": {"type": "Box", "shape": [width], "dtype": "float32", "columns": self._encoder.columns()},
            "action": {**action, "columns": [target.name for target in targets]},
        }

    def _sentences(self) -> list[str]:
        about, counts = self.about_table, self.counts
        names = ", ".join(self._label_names())
        notes = [
            *self._notes,
            f"{self.title}, number {about.id} on OpenML: every row is an episode of one step, its action the label "
            f"({names}), its reward 1.",
        ]
        if about.status not in ("active", "unknown"):
            notes.append(f"This version is {about.status} on OpenML.")
        counted = {
            "missing_values": f"{{n}} values are missing; {_MISSING[self.table.missing]}.",
            "dropped_rows": "Left out: {n} of {rows} rows, which miss a value.",
            "rounded_integers": "{n} whole numbers above 2**24 are rounded to float32.",
            "not_finite": "{n} values of observations are infinite.",
        }
        notes += count_notes(counted, counts)
        if self.table.standardize != "none":
            notes.append("Columns are standardised with the mean and deviation of all rows kept, which spaces hold.")
        if self._roles.left_out:
            notes.append(f"Columns left out: {name_left_out(self._roles.left_out)}.")
        return notes


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
