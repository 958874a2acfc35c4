"""Unpack an xz stream in bounded pieces.

Output is asked for in pieces of ``PIECE`` bytes, so that a small input that unpacks to terabytes never gets further than its
consumer, and decoding may take ``_MEMORY`` at most: the strongest preset, -9, takes 65 MiB.

Format: https://tukaani.org/xz/xz-file-format.txt; a file may hold several streams one after the other, and zeros between
them. The checksums of blocks and streams are checked by liblzma.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...errors import CorruptSourceError, reason

MAGIC = b"\xfd7zXZ\0"
PIECE = 1 << 18
_MEMORY = 128 << 20


def unxz(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield the unpacked bytes of an xz file, in pieces of at most ``PIECE``.

    Raises CorruptSourceError naming ``name`` when it is no xz file, is damaged, ends early, is followed by something else, or
    needs more memory than xz itself ever asks for.
    """
    import lzma

    source = filter(None, map(bytes, chunks))
    data = next(source, b"")
    while data:
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
        while not decoder.eof:
            if decoder.needs_input and not data:
                data = next(source, b"")
                if not data:
                    raise CorruptSourceError(f"{name} is cut short: its xz stream has no end", hint=_REFETCH)
            try:
                piece = decoder.decompress(data, PIECE)
            except (lzma.LZMAError, MemoryError) as error:
                raise CorruptSourceError(f"{name} is a damaged xz file: {reason(error)}", hint=_REFETCH) from error
            data = b""
            if piece:
                yield piece
        data = _after_padding(decoder.unused_data, source)


def _after_padding(data: bytes, source: Iterator[bytes]) -> bytes:
    """What comes after the zeros between streams; empty at the end."""
    while not data.lstrip(b"\0"):
        data = next(source, b"")
        if not data:
            return b""
    return data.lstrip(b"\0")


_REFETCH = "the copy at the source or mirror is damaged; try another mirror"
