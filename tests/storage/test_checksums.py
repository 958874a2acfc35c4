"""Running checksums, and those of ranges of files."""

from __future__ import annotations

import random

import google_crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rbdata.storage.checksums import Crc32c, crc32c, sum_ranges


@given(st.lists(st.binary(max_size=100), max_size=8))
def test_running_checksum(pieces):
    checksum = Crc32c()
    for piece in pieces:
        checksum.update(random.choice([bytes, bytearray, memoryview])(piece))
    data = b"".join(pieces)
    assert checksum.range == (len(data), f"{google_crc32c.value(data):08x}") == (len(data), crc32c(data))


def test_known_value():
    assert crc32c(b"123456789") == "e3069283"
    assert crc32c(np.frombuffer(b"123456789", np.uint8)) == "e3069283"


def test_sum_ranges(tmp_path, monkeypatch):
    monkeypatch.setattr("rbdata.storage.checksums.BLOCK", 7)
    data = bytes(range(100))
    path = tmp_path / "x"
    path.write_bytes(data)
    assert list(sum_ranges(path, [0, 30, 70])) == [(0, crc32c(b"")), (30, crc32c(data[:30])), (70, crc32c(data[30:]))]
    assert list(sum_ranges(path, [90, 20, 5])) == [(90, crc32c(data[:90])), (10, crc32c(data[90:])), (0, "00000000")]
