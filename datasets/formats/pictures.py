"""Encoded pictures of any size (PNG, JPEG) as arrays, as TensorFlow Datasets stores them (core/features/image_feature.py).

uint8 pictures have 1 to 4 channels, uint16 ones (depth) are 16-bit PNGs of one, and float32 ones of one channel are PNGs
whose four channels are the bytes of the numbers. JPEG is decoded by Pillow, which is TensorFlow with
``dct_method="INTEGER_ACCURATE"``; by default TensorFlow decodes faster, and two thirds of the values differ by up to 6. PNG is
the same everywhere.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import CorruptSourceError
from .jpeg import check_segments, is_jpeg
from .limits import check_row_bytes

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

#: Bytes of decoded pictures in a block.
_BLOCK_BYTES = 8 << 20
#: Pillow's modes that give the channels of uint8 pictures, and those that are converted without loss.
_MODES = {1: ("L", ("1",)), 2: ("LA", ()), 3: ("RGB", ("L", "P", "RGBA", "1")), 4: ("RGBA", ("RGB", "L", "LA", "P"))}
_DEEP = ("I;16", "I;16B", "I")
#: The dtype of a picture of any kind, by Pillow's mode.
_KINDS = {**dict.fromkeys(("L", "LA", "RGB", "RGBA"), "uint8"), **dict.fromkeys(_DEEP, "int32"), "F": "float32"}


def picture_size(data: bytes | memoryview, where: str) -> tuple[int, int]:
    """Height and width of one picture; reads its header only. Raises CorruptSourceError."""
    image = _open(bytes(data), where)
    check_row_bytes(image.height * image.width, where)
    return image.height, image.width


def decode_pictures(
    pictures: Sequence[bytes | memoryview], shape: tuple[int, ...], dtype: str, where: str
) -> Iterator[np.ndarray]:
    """Blocks of pictures, ``[k, *shape]`` of ``dtype``; ``shape`` is (height, width, channels).

    Raises CorruptSourceError for one that is damaged, or of another size or number of channels, saying which of them.
    """
    size = max(1, _BLOCK_BYTES // int(np.prod(shape) * np.dtype(dtype).itemsize))
    for first in range(0, len(pictures), size):
        some = pictures[first : first + size]
        block = np.empty((len(some), *shape), dtype)
        for number, data in enumerate(some):
            block[number] = _decode(bytes(data), shape, block.dtype, f"{where}: picture {first + number}")
        yield block


def decode_picture(data: bytes, where: str) -> np.ndarray:
    """One picture (PNG, JPEG or TIFF) of whatever kind it is, ``[height, width, channels]``: uint8, int32 or float32.

    Palettes and the like become RGB; 16 and 32 bits become int32. Raises CorruptSourceError.
    """
    image = _open(data, where, ["PNG", "JPEG", "TIFF"])
    check_row_bytes(image.height * image.width * 4, where)
    try:
        picture = image if image.mode in _KINDS else image.convert("RGB")
        return np.asarray(picture).astype(_KINDS[picture.mode]).reshape(picture.height, picture.width, -1)
    except _UNSOUND as error:
        raise CorruptSourceError(f"{where} is damaged: {error}") from error


def encode_png(picture: np.ndarray) -> bytes:
    """A picture, uint8 ``[height, width, channels]`` of 1, 3 or 4 channels, as PNG."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _decode(data: bytes, shape: tuple[int, ...], dtype: np.dtype, where: str) -> np.ndarray:
    image = _open(data, where)
    if (image.height, image.width) != shape[:2]:
        raise CorruptSourceError(f"{where} is {image.width}x{image.height}, not {shape[1]}x{shape[0]}")
    try:
        values = _values(image, shape[2], dtype)
    except _UNSOUND as error:
        raise CorruptSourceError(f"{where} is damaged: {error}") from error
    if values is None:
        raise CorruptSourceError(
            f"{where} is a {image.format} of mode {image.mode}, not {dtype} of {shape[2]} channels"
        )
    return values.reshape(shape)


def _values(image: ImageFile, channels: int, dtype: np.dtype) -> np.ndarray | None:
    """The values, None for a picture of another kind."""
    if dtype == np.uint16:
        return np.asarray(image).astype(np.uint16) if channels == 1 and image.mode in _DEEP else None
    stored = 4 if dtype == np.float32 else channels
    mode, others = _MODES[stored]
    if image.mode == mode:
        values = np.asarray(image)
    elif image.mode in others and dtype == np.uint8:
        values = np.asarray(image.convert(mode))
    else:
        return None
    return np.ascontiguousarray(values).view("<f4") if dtype == np.float32 else values


_UNSOUND = (OSError, SyntaxError, ValueError, TypeError, OverflowError, struct.error, LookupError)


def _open(data: bytes, where: str, formats: Sequence[str] = ("PNG", "JPEG")) -> ImageFile:
    from PIL import Image

    if is_jpeg(data):
        check_segments(data, where)
    try:
        return Image.open(io.BytesIO(data), formats=formats)
    except (Image.DecompressionBombError, *_UNSOUND) as error:
        raise CorruptSourceError(f"{where} is not a valid {' or '.join(formats)}: {error}") from error
