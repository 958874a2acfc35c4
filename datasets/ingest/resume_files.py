"""What a run keeps in its working folder for the next one: whole raw files, and folders that were decoded from them.

The journal has the checksum of every file. Before they are used by another run they are compared with it: what changed, or was
never recorded, is removed, and made again. Fetches in progress (``*.part``) are left to `fetch.to_file`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...storage.checksums import Crc32c
from ...storage.folder import RAW, remove_tree
from ...storage.parts import PARTS
from ...storage.writer import DatasetWriter
from ..fetch import RemoteObject
from .whole_file import hash_file

KIND = "kept"


def remember_kept(writer: DatasetWriter) -> None:
    """Record what is complete by now and not recorded yet."""
    known = writer.remembered(KIND)
    for path in _complete(writer.folder / RAW):
        if path.name not in known:
            writer.remember(KIND, {"files": {name: _sum(path / name) for name in _names(path)}}, path.name)


def remember_fetched(writer: DatasetWriter, path: Path, found: RemoteObject) -> None:
    """Record a file that was just fetched, with the size and checksum of what was received."""
    summed = found.checksums.get("crc32c")  # others are summed again: the provider states another algorithm
    writer.remember(KIND, {"files": {".": [found.size, summed] if summed else _sum(path)}}, path.name)


def drop_changed(writer: DatasetWriter) -> None:
    """Remove what is not as it was recorded."""
    known = writer.remembered(KIND)
    for path in list(_complete(writer.folder / RAW)):
        if not _is_as_recorded(path, known.get(path.name, {}).get("files"), writer):
            remove_tree(path)
    for name in known:
        if not (isinstance(name, str) and (writer.folder / RAW / name).exists()):
            writer.forget(KIND, name)


def _is_as_recorded(path: Path, files: Any, writer: DatasetWriter) -> bool:
    if not isinstance(files, dict) or not set(_names(path)) <= set(files):
        return False
    for name, found in files.items():
        if not (path / name).is_file() and not _is_part(path / name, found, writer):
            return False
        if (path / name).is_file() and _sum(path / name) != found:
            return False
    return True


def _is_part(path: Path, found: list[Any], writer: DatasetWriter) -> bool:
    """Whether a file became that of a part. Where that was not recorded, it gets its place back."""
    for record in writer.parts_done().values():
        for leaf in record["leaves"].values():
            if [[piece["length"], piece["crc32c"]] for piece in leaf.get("pieces", ())] == [found]:
                return True
    for part in (writer.folder / PARTS).glob("*.blob"):
        if part.stat().st_size == found[0] and _sum(part) == found:
            part.replace(path)
            return True
    return False


def _complete(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if ".part" not in path.suffixes)


def _names(path: Path) -> list[str]:
    """The files of a folder, relative to it; of a file "."."""
    files = [one.relative_to(path).as_posix() for one in sorted(path.rglob("*")) if one.is_file()]
    return files if path.is_dir() else ["."]


def _sum(path: Path) -> list[Any]:
    return list(hash_file(path, Crc32c()).range)
