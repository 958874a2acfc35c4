"""Frames that Minari stores as JPEG.

Since 0.5.3 it does so with spaces that look like pictures (uint8, 0..255, two or three dimensions, the first two at least 32):
smaller, and lossy. A flag in the metadata says whether, but older files have none, and it was not always true; what a row
holds is seen by its first bytes (FF D8 FF, ITU-T T.81 annex B).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import CorruptSourceError, MissingExtraError
from .limits import check_row_bytes

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

MAGIC = b"\xff\xd8\xff"
_SCAN = b"\xff\xda"
#: Each scan goes over the whole picture, however little it holds; progressive pictures have 10, a few bytes make one more.
_MOST_SCANS = 100
#: Segments before the first scan; a colour profile may have 255.
_MOST_SEGMENTS = 1000


def is_jpeg(data: bytes) -> bool:
    """Whether bytes begin as a JPEG file does."""
    return data[:3] == MAGIC


def frame_shape(data: bytes, where: str) -> tuple[int, ...]:
    """Height, width and, for colour, channels of one frame; reads its header only."""
    image = _open(data, where)
    check_row_bytes(image.height * image.width * len(image.getbands()), where)
    bands = len(image.getbands())
    return (image.height, image.width) if bands == 1 else (image.height, image.width, bands)


def decode(frames: Sequence[bytes], shape: tuple[int, ...], where: str) -> np.ndarray:
    """Frames as uint8 ``[n, *shape]``. Raises CorruptSourceError for one that is damaged or of another size."""
    rows = np.empty((len(frames), *shape), np.uint8)
    for number, data in enumerate(frames):
        try:
            image = _open(data, where)
            if image.height * image.width * len(image.getbands()) != rows[number].size:
                found = (image.height, image.width, len(image.getbands()))
                raise CorruptSourceError(f"{where}: frame {number} has shape {found}, the first one {shape}")
            frame = np.asarray(image)
        except CorruptSourceError:
            raise
        except (OSError, SyntaxError, ValueError, TypeError, OverflowError, struct.error, LookupError) as error:
            raise CorruptSourceError(f"{where}: frame {number} is not a valid JPEG: {error}") from error
        rows[number] = frame.reshape(shape)
    return rows


def _open(data: bytes, where: str) -> ImageFile:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        message = f"{where} holds JPEG frames, and Pillow is not installed"
        raise MissingExtraError(message, hint="pip install pillow") from error
    check_segments(data, where)
    try:
        return Image.open(io.BytesIO(data), formats=["JPEG"])
    except (
        *(UnidentifiedImageError, Image.DecompressionBombError),
        *(OSError, SyntaxError, ValueError, TypeError, OverflowError, struct.error, LookupError),
    ) as error:
        raise CorruptSourceError(f"{where}: a frame is not a valid JPEG: {error}") from error


def check_segments(data: bytes, where: str) -> None:
    """Raise CorruptSourceError for more scans or segments than pictures have; Pillow sees to everything else."""
    if data.count(_SCAN) > _MOST_SCANS:
        raise CorruptSourceError(f"{where}: a frame is a JPEG of more than {_MOST_SCANS} scans")
    at, found = len(MAGIC) - 1, 0
    while data[at : at + 1] == b"\xff" and data[at : at + 2] != _SCAN:
        marker, found = data[at + 1 : at + 2], found + 1
        if found > _MOST_SEGMENTS:
            raise CorruptSourceError(f"{where}: a frame is a JPEG of more than {_MOST_SEGMENTS} segments")
        at += 1 if marker == b"\xff" else 2  # a byte that fills up
        if marker not in _ALONE:
            at += int.from_bytes(data[at : at + 2], "big")


#: Markers that nothing belongs to: fill bytes, TEM, RST0..RST7, SOI, EOI.
_ALONE = {b"", b"\xff", b"\x00", b"\x01", *(bytes([marker]) for marker in range(0xD0, 0xDA))}
