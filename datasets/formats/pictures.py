"""Encoded pictures of any size (PNG, JPEG) as arrays, as TensorFlow Datasets, lerobot and Minari store them.

TensorFlow Datasets (core/features/image_feature.py): uint8 pictures have 1 to 4 channels, uint16 ones (depth) are 16-bit PNGs
of one, and float32 ones of one channel are PNGs whose four channels are the bytes of the numbers. JPEG is decoded by Pillow,
which gives the values of TensorFlow with ``dct_method="INTEGER_ACCURATE"``; by default TensorFlow decodes faster, and two
thirds of the values differ by a few (up to 10 were seen). PNG is the same everywhere.

Minari since 0.5.3: spaces that look like pictures (uint8, 0..255, two or three dimensions, the first two at least 32) are
stored as JPEG: smaller, and lossy. A flag in the metadata states this, but older files lack it, and it was not always right;
the first bytes of a row tell what it holds (FF D8 FF, ITU-T T.81 annex B).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...errors import CorruptSourceError, RbdataError
from .limits import REFETCH, check_row_bytes

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

#: Bytes of decoded pictures in a block.
_BLOCK_BYTES = 8 << 20
#: Pillow's modes that give the channels of uint8 pictures, and those that are converted without loss.
_MODES = {1: ("L", ("1",)), 2: ("LA", ()), 3: ("RGB", ("L", "P", "RGBA", "1")), 4: ("RGBA", ("RGB", "L", "LA", "P"))}
_DEEP = ("I;16", "I;16B", "I")
#: The dtype of a picture of any kind, by Pillow's mode.
_KINDS = {**dict.fromkeys(("L", "LA", "RGB", "RGBA"), "uint8"), **dict.fromkeys(_DEEP, "int32"), "F": "float32"}

_MAGIC = b"\xff\xd8\xff"
#: Other formats by their first bytes.
_OTHERS = {b"BM": "BMP", b"GIF8": "GIF", b"RIFF": "WebP", b"II*\0": "TIFF", b"MM\0*": "TIFF"}
_ONE_SIZE = "all pictures of a feature have one size: resize the others"
_LEAVE_OUT = "or leave the feature out (--leave-out of rlds, --cameras of lerobot)"
_UNSOUND = (OSError, SyntaxError, ValueError, TypeError, OverflowError, struct.error, LookupError)


def is_jpeg(data: bytes | memoryview) -> bool:
    """Whether bytes begin as a JPEG file does."""
    return data[:3] == _MAGIC


def picture_shape(data: bytes | memoryview, where: str) -> tuple[int, int, int]:
    """Height, width and channels of one picture; reads its header only. Raises CorruptSourceError."""
    image = _open(bytes(data), where)
    shape = image.height, image.width, len(image.getbands())
    check_row_bytes(prod(shape), where)
    return shape


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
    """One picture (PNG, JPEG or TIFF) of any kind, ``[height, width, channels]``: uint8, int32 or float32.

    Palettes and the like become RGB; 16 and 32 bits become int32. Raises CorruptSourceError.
    """
    image = _open(data, where, ["PNG", "JPEG", "TIFF"])
    check_row_bytes(image.height * image.width * 4, where)
    with _damage_reported(where):
        picture = image if image.mode in _KINDS else image.convert("RGB")
        return np.asarray(picture).astype(_KINDS[picture.mode]).reshape(picture.height, picture.width, -1)


def encode_png(picture: np.ndarray) -> bytes:
    """A picture, uint8 ``[height, width, channels]`` of 1, 3 or 4 channels, as PNG."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _decode(data: bytes, shape: tuple[int, ...], dtype: np.dtype, where: str) -> np.ndarray:
    image = _open(data, where)
    if (image.height, image.width) != shape[:2]:
        message = f"{where} is {image.width}x{image.height}, not {shape[1]}x{shape[0]}"
        raise CorruptSourceError(message, hint=f"{_ONE_SIZE}, {_LEAVE_OUT}")
    with _damage_reported(where):
        values = _values(image, shape[2], dtype)
    if values is None:
        message = f"{where} is a {image.format} of mode {image.mode}, not {dtype} of {shape[2]} channels"
        raise CorruptSourceError(message, hint=f"convert it to what the feature states, {_LEAVE_OUT}")
    return values.reshape(shape)


def _values(image: ImageFile, channels: int, dtype: np.dtype) -> np.ndarray | None:
    """The values, None for a picture of another kind."""
    if dtype == np.uint16:
        return np.asarray(image).astype(np.uint16) if channels == 1 and image.mode in _DEEP else None
    mode, others = _MODES[4 if dtype == np.float32 else channels]
    if image.mode != mode and (image.mode not in others or dtype != np.uint8):
        return None
    values = np.asarray(image if image.mode == mode else image.convert(mode))
    return np.ascontiguousarray(values).view("<f4") if dtype == np.float32 else values


@contextmanager
def _damage_reported(where: str, what: str = "is damaged") -> Iterator[None]:
    """Turn Pillow's errors about a picture into a CorruptSourceError."""
    from PIL.Image import DecompressionBombError

    try:
        yield
    except RbdataError:
        raise
    except (*_UNSOUND, DecompressionBombError) as error:
        raise CorruptSourceError(f"{where} {what}: {error}", hint=REFETCH) from error


def _open(data: bytes, where: str, formats: Sequence[str] = ("PNG", "JPEG")) -> ImageFile:
    from PIL import Image

    wanted = " or ".join(formats)
    other = next((name for magic, name in _OTHERS.items() if data.startswith(magic)), "")
    if other and other not in formats:
        raise CorruptSourceError(f"{where} is a {other}, not a {wanted}", hint=f"write it as {wanted}, {_LEAVE_OUT}")
    with _damage_reported(where, f"is not a valid {wanted}"):
        image = Image.open(io.BytesIO(data), formats=formats)
    if image.format == "PNG":
        with _damage_reported(where):
            image.verify()  # the checksums, which decoding leaves out; the picture cannot be read any more
        image = Image.open(io.BytesIO(data), formats=formats)
    return image
