"""TFRecord, tf.train.Example and PNG: against hand-made bytes, against Pillow, and against damage at every place."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rbdata.datasets.formats.png import PngError, decode_frames
from rbdata.datasets.formats.tf_example import WireError, decode_varints, parse_example
from rbdata.datasets.formats.tfrecord import read_records
from rbdata.errors import CorruptSourceError
from rlu_writer import blobs, block, chunk, example, filtered, floats, framed, ints, png, varint

quick = settings(max_examples=60, deadline=None)


# -- TFRecord --------------------------------------------------------------------------------------------------------


def records(data: bytes, cut: int = 1 << 20) -> list[bytes]:
    pieces = [data[at : at + cut] for at in range(0, len(data), cut)]
    return [bytes(record.payload) for record in read_records(pieces, "some/file")]


@quick
@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(1, 70))
def test_records_come_out_whatever_the_pieces(payloads: list[bytes], cut: int) -> None:
    assert records(b"".join(map(framed, payloads)), cut) == payloads


def test_every_flipped_byte_is_found_and_placed() -> None:
    data = framed(b"first") + framed(b"second one")
    begin = len(framed(b"first"))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptSourceError) as caught:
            records(bytes(damaged))
        number = 0 if at < begin else 1
        assert f"some/file: record {number} (at byte {number * begin} " in str(caught.value)


def test_every_cut_is_found() -> None:
    data = framed(b"first") + framed(b"second one")
    whole = {0, len(framed(b"first")), len(data)}
    for at in range(len(data)):
        if at in whole:
            records(data[:at])
        else:
            with pytest.raises(CorruptSourceError, match="cut short"):
                records(data[:at])


def test_a_length_claims_no_memory() -> None:
    import google_crc32c

    head = struct.pack("<Q", 1 << 60)
    value = google_crc32c.value(head)
    mask = (((value >> 15) | (value << 17 & 0xFFFFFFFF)) + 0xA282EAD8) % 2**32
    with pytest.raises(CorruptSourceError, match="claims to be"):
        records(head + struct.pack("<I", mask) + b"x")


# -- Example ---------------------------------------------------------------------------------------------------------

numbers = st.integers(-(1 << 63), (1 << 64) - 1)
unknown = st.sampled_from(
    [
        b"",
        block(9, b"who knows"),
        varint(7 << 3) + varint(12345),
        varint(8 << 3 | 5) + b"four",
        varint(8 << 3 | 1) + b"eight888",
        varint(6 << 3 | 3) + block(2, b"in a group") + varint(5 << 3 | 3) + varint(5 << 3 | 4) + varint(6 << 3 | 4),
    ]
)


def wrapped(values: list[int]) -> list[int]:
    return [(value + (1 << 63)) % (1 << 64) - (1 << 63) for value in values]


@quick
@given(
    st.lists(numbers, max_size=40), st.lists(st.floats(width=32, allow_nan=False), max_size=40), st.booleans(), unknown
)
def test_numbers_packed_and_not(whole: list[int], real: list[float], packed: bool, more: bytes) -> None:
    found = parse_example(example({"a": ints(whole, packed) + more, "b": more + floats(real, packed)}) + more)
    assert np.asarray(found["a"]).tolist() == wrapped(whole)
    assert np.asarray(found["b"]).tolist() == real


@quick
@given(st.dictionaries(st.text(max_size=8), st.lists(st.binary(max_size=40), max_size=5), max_size=5))
def test_byte_strings_keep_every_byte(features: dict[str, list[bytes]]) -> None:
    found = parse_example(example({name: blobs(values) for name, values in features.items()}))
    assert {name: [bytes(value) for value in values] for name, values in found.items()} == features


def test_parts_of_a_list_are_joined_and_the_last_value_of_a_key_counts() -> None:
    mixed = block(3, block(1, varint(1) + varint(300))) + block(3, varint(1 << 3) + varint(7))
    assert np.asarray(parse_example(example({"a": mixed}))["a"]).tolist() == [1, 300, 7]
    entry = [block(1, block(1, b"a") + block(2, ints([value]))) for value in (5, 6)]
    assert np.asarray(parse_example(block(1, b"".join(entry)))["a"]).tolist() == [6]
    assert np.asarray(parse_example(example({"a": ints([1]) + floats([2.0])}))["a"]).tolist() == [2.0]


def test_empty_features() -> None:
    found = parse_example(example({"none": b"", "bytes": blobs([]), "ints": ints([]), "floats": floats([])}))
    assert [len(found[name]) for name in ("none", "bytes", "ints", "floats")] == [0, 0, 0, 0]
    assert parse_example(b"") == {}


def test_negative_and_unsigned() -> None:
    found = np.asarray(parse_example(example({"id": ints([-1, 1 << 63, (1 << 64) - 2, 5])}))["id"])
    assert found.tolist() == [-1, -(1 << 63), -2, 5]
    assert found.view(np.uint64).tolist() == [(1 << 64) - 1, 1 << 63, (1 << 64) - 2, 5]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80",
        b"\x80" * 9 + b"\x02",
        b"\x80" * 10 + b"\x01",
    ],
    ids=["no end", "65 bits", "eleven bytes"],
)
def test_bad_integers(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_varints(memoryview(b"\x01" + data))


@quick
@given(st.binary(max_size=200))
def test_noise_is_refused_or_read_but_never_worse(data: bytes) -> None:
    for payload in (data, block(1, data), block(1, block(1, data)), block(1, block(1, block(2, data)))):
        with contextlib.suppress(WireError):
            parse_example(payload)


# -- PNG -------------------------------------------------------------------------------------------------------------

pictures = st.integers(0, 2**32 - 1).map(
    lambda seed: (np.random.default_rng(seed).integers(0, 256, (84, 84)) // (1 + seed % 100)).astype(np.uint8)
)
filter_rows = st.lists(st.integers(0, 4), min_size=1, max_size=84)


def decode(*data: bytes) -> np.ndarray:
    out = np.empty((len(data), 84, 84), np.uint8)
    decode_frames([memoryview(one) for one in data], out)
    return out


@settings(max_examples=25, deadline=None)
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
    "RGB": (saved("RGB"), "8-bit RGB;"),
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
    "flipped header": (GOOD[:30] + bytes([GOOD[30] ^ 1]) + GOOD[31:], "header of the PNG is damaged"),
    "too few rows": (png(GREY[:80], header=struct.pack(">IIBBBBB", 84, 84, 8, 0, 0, 0, 0)), "fewer pixels"),
    "a bomb": (
        png(np.zeros((9000, 84), np.uint8), header=struct.pack(">IIBBBBB", 84, 84, 8, 0, 0, 0, 0)),
        "more pixels",
    ),
    "no pixels": (GOOD[:33] + chunk(b"IEND", b""), "fewer pixels"),
    "palette chunk": (png(GREY, extra=chunk(b"PLTE", bytes(3))), "PLTE"),
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


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_damage_never_passes(at: int, flip: int) -> None:
    damaged = bytearray(GOOD)
    damaged[at] ^= flip
    with pytest.raises(PngError):
        decode(bytes(damaged))
