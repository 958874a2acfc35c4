"""Grey PNG frames: against Pillow, and against damage at every byte."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rbdata.datasets.formats.png import PngError, decode_frames
from rlu_writer import chunk, filtered, png

pictures = st.integers(0, 2**32 - 1).map(
    lambda seed: (np.random.default_rng(seed).integers(0, 256, (84, 84)) // (1 + seed % 100)).astype(np.uint8)
)
filter_rows = st.lists(st.integers(0, 4), min_size=1, max_size=84)


def decode(*data: bytes) -> np.ndarray:
    out = np.empty((len(data), 84, 84), np.uint8)
    decode_frames([memoryview(one) for one in data], out)
    return out


@settings(max_examples=examples(25), deadline=None)
@given(pictures, filter_rows, st.integers(1, 4), st.booleans())
def test_all_filters_as_pillow_reads_them(image: np.ndarray, filters: list[int], pieces: int, text: bool) -> None:
    data = png(image, tuple(filters), pieces=pieces, extra=chunk(b"tEXt", b"a\0b") if text else b"")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), image)
    assert np.array_equal(decode(data)[0], image)


def test_pillows_own_and_many_at_once() -> None:
    random = np.random.default_rng(0)
    images = [random.integers(0, 1 + n, (84, 84)).astype(np.uint8) for n in range(150)]
    data = []
    for number, image in enumerate(images):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG", optimize=bool(number % 2), compress_level=number % 10)
        data.append(buffer.getvalue())
    assert np.array_equal(decode(*data), np.stack(images))
    # Each frame leans on a row of zeros above it, not on the last row of the frame before.
    white = np.full((84, 84), 255, np.uint8)
    for kind in range(5):
        assert np.array_equal(decode(*[png(white, (kind,))] * 3), np.stack([white] * 3))
    decode_frames([], np.empty((0, 84, 84), np.uint8))


def saved(mode: str, size: tuple[int, int] = (84, 84), **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, "PNG", **options)
    return buffer.getvalue()


GREY = np.full((84, 84), 7, np.uint8)
GOOD = png(GREY)
WRONG = {
    "RGB": (saved("RGB"), "8-bit RGB,"),
    "RGBA": (saved("RGBA"), "RGBA"),
    "16-bit": (saved("I;16"), "16-bit grey"),
    "1-bit": (saved("1"), "1-bit grey"),
    "palette": (saved("P"), "palette"),
    "grey with alpha": (saved("LA"), "alpha"),
    "too small": (saved("L", (84, 83)), "84x83"),
    "four frames": (saved("L", (84, 336)), "84x336"),
    "interlaced": (png(GREY, header=struct.pack(">IIBBBBB", 84, 84, 8, 0, 0, 0, 1)), "interlaced"),
    "JPEG": (b"\xff\xd8\xff\xe0" + bytes(60), "not a PNG"),
    "nothing": (b"", "not a PNG"),
    "signature alone": (GOOD[:8], "no header"),
    "no end": (GOOD[:-12], "cut short"),
    "cut": (GOOD[: len(GOOD) // 2], "cut short"),
    "flipped pixel": (GOOD[:45] + bytes([GOOD[45] ^ 1]) + GOOD[46:], "checksum"),
    "flipped header": (GOOD[:30] + bytes([GOOD[30] ^ 1]) + GOOD[31:], "header is damaged"),
    "too few rows": (png(GREY[:80], header=struct.pack(">IIBBBBB", 84, 84, 8, 0, 0, 0, 0)), "fewer pixels"),
    "a bomb": (
        png(np.zeros((9000, 84), np.uint8), header=struct.pack(">IIBBBBB", 84, 84, 8, 0, 0, 0, 0)),
        "more pixels",
    ),
    "no pixels": (GOOD[:33] + chunk(b"IEND", b""), "fewer pixels"),
    "not zlib": (GOOD[:33] + chunk(b"IDAT", b"what is this") + chunk(b"IEND", b""), "damaged"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_frame_is_refused(name: str) -> None:
    data, words = WRONG[name]
    with pytest.raises(PngError, match=words) as caught:
        decode(*[GOOD] * 70, data, GOOD)
    assert caught.value.index == 70


def test_an_unknown_filter_is_refused() -> None:
    scanlines = bytearray(filtered(GREY, (0,)))
    scanlines[85 * 3] = 5
    data = GOOD[:33] + chunk(b"IDAT", zlib.compress(bytes(scanlines))) + chunk(b"IEND", b"")
    with pytest.raises(PngError, match="filter 5") as caught:
        decode(GOOD, GOOD, data)
    assert caught.value.index == 2


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_damage_never_passes(at: int, flip: int) -> None:
    damaged = bytearray(GOOD)
    damaged[at] ^= flip
    with pytest.raises(PngError):
        decode(bytes(damaged))
