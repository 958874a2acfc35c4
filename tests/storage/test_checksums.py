"""Running checksums, and those of ranges of files."""

from __future__ import annotations

import random

import google_crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rbdata.storage.checksums import Crc32c, crc32c, join_ranges, sum_pieces


@given(st.lists(st.binary(max_size=100), max_size=8))
def test_running_checksum(pieces):
    checksum = Crc32c()
    for piece in pieces:
        checksum.update(random.choice([bytes, bytearray, memoryview])(piece))
    data = b"".join(pieces)
    assert checksum.range == (len(data), f"{google_crc32c.value(data):08x}") == (len(data), crc32c(data))


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=8))
def test_ranges_joined_without_their_bytes(pieces):
    data = b"".join(pieces)
    assert join_ranges([(len(piece), crc32c(piece)) for piece in pieces]) == (len(data), crc32c(data))


def test_known_value():
    assert crc32c(b"123456789") == "e3069283"
    assert crc32c(np.frombuffer(b"123456789", np.uint8)) == "e3069283"


def test_sums_of_pieces(tmp_path, monkeypatch):
    """Read in blocks; of a file that ends early, the bytes that are there."""
    monkeypatch.setattr("rbdata.storage.checksums.BLOCK", 7)
    data = bytes(range(100))
    path = tmp_path / "x"
    path.write_bytes(data)
    pieces = [data[2:2], data[2:32], data[32:100], b""]
    assert sum_pieces(path, 2, [0, 30, 70, 5]) == [(len(piece), crc32c(piece)) for piece in pieces]
