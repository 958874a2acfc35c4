"""TFRecord files: records in pieces of any size, and damage at every byte."""

from __future__ import annotations

import struct

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.datasets.formats.tfrecord import read_records
from rbdata.errors import CorruptSourceError
from rlu_writer import framed


def records(data: bytes, cut: int = 1 << 20) -> list[bytes]:
    pieces = [data[at : at + cut] for at in range(0, len(data), cut)]
    return [bytes(record.payload) for record in read_records(pieces, "some/file")]


@settings(max_examples=examples(60), deadline=None)
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
