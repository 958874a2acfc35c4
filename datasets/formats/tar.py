"""Read the files of a tar archive from a stream, in its order. Nothing is extracted to a disk.

Format: https://www.gnu.org/software/tar/manual/html_node/Standard.html (ustar), with pax headers and GNU's long names. What is
neither a file nor a folder is refused: archives of data have no links, devices or files with holes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...errors import CorruptSourceError
from .byte_reader import ByteReader

_BLOCK = 512
#: Bytes of a pax header or a long name.
_LONGEST_HEADER = 1 << 16
_FILE, _FOLDER = (b"0", b"\0", b"7"), b"5"
_PAX, _PAX_FOR_ALL, _LONG_NAME = b"x", b"g", b"L"
_OTHERS = {
    b"1": "a link",
    b"2": "a link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a file with holes",
}
_RECORD = re.compile(rb"(\d{1,6}) ([^=]{1,100})=")


@dataclass(frozen=True)
class TarMember:
    """A file of an archive: its path, its bytes in all, and the stream that has them next."""

    path: str
    size: int
    _reader: ByteReader
    _end: int

    def __iter__(self) -> Iterator[memoryview]:
        """The bytes that were not read yet."""
        return self._reader.pieces(self._end - self._reader.position)


def tar_members(pieces: Iterable[bytes], name: str) -> Iterator[TarMember]:
    """The files of an archive in order. What is not read of one is skipped when the next one is asked for.

    Raises CorruptSourceError naming ``name`` for a damaged archive, one that is cut short, for paths that lead out of it, and
    for members that are neither files nor folders.
    """
    reader = ByteReader(pieces, name)
    stated: dict[str, str] = {}
    while True:
        header = reader.take(_BLOCK)
        if not header.strip(b"\0"):
            break
        path, size, kind = _parse(header, name)
        if kind in (_PAX, _PAX_FOR_ALL, _LONG_NAME):
            if size > _LONGEST_HEADER:
                raise CorruptSourceError(f"{name} has a header of {size} bytes")
            data = reader.take(size)
            reader.skip(-size % _BLOCK)
            if kind == _PAX:
                stated.update(_pax_records(data, name))
            elif kind == _LONG_NAME:
                stated["path"] = _text(data.rstrip(b"\0"), name)
            continue
        path, size = stated.get("path", path), _size(stated, size, name)
        stated = {}
        _check_path(path, name)
        end = reader.position + size
        if kind in _FILE and not path.endswith("/"):
            yield TarMember(path, size, reader, end)
        elif kind not in (_FOLDER, *_FILE):
            what = _OTHERS.get(kind, f"of kind {kind!r}")
            raise CorruptSourceError(f"{name}: {path} is {what}, which is not read")
        reader.skip(end - reader.position)
        reader.skip(-size % _BLOCK)
    if any(bytes(piece).strip(b"\0") for piece in reader.rest()):
        raise CorruptSourceError(f"{name} has something after its end")


def _parse(header: bytes, name: str) -> tuple[str, int, bytes]:
    """Path, size and kind. Raises CorruptSourceError for a header that does not agree with its checksum."""
    summed = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if summed != _number(header[148:156], name):
        raise CorruptSourceError(f"{name} is no tar archive, or a damaged one: the checksum of a header is another one")
    path, folder = header[:100].partition(b"\0")[0], header[345:500].partition(b"\0")[0]
    if header[257:263] == b"ustar\0" and folder:
        path = folder + b"/" + path
    return _text(path, name), _number(header[124:136], name), header[156:157]


def _number(field: bytes, name: str) -> int:
    """A number in octal digits, or, for large ones, in base 256."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    try:
        return int(digits or b"0", 8)
    except ValueError as error:
        raise CorruptSourceError(f"{name} is a damaged tar archive: {digits!r} is no number") from error


def _size(stated: dict[str, str], size: int, name: str) -> int:
    text = stated.get("size", str(size))
    if not text.isdecimal() or len(text) > 18:
        raise CorruptSourceError(f"{name} is a damaged tar archive: {text[:40]!r} is no size")
    return int(text)


def _pax_records(data: bytes, name: str) -> dict[str, str]:
    """Path and size of a pax header, ``<length of the record> <key>=<value>\\n`` each."""
    found, at = {}, 0
    while at < len(data):
        match = _RECORD.match(data, at)
        length = int(match[1]) if match else 0
        if match is None or not data[at : at + length].endswith(b"\n") or match.end() >= at + length:
            raise CorruptSourceError(f"{name} is a damaged tar archive: a pax header is no list of records")
        if match[2].startswith(b"GNU.sparse."):
            raise CorruptSourceError(f"{name} has a file with holes, which is not read")
        if match[2] in (b"path", b"size"):
            found[match[2].decode()] = _text(data[match.end() : at + length - 1], name)
        at += length
    return found


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptSourceError(f"{name} has a path that is no UTF-8 text: {data[:100]!r}") from error


def _check_path(path: str, name: str) -> None:
    if not path or "\0" in path or path.startswith("/") or ".." in path.split("/"):
        raise CorruptSourceError(f"{name} has a member whose path leads out of it: {path[:200]!r}")
