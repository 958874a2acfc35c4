"""Gzip streams and zip archives from third parties, unpacked in bounded pieces and compared with their sizes and checksums.

``isal`` decodes Atari members at 4-6 GB/s on one core, Python's own zlib at below 1. Output is asked for in pieces of at most
`_PIECE` bytes, so that a small input that unpacks to terabytes never gets further than its consumer.

Gzip (RFC 1952): a file may hold several members one after the other. Zip
(https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT): the central directory is read by `zipfile`; nothing is extracted
to a disk, and several members may be read at once.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from ...errors import CorruptSourceError, RbdataError, reason
from ...storage.durable import open_plain
from .limits import REFETCH, most_unpacked

_PIECE = 1 << 18
#: Packed bytes passed to the decoder at once. At the end of each member of gzip it copies the rest, and 1 MB may hold 50,000
#: members.
_GIVEN_ZIP, _GIVEN_GZIP = 1 << 16, 1 << 15
_MAGIC = b"\x1f\x8b"
_REFETCH = "the copy at the source or mirror is damaged; try another mirror"
_DAMAGED = f"the file is damaged: {REFETCH}"


def gunzip(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield the unpacked bytes of a gzip stream, in pieces of at most ``_PIECE``.

    Raises CorruptSourceError naming ``name`` when it is not a gzip stream, is damaged, ends early, or is followed by
    something else.
    """
    from isal import igzip_lib

    damaged: Any = igzip_lib.IsalError
    source = (chunk[at : at + _GIVEN_GZIP] for chunk in chunks for at in range(0, len(chunk), _GIVEN_GZIP))
    data = _at_least(source, b"", len(_MAGIC))
    if not data.startswith(_MAGIC):
        held = "it holds an unpacked .npy file" if data.startswith(b"\x93N") else f"it begins with {data[:8]!r}"
        message = f"{name} is not gzip although named so: {held}" if data else f"{name} is empty"
        raise CorruptSourceError(message, hint=_REFETCH)
    while data.startswith(_MAGIC):
        member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        while not member.eof:
            try:
                piece = member.decompress(data, _PIECE)
            except damaged as error:
                raise CorruptSourceError(f"{name} is a damaged gzip file: {error}", hint=_REFETCH) from error
            data = b""
            if piece:
                yield piece
            if member.needs_input and not member.eof:
                data = next(source, b"")
                if not data:
                    raise CorruptSourceError(f"{name} is cut short: its gzip stream has no end", hint=_REFETCH)
        data = _at_least(source, member.unused_data, len(_MAGIC))
    while data:
        if data.strip(b"\0"):
            raise CorruptSourceError(f"{name} has something after the end of its gzip stream", hint=_REFETCH)
        data = next(source, b"")


def _at_least(source: Iterator[bytes], data: bytes, count: int) -> bytes:
    while len(data) < count and (more := next(source, b"")):
        data += more
    return data


# -- zip ---------------------------------------------------------------------------------------------------------------

#: A local header: signature, and after 22 other bytes the lengths of name and extra field.
_LOCAL = struct.Struct("<4s22x2H")
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
        self._file: Any = open_plain(source, "rb", follow=True) if isinstance(source, Path) else io.BytesIO(source)
        self.members: dict[str, zipfile.ZipInfo] = {}
        try:
            self.size = self._file.seek(0, os.SEEK_END)
            with zipfile.ZipFile(self._file) as archive:
                self.comment = archive.comment
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
        pieces = self._stored(entry) if entry.compress_type == zipfile.ZIP_STORED else self._inflated(entry)
        for piece in pieces:
            size, checksum = size + len(piece), crc32(piece, checksum)
            if size > entry.file_size:
                break
            yield piece
        if (size, checksum) != (entry.file_size, entry.CRC):
            what = "size" if size != entry.file_size else "checksum"
            raise CorruptSourceError(f"{self.name}: {member} is damaged: its {what} is another one", hint=_DAMAGED)

    def is_stored(self, member: str) -> bool:
        """Whether the bytes of a member are in the file as they are."""
        return self.members[member].compress_type == zipfile.ZIP_STORED

    def place(self, member: str) -> tuple[int, int]:
        """Where the bytes of a member begin and end in the file, packed or not. Raises CorruptSourceError."""
        entry = self.members[member]
        begin = self._begin(entry)
        return begin, begin + entry.compress_size

    def _add(self, entry: zipfile.ZipInfo) -> None:
        name = entry.filename
        if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or name[1:2] == ":":
            raise CorruptSourceError(f"{self.name} has a member whose name leads out of it: {name[:200]!r}")
        if entry.is_dir():
            return
        if name in self.members:
            raise CorruptSourceError(f"{self.name} has two members called {name[:200]!r}")
        self.members[name] = entry

    def _stored(self, entry: zipfile.ZipInfo) -> Iterator[bytes]:
        at, left = self._begin(entry), entry.compress_size
        while data := self._bytes(at, min(left, _PIECE)):
            at, left = at + len(data), left - len(data)
            yield data

    def _inflated(self, entry: zipfile.ZipInfo) -> Iterator[bytes]:
        from isal import igzip_lib

        damaged: Any = igzip_lib.IsalError
        at, left = self._begin(entry), entry.compress_size
        inflater, data = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE), b""
        while not inflater.eof:
            if inflater.needs_input:
                data = self._bytes(at, min(left, _GIVEN_ZIP))
                at, left = at + len(data), left - len(data)
            try:
                piece = inflater.decompress(data, _PIECE)
            except damaged as error:
                message = f"{self.name}: {entry.filename} is damaged: {error}"
                raise CorruptSourceError(message, hint=_DAMAGED) from error
            if not piece and not data and not inflater.eof:
                return  # it has no end: its size is too small
            data = b""
            if piece:
                yield piece

    def _begin(self, entry: zipfile.ZipInfo) -> int:
        """Where the packed bytes of a member begin."""
        where = f"{self.name}: {entry.filename}"
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            how = "encrypted" if entry.flag_bits & _ENCRYPTED else f"packed by method {entry.compress_type}"
            raise CorruptSourceError(f"{where} is {how}; stored and deflated members are read")
        # zipfile trusts the position that a damaged end of the directory states: offsets may be negative.
        head = self._bytes(entry.header_offset, _LOCAL.size) if 0 <= entry.header_offset < self.size else b""
        signature, name, extra = _LOCAL.unpack(head) if len(head) == _LOCAL.size else (b"", 0, 0)
        if signature != b"PK\x03\x04":
            raise CorruptSourceError(f"{where} is not where the archive says", hint=_DAMAGED)
        return entry.header_offset + _LOCAL.size + name + extra

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
