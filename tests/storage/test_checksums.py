"""Running checksums, and those of ranges of files."""

from __future__ import annotations

import random

import google_crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rbdata.storage.checksums import Crc32c, crc32c, damaged_ranges, join_ranges


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


def test_damaged_ranges(tmp_path, monkeypatch):
    monkeypatch.setattr("rbdata.storage.checksums.BLOCK", 7)
    data = bytes(range(100))
    path = tmp_path / "x"
    path.write_bytes(data)
    sums = [crc32c(b""), crc32c(data[:30]), crc32c(data[30:])]
    assert list(damaged_ranges(path, list(zip([0, 30, 70], sums)))) == []
    assert list(damaged_ranges(path, [(0, sums[1]), (30, sums[1]), (70, sums[1])])) == [(0, 0), (30, 70)]
    sums = [crc32c(data[:90]), crc32c(data[90:]), "00000000"]  # a file that ends early
    assert list(damaged_ranges(path, list(zip([90, 20, 5], sums)))) == [(90, 20), (110, 5)]
