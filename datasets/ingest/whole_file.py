"""A reader of one raw file that is fetched whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...storage.checksums import hash_file
from ..fetch import Location, RemoteObject, resolve
from .reader import Reader
from .records import ConvertOptions, RawObject

ACCEPT = "if it was replaced on purpose, take it with --accept-changed"


class WholeFileReader(Reader):
    """A reader of one raw file, which is fetched whole, checked and read in place.

    ``item`` is the object, ``path`` the file, known when its head is read, ``sha256`` its checksum.
    """

    path: Path
    sha256: str

    def __init__(self, name: str | None, location: Location, item: RemoteObject, options: ConvertOptions) -> None:
        super().__init__(name, location, options)
        self.item = resolve(location, [item])[0]
        self.accept_changed: bool = options.extra.get("accept_changed", False)

    def files(self) -> list[RemoteObject]:
        return [self.item]

    def look(self, files: Mapping[str, Path]) -> tuple[Path, Any]:
        path = files[self.item.url]
        return path, self.read_head(path)

    def seen(self, found: tuple[Path, Any]) -> None:
        self.path, head = found
        self.take_head(head)

    def read_head(self, path: Path) -> Any:
        """`Reader.look` at the file."""
        raise NotImplementedError

    def take_head(self, head: Any) -> None:
        """`Reader.seen` of what `read_head` returned."""
        raise NotImplementedError

    def hash_whole(self, path: Path) -> str:
        """The sha256 of the file, for the heads of plug-ins, such as that of ``examples/source_plugin``."""
        self.sha256 = hash_file(path, hashlib.sha256(usedforsecurity=False)).hexdigest()
        return self.sha256

    def objects(self) -> list[dict[str, Any]]:
        return [{"name": self.item.name, "size": self.path.stat().st_size, "sha256": self.sha256}]

    def raw_objects(self) -> list[RawObject]:
        """The file, with its name at the top of a mirror."""
        return [RawObject(self.item.name, self.item, self.location)]
