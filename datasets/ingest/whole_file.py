"""A reader of one raw file that is fetched whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import ChecksumError
from ...storage.checksums import hash_file
from ..fetch import Location, RemoteObject, resolve
from .reader import Reader
from .records import ConvertOptions, RawObject

ACCEPT = "if it was replaced on purpose, take it with --accept-changed"


class WholeFileReader(Reader):
    """A reader of one raw file, which is fetched whole, checked and read in place.

    ``item`` is the object, ``path`` the file, known when its head is read, ``sha256`` its checksum. A dataset that is replaced
    must be made from a file of the same checksum, unless the option ``accept_changed`` is given: not every place states
    what its files must hold.
    """

    path: Path
    sha256: str
    _recorded: str | None = None

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
        """The sha256 of the file. Raises ChecksumError for one that is not what the dataset to be replaced was made from.

        For the heads of plug-ins, such as that of ``examples/source_plugin``.
        """
        self.sha256 = hash_file(path, hashlib.sha256(usedforsecurity=False)).hexdigest()
        self.check_recorded()
        return self.sha256

    def set_previous_objects(self, objects: Sequence[Mapping[str, Any]]) -> None:
        same = [entry.get("sha256") for entry in objects if entry.get("name") == self.item.name]
        self._recorded = next((str(sha256) for sha256 in same if sha256), None)

    def check_recorded(self) -> None:
        """Raise ChecksumError where ``sha256`` is not that of the file that the dataset to be replaced was made from."""
        if self._recorded in (None, self.sha256) or self.accept_changed:
            return
        message = (
            f"{self.item.url} is not the file this dataset was made from before: its sha256 is {self.sha256}, "
            f"not {self._recorded}"
        )
        raise ChecksumError(message, hint=ACCEPT)

    def objects(self) -> list[dict[str, Any]]:
        return [{"name": self.item.name, "size": self.path.stat().st_size, "sha256": self.sha256}]

    def raw_objects(self) -> list[RawObject]:
        """The file, with its name at the top of a mirror."""
        return [RawObject(self.item.name, self.item, self.location)]
