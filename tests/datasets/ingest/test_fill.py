"""Filling a part from a row source: sinks, positions, progress, the record for the journal; and what is staged already."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from rbdata.datasets.ingest.job import ConvertOptions, PartSpec
from rbdata.datasets.ingest.row_source import Block, RowSource, StagedPart, StagedRows, block_of_rows, lengths_path
from rbdata.datasets.ingest.run import FillTask
from rbdata.errors import RbdataError, UsageError
from rbdata.storage.durable import preallocate
from rbdata.storage.schema import Leaf, Schema, ted_flags

ROWS = np.random.default_rng(0).integers(0, 9, (7, 1100), np.uint8)
SCHEMA = Schema((Leaf("observation", "state", "uint8", (1100,), codec="raw"), *ted_flags()))


@dataclass(frozen=True)
class Reversed(RowSource):
    """Seven rows in two blocks, the last rows first."""

    @property
    def rows(self) -> int:
        return 7

    def blocks(self, leaves: Sequence[Leaf], threads: int) -> Generator[Block, None, None]:
        (leaf,) = leaves
        yield block_of_rows(leaf, 4, ROWS[4:], 3)
        yield Block(leaf.name, ROWS[:4].tobytes(), [(0, np.arange(4) * 1100)], 7, fetched=50, retries=1, crc32c="abcd")


def task(source: RowSource, folder: Path, first: int = 2) -> FillTask:
    preallocate(folder / "observation.memmap", 12 * 1100)
    return FillTask(0, source, folder, SCHEMA, ("observation",), first, 7, 12, threads=1, label="frames")


def stored(folder: Path) -> np.ndarray:
    return np.fromfile(folder / "observation.memmap", np.uint8).reshape(12, 1100)


def test_rows_go_to_their_positions(tmp_path: Path) -> None:
    progress: list[tuple[int, ...]] = []
    record = task(Reversed(), tmp_path)(lambda *numbers: progress.append(numbers))
    assert np.array_equal(stored(tmp_path)[2:9], ROWS)
    assert not stored(tmp_path)[:2].any() and not stored(tmp_path)[9:].any()
    assert progress == [(3, 0, 0), (7, 50, 1)]
    assert record["crc32c"] == "abcd" and list(record["leaves"]) == ["observation"]


@dataclass(frozen=True)
class Short(Reversed):
    """Leaves rows out."""

    def blocks(self, leaves: Sequence[Leaf], threads: int) -> Generator[Block, None, None]:
        yield block_of_rows(leaves[0], 0, ROWS[:5], 5)


def test_a_source_must_give_every_row_once(tmp_path: Path) -> None:
    with pytest.raises(RbdataError, match="a part of 7 rows was given 5"):
        task(Short(), tmp_path)(lambda *numbers: None)


def test_staged_rows_are_joined(tmp_path: Path) -> None:
    ROWS[:4].tofile(tmp_path / "one")
    ROWS.tofile(tmp_path / "two")
    runs = [StagedRows(tmp_path / "one", 0, 4), StagedRows(tmp_path / "two", 4, 3)]
    record = task(StagedPart("staged", {"observation": runs}, "beef"), tmp_path)(lambda *numbers: None)
    assert np.array_equal(stored(tmp_path)[2:9], ROWS)
    assert record["crc32c"] == "beef"


def test_lengths_are_beside_their_file() -> None:
    assert lengths_path(Path("folder/0.1")) == Path("folder/0.1.lengths")


def test_a_part_in_the_manifest() -> None:
    part = PartSpec("shard 1", 5, "layout", {"name": "x", "size": None, "crc32c": None}, number=1, first_state=0)
    assert list(part.to_json()) == ["name", "number", "first_state", "states", "layout", "object"]
    assert part.with_checksum("ab").object == {"name": "x", "size": None, "crc32c": "ab"}
    assert part.with_checksum("ab").with_checksum(None).object["crc32c"] == "ab"
    assert list(PartSpec("x.hdf5", 5, "whole", {}).to_json()) == ["name", "states", "layout", "object"]


def test_plain_ted_is_not_compressed() -> None:
    """Refused for every source, before anything is fetched."""
    with pytest.raises(UsageError, match="layout ted"):
        ConvertOptions(layout="ted", codec="zstd")
