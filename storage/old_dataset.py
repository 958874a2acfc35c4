"""A dataset that is about to be replaced by a larger one, which begins with its rows: they are pieces of the join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DamagedDatasetError
from .checksums import join_ranges, place_cells, sum_cells, sum_pieces
from .codecs import codec_of
from .join import Piece
from .leaf import Leaf
from .manifest import FILENAME, Manifest, read_manifest
from .schema import Schema


class OldDataset:
    """The dataset in ``folder``."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.damaged_in = cache(self._damaged_in)

    @classmethod
    def open(cls, folder: Path, schema: Schema) -> OldDataset | None:
        """Return the dataset in a folder, if its rows fit this schema; otherwise None."""
        if not (folder / FILENAME).is_file():
            return None
        manifest = read_manifest(folder)
        usable = [leaf.to_json() for leaf in manifest.schema] == [leaf.to_json() for leaf in schema]
        old = cls(folder, manifest)
        # With a damaged dictionary the old rows cannot be decoded.
        dictionaries = (name for name in manifest.files if name.endswith("/dictionary"))
        return old if usable and schema.states and not any(map(old.damaged_in, dictionaries)) else None

    def _damaged_in(self, path: str) -> list[tuple[int, int]]:
        """The ranges of a file, as begin and length, that are not what the manifest says."""
        ranges = self.manifest.files[path]
        begins = accumulate((length for length, _ in ranges), initial=0)
        try:
            found = sum_pieces(self.folder / path, 0, [length for length, _ in ranges])
        except OSError:
            return [(0, self.manifest.size_of(path))]
        return [(begin, wanted[0]) for begin, wanted, sums in zip(begins, ranges, found) if sums != wanted]

    def dictionary(self, leaf: Leaf) -> bytes:
        """Return the dictionary of a leaf whose codec uses one."""
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

    def pieces(self, leaf: Leaf, first: int, stop: int, mark: Any, *, with_empty: bool = False) -> list[Piece]:
        """Its rows ``first`` to ``stop - 1`` of a leaf, checked: a piece for each checksum range, ``(mark, number)`` in the new
        dataset; ``with_empty``: also for ranges without rows.

        Raises DamagedDatasetError where they are not what the manifest says, or no ranges of their own.
        """
        path = codec_of(leaf).path("blob")
        offsets = None if codec_of(leaf).fixed_rows else self._offsets(leaf, first, stop)
        begin, end = (first * leaf.row_bytes, stop * leaf.row_bytes) if offsets is None else (offsets[0], offsets[-1])
        at, pieces = 0, list[Piece]()
        for length, checksum in self.manifest.files[path]:
            if begin <= at and at + length <= end and (length or with_empty):
                cells, lengths, rows = self._cells(path, at, length, checksum), None, length // leaf.row_bytes
                if offsets is not None:
                    low, high = np.searchsorted(offsets, [at, at + length])
                    lengths, rows = np.diff(offsets[low : high + 1]), int(high - low)
                pieces.append(Piece(self.folder / path, at, length, cells, rows, (mark, len(pieces)), lengths))
            at += length
        if sum(piece.rows for piece in pieces) != stop - first:
            raise self.damaged(path)
        return pieces

    def _cells(self, path: str, at: int, length: int, checksum: str) -> str:
        """The `Cells` of a range of a file."""
        try:
            found, cells = sum_cells(self.folder / path, at, length)
        except OSError as error:
            raise self.damaged(path) from error
        if found != length or join_ranges(place_cells(self.folder / path, at, length, cells, 0)) != (length, checksum):
            raise self.damaged(path)
        return cells

    def _offsets(self, leaf: Leaf, first: int, stop: int) -> np.ndarray:
        """Where these compressed rows begin, and where the last ends."""
        path = codec_of(leaf).path("offsets")
        low, high = 8 * first, 8 * (stop + 1)
        if any(begin < high and low < begin + length for begin, length in self.damaged_in(path)):
            raise self.damaged(path)
        return np.fromfile(self.folder / path, "<i8", stop + 1 - first, offset=low)

    def damaged(self, path: str) -> DamagedDatasetError:
        """Return the error that names a file of it."""
        message = f"{self.manifest.id} is damaged, and nothing is appended to it: {self.folder / path}"
        return DamagedDatasetError(message, hint=f"`rbdata verify {self.manifest.id}` shows what can be repaired")
