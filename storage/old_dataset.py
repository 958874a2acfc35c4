"""A dataset that is about to be replaced by a larger one, which takes over the parts that both begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from .checksums import damaged_ranges
from .codecs import codec_of
from .leaf import Leaf
from .manifest import FILENAME, Manifest, read_manifest
from .schema import Schema


class OldDataset:
    """The dataset in ``folder``."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest

    @classmethod
    def open(cls, folder: Path, schema: Schema) -> OldDataset | None:
        """The dataset in a folder, if its rows fit this schema; otherwise None."""
        if not (folder / FILENAME).is_file():
            return None
        manifest = read_manifest(folder)
        usable = [leaf.to_json() for leaf in manifest.schema] == [leaf.to_json() for leaf in schema]
        old = cls(folder, manifest)
        return old if usable and schema.states and old._dictionaries_are_sound() else None

    def _dictionaries_are_sound(self) -> bool:
        """Whether the dictionaries are intact; with a damaged one the old rows cannot be decoded."""
        try:
            names = [name for name in self.manifest.files if name.endswith("/dictionary")]
            return not any(list(damaged_ranges(self.folder / name, self.manifest.files[name])) for name in names)
        except OSError:
            return False

    def dictionary(self, leaf: Leaf) -> bytes:
        """The dictionary of a leaf whose codec uses one."""
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
