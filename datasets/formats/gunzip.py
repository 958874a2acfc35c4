"""Gunzip a stream in bounded pieces.

``isal`` decodes Atari members at 4-6 GB/s on one core, Python's own zlib at below 1. Output is asked for in pieces of
``PIECE`` bytes, so that a small input that unpacks to terabytes (a gzip bomb) never gets further than its consumer.

Format: RFC 1952; a file may hold several members one after the other. The checksum and length at the end of each member
are checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...errors import CorruptSourceError

PIECE = 1 << 18
#: Packed bytes passed to the decoder at once: it copies the rest at the end of each member, and 1 MB may hold 50,000 members.
_GIVEN = 1 << 15
MAGIC = b"\x1f\x8b"


def gunzip(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield the unpacked bytes of a gzip stream, in pieces of at most ``PIECE``.

    Raises CorruptSourceError naming ``name`` when it is not a gzip stream, is damaged, ends early, or is followed by
    something else.
    """
    from isal import igzip_lib

    damaged: Any = igzip_lib.IsalError
    source = (chunk[at : at + _GIVEN] for chunk in chunks for at in range(0, len(chunk), _GIVEN))
    data = _at_least(source, b"", len(MAGIC))
    if not data.startswith(MAGIC):
        held = "it holds an unpacked .npy file" if data.startswith(b"\x93N") else f"it begins with {data[:8]!r}"
        message = f"{name} is not gzip although named so: {held}" if data else f"{name} is empty"
        raise CorruptSourceError(message, hint=_REFETCH)
    while data.startswith(MAGIC):
        member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        while not member.eof:
            try:
                piece = member.decompress(data, PIECE)
            except damaged as error:
                raise CorruptSourceError(f"{name} is a damaged gzip file: {error}", hint=_REFETCH) from error
            data = b""
            if piece:
                yield piece
            if member.needs_input and not member.eof:
                data = next(source, b"")
                if not data:
                    raise CorruptSourceError(f"{name} is cut short: its gzip stream has no end", hint=_REFETCH)
        data = _at_least(source, member.unused_data, len(MAGIC))
    while data:
        if data.strip(b"\0"):
            raise CorruptSourceError(f"{name} has something after the end of its gzip stream", hint=_REFETCH)
        data = next(source, b"")


def _at_least(source: Iterator[bytes], data: bytes, count: int) -> bytes:
    while len(data) < count and (more := next(source, b"")):
        data += more
    return data


_REFETCH = "the copy at the source or mirror is damaged; try another mirror"
