"""Growing a dataset: parts that an older, smaller one holds are copied from it instead of being fetched again.

The new dataset is written beside the old one and then takes its place, so that readers of the old one are never
disturbed. A part is taken over when the plan gives it the same rows of the same object and its bytes still match the old
manifest (``layout``: which rows of the object go where); the dictionary of compressed leaves is carried over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RbdataError
from .checksums import check_ranges, crc32c
from .column_writer import leaf_path
from .manifest import FILENAME, Manifest, read_manifest
from .schema import Leaf, Schema
from .sinks import part_path, preallocate
from .writer import DatasetWriter, open_sink

_BLOCK_ROWS = 4096


class OldDataset:
    """The dataset that is about to be replaced by a larger one."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._parts = {part.get("layout"): (number, part) for number, part in enumerate(manifest.parts)}

    @classmethod
    def open(cls, folder: Path, schema: Schema) -> OldDataset | None:
        """The dataset in a folder, if there is one whose rows a dataset of this schema can use."""
        if not (folder / FILENAME).is_file():
            return None
        manifest = read_manifest(folder)
        usable = [leaf.to_json() for leaf in manifest.schema] == [leaf.to_json() for leaf in schema]
        return cls(folder, manifest) if usable and schema.states else None

    @property
    def identity(self) -> list[Any]:
        """What of it goes into the new dataset's bytes: its dictionaries."""
        return [[name, ranges] for name, ranges in self.manifest.files.items() if name.endswith("/dictionary")]

    def dictionary(self, leaf: Leaf) -> bytes:
        """The dictionary of a compressed leaf."""
        return (self.folder.joinpath(*leaf.key) / "dictionary").read_bytes()

    def take_over(self, writer: DatasetWriter, index: int, part: dict[str, Any]) -> dict[str, Any] | None:
        """Copy a part's rows into the new dataset; returns the journal record, None when the old one cannot give them."""
        number, old = self._parts.get(part["layout"], (0, None))
        if old is None or not _same_object(part["object"], old["object"]):
            return None
        try:
            leaves = {leaf.name: self._copy(leaf, writer, index, part, number, old) for leaf in writer.bulk}
            return {"leaves": leaves, "crc32c": old["object"]["crc32c"]}
        except (OSError, RbdataError):
            return None  # damaged or gone: it is fetched like any other

    def _copy(
        self, leaf: Leaf, writer: DatasetWriter, index: int, part: dict[str, Any], number: int, old: dict[str, Any]
    ) -> dict[str, Any]:
        first, rows = old["first_state"], old["states"]
        if leaf.codec == "zstd":
            return self._copy_compressed(leaf, writer.folder, index, number, first, rows)
        self._check_raw(leaf)
        sink = open_sink(writer.folder, writer.schema, leaf.name, index, part["first_state"], rows, writer.states, None)
        source = np.memmap(leaf_path(self.folder, leaf), np.uint8, "r")
        for low in range(0, rows, _BLOCK_ROWS):
            count = min(_BLOCK_ROWS, rows - low)
            begin = (first + low) * leaf.row_bytes
            block = source[begin : begin + count * leaf.row_bytes]
            sink.write(low, block, np.arange(count, dtype=np.int64) * leaf.row_bytes)
        return sink.finish()

    def _copy_compressed(
        self, leaf: Leaf, folder: Path, index: int, number: int, first: int, rows: int
    ) -> dict[str, Any]:
        where = self.folder.joinpath(*leaf.key)
        offsets = np.fromfile(where / "offsets", "<i8", rows + 1, offset=8 * first)
        begin, length = int(offsets[0]), int(offsets[-1] - offsets[0])
        with (where / "blob").open("rb") as file:
            file.seek(begin)
            data = file.read(length)
        if [length, crc32c(data)] != self.manifest.files[f"{leaf.name}/blob"][number]:
            raise RbdataError("the old part is damaged")
        path = part_path(folder, leaf, index)
        preallocate(path, 0)
        path.write_bytes(data)
        path.with_suffix(".lengths").write_bytes(np.diff(offsets).astype(np.int64).tobytes())
        return {"pieces": [{"position": 0, "rows": rows, "offset": 0, "length": length, "crc32c": ""}]}

    def _check_raw(self, leaf: Leaf) -> None:
        """Raw ranges follow the pieces in which they were written, so the whole file is summed, once."""
        if getattr(self, "_checked", None) == leaf.name:
            return
        ranges = self.manifest.files[f"{leaf.name}.memmap"]
        if not all(sound for _, sound in check_ranges(leaf_path(self.folder, leaf), ranges)):
            raise RbdataError("the old leaf is damaged")
        self._checked = leaf.name


def _same_object(new: dict[str, Any], old: dict[str, Any]) -> bool:
    """Whether two source objects are the same, as far as their places state it."""
    return all(new[key] is None or new[key] == old[key] for key in ("name", "size", "crc32c"))
