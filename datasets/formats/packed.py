"""Gzip streams and zip archives from third parties, unpacked in bounded pieces and compared with their sizes and checksums.

``isal`` unpacks: Atari's gzip at 4-6 GB/s on one core, OGBench's frames four times faster than `zipfile` does
(``benchmarks/own_readers.py``), which therefore reads the directory of a zip archive alone. Output is asked for in pieces of at
most `_PIECE` bytes, so that a small input that unpacks to terabytes never gets further than its consumer. Several members of an
archive may be read at once.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from gzip import BadGzipFile
from itertools import chain
from pathlib import Path
from typing import Any, Self

from ...errors import CorruptSourceError, RbdataError, reason
from .limits import REFETCH, most_unpacked

_PIECE = 1 << 18
_MAGIC = b"\x1f\x8b"
_DAMAGED = f"the file is damaged: {REFETCH}"


class StreamFile(io.RawIOBase):
    """The pieces of a stream as a file, to be read once, for libraries that want one."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not len(self._rest):
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def gunzip(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield the unpacked bytes of a gzip stream, of one member or several, in pieces of at most ``_PIECE``.

    Raises CorruptSourceError naming ``name`` when it is not a gzip stream, is empty, damaged, ends early, or is followed by
    something else.
    """
    from isal import igzip, igzip_lib

    damaged: Any = igzip_lib.IsalError
    pieces, head = iter(chunks), b""
    while len(head) < len(_MAGIC) and (piece := next(pieces, b"")):
        head += piece
    if not head.startswith(_MAGIC):
        held = "it holds an unpacked .npy file" if head.startswith(b"\x93N") else f"it begins with {head[:8]!r}"
        raise CorruptSourceError(
            f"{name} is {f'not gzip although named so: {held}' if head else 'empty'}", hint=_DAMAGED
        )
    try:
        with igzip.IGzipFile(fileobj=StreamFile(chain([head], pieces))) as file:
            while piece := file.read(_PIECE):
                yield piece
    except (BadGzipFile, damaged) as error:
        raise CorruptSourceError(f"{name} is a damaged gzip file: {error}", hint=_DAMAGED) from error
    except EOFError as error:
        message = f"{name} is cut short, or has something after the end of its gzip stream"
        raise CorruptSourceError(message, hint=_DAMAGED) from error


# -- zip ---------------------------------------------------------------------------------------------------------------

#: A local header: after 26 other bytes the lengths of name and extra field.
_LOCAL = struct.Struct("<26x2H")
_ENCRYPTED = 1
#: What `zipfile` raises for files that are no zip archives.
_UNREADABLE = (zipfile.BadZipFile, EOFError, ValueError, OverflowError, NotImplementedError, struct.error)


class ZipArchive:
    """The members of an archive by name; ``source`` is its file, or its bytes. ``name`` is what errors call it.

    Folders are left out. Raises CorruptSourceError for an incomplete zip file, for names that lead out of the archive and for
    duplicate names.
    """

    def __init__(self, source: Path | bytes, name: str) -> None:
        self.name = name
        self._file: Any = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
        self.members: dict[str, zipfile.ZipInfo] = {}
        try:
            self.size = self._file.seek(0, os.SEEK_END)
            with zipfile.ZipFile(self._file) as archive:
                for entry in archive.infolist():
                    self._add(entry)
        except BaseException as error:
            self._file.close()
            if isinstance(error, RbdataError) or not isinstance(error, _UNREADABLE):
                raise
            raise CorruptSourceError(f"{name} is not a complete zip file: {reason(error)}", hint=_DAMAGED) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, member: str) -> bytes:
        """All bytes of a member. Raises CorruptSourceError for one that unpacks to more than its packed bytes justify."""
        entry = self.members[member]
        if entry.file_size > most_unpacked(entry.compress_size):
            message = f"{self.name}: {member} unpacks to {entry.file_size} bytes from {entry.compress_size}"
            raise CorruptSourceError(message, hint=_DAMAGED)
        return b"".join(self.stream(member))

    def stream(self, member: str) -> Iterator[bytes]:
        """The bytes of a member in pieces. Raises CorruptSourceError where they are not what the archive states."""
        from isal.isal_zlib import crc32

        entry, size, checksum = self.members[member], 0, 0
        for piece in self._packed(entry) if self.place_if_stored(member) else self._inflated(entry):
            size, checksum = size + len(piece), crc32(piece, checksum)
            if size > entry.file_size:
                break
            yield piece
        if (size, checksum) != (entry.file_size, entry.CRC):
            what = "size" if size != entry.file_size else "checksum"
            raise CorruptSourceError(f"{self.name}: {member} is damaged: its {what} is another one", hint=_DAMAGED)

    def place_if_stored(self, member: str) -> tuple[int, int] | None:
        """Where the bytes of a member begin and end in the file; None where they are packed. Raises CorruptSourceError."""
        entry = self.members[member]
        begin = self._begin(entry)
        return None if entry.compress_type else (begin, begin + entry.compress_size)

    def _add(self, entry: zipfile.ZipInfo) -> None:
        name = entry.filename
        if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or name[1:2] == ":":
            raise CorruptSourceError(f"{self.name} has a member whose name leads out of it: {name[:200]!r}")
        if entry.is_dir():
            return
        if name in self.members:
            raise CorruptSourceError(f"{self.name} has two members called {name[:200]!r}")
        self.members[name] = entry

    def _packed(self, entry: zipfile.ZipInfo) -> Iterator[bytes]:
        """The bytes of a member as they are in the file. Several members may be read in turns."""
        at, left = self._begin(entry), entry.compress_size
        while data := self._bytes(at, min(left, _PIECE)):
            at, left = at + len(data), left - len(data)
            yield data

    def _inflated(self, entry: zipfile.ZipInfo) -> Iterator[bytes]:
        from isal import isal_zlib

        damaged: Any = isal_zlib.error
        inflater = isal_zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for data in self._packed(entry):
                piece = inflater.decompress(data, _PIECE)
                while piece:
                    yield piece
                    piece = inflater.decompress(inflater.unconsumed_tail, _PIECE)
        except damaged as error:
            raise CorruptSourceError(f"{self.name}: {entry.filename} is damaged: {error}", hint=_DAMAGED) from error

    def _begin(self, entry: zipfile.ZipInfo) -> int:
        """Where the bytes of a member begin in the file. Raises CorruptSourceError."""
        where = f"{self.name}: {entry.filename}"
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            how = "encrypted" if entry.flag_bits & _ENCRYPTED else f"packed by method {entry.compress_type}"
            raise CorruptSourceError(f"{where} is {how}; stored and deflated members are read")
        # zipfile trusts the position that a damaged end of the directory states: offsets may be negative.
        head = self._bytes(entry.header_offset, _LOCAL.size) if 0 <= entry.header_offset < self.size else b""
        if len(head) < _LOCAL.size or not head.startswith(b"PK\x03\x04"):
            raise CorruptSourceError(f"{where} is not where the archive says", hint=_DAMAGED)
        return entry.header_offset + _LOCAL.size + sum(_LOCAL.unpack(head))

    def _bytes(self, at: int, count: int) -> bytes:
        self._file.seek(at)
        data: bytes = self._file.read(count)
        return data


def member_names(path: Path) -> set[str]:
    """Names of the members of a zip file; empty for other files."""
    try:
        with ZipArchive(path, path.name) as archive:
            return set(archive.members)
    except (CorruptSourceError, OSError):
        return set()
