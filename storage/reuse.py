"""Growing a dataset: parts of the older, smaller one are copied instead of fetched again.

The new dataset is written beside the old one and then replaces it, so readers of the old one are not disturbed. A part is
copied when the plan gives it the same rows of the same object (``layout``: which rows of the object go where) and its bytes
still match the old manifest; the dictionary of compressed leaves is copied too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import RbdataError
from .block_checksums import BlockChecksums
from .checksums import check_ranges, sum_range
from .codecs import codec_of
from .codecs.codec import OldPart
from .leaf import Leaf
from .manifest import FILENAME, Manifest, read_manifest
from .schema import Schema
from .writer import DatasetWriter


class OldDataset:
    """The dataset that is about to be replaced by a larger one."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._parts = {part.get("layout"): (number, part) for number, part in enumerate(manifest.parts)}
        self._ranges = BlockChecksums(manifest, None)

    @classmethod
    def open(cls, folder: Path, schema: Schema) -> OldDataset | None:
        """The dataset in a folder, if its rows fit a dataset of this schema."""
        if not (folder / FILENAME).is_file():
            return None
        manifest = read_manifest(folder)
        usable = [leaf.to_json() for leaf in manifest.schema] == [leaf.to_json() for leaf in schema]
        old = cls(folder, manifest)
        return old if usable and schema.states and old._dictionaries_are_sound() else None

    def _dictionaries_are_sound(self) -> bool:
        """With a damaged dictionary the old rows cannot be decoded."""
        try:
            names = [name for name in self.manifest.files if name.endswith("/dictionary")]
            return all(
                sound for name in names for _, sound in check_ranges(self.folder / name, self.manifest.files[name])
            )
        except OSError:
            return False

    def dictionary(self, leaf: Leaf) -> bytes:
        """The dictionary of a leaf whose codec uses one."""
        return codec_of(leaf).read_dictionary(self.folder)

    def bytes_of_state(self) -> float:
        """Bytes on disk of one state, on average."""
        paths = [path for leaf in self.manifest.schema.states for path in codec_of(leaf).files]
        total = sum(length for path in paths for length, _ in self.manifest.files[path])
        return total / max(1, self.manifest.states)

    def holds(self, part: dict[str, Any]) -> bool:
        """Whether it was made from the same rows of the same object."""
        old = self._parts.get(part["layout"], (0, None))[1]
        return old is not None and _same_object(part["object"], old["object"])

    def take_over(self, writer: DatasetWriter, index: int, part: dict[str, Any]) -> dict[str, Any] | None:
        """Copy a part's rows into the new dataset; returns the journal record, None where they are missing or damaged."""
        number, old = self._parts.get(part["layout"], (0, None))
        if old is None or not _same_object(part["object"], old["object"]):
            return None
        here = (number, old["first_state"], old["states"])
        try:
            leaves = {leaf.name: self._copy(leaf, writer, index, part["first_state"], here) for leaf in writer.bulk}
            return {"leaves": leaves, "crc32c": old["object"]["crc32c"]}
        except (OSError, RbdataError):
            return None  # damaged or gone: it is fetched

    def _copy(self, leaf: Leaf, writer: DatasetWriter, index: int, first: int, here: OldPart) -> dict[str, Any]:
        codec, files = codec_of(leaf), self.manifest.files
        if codec.fixed_rows:
            # The ranges of a part are the pieces in which it was written: none is shared with another part.
            begin, end = (row * leaf.row_bytes for row in (here[1], here[1] + here[2]))
            for piece in self._ranges.covering(leaf.memmap, begin, end):
                if sum_range(self.folder / leaf.memmap, piece.begin, piece.length)[1] != piece.crc32c:
                    raise RbdataError("the old part is damaged")
        return codec.copy_part(self.folder, files, here, writer.folder, index, first)


def _same_object(new: dict[str, Any], old: dict[str, Any]) -> bool:
    """Whether two source objects have the same name, size and checksum, where these are stated."""
    return all(new[key] is None or new[key] == old[key] for key in ("name", "size", "crc32c"))
