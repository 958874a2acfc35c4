"""Training dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from codec_tools import KINDS, encode, make_rows, train_dictionary
from rbdata.storage.codecs.dictionary import HELD_OUT, MIN_SAMPLES
from rbdata.storage.codecs.zstd import ParallelDecoder, ZstdCodec


@pytest.mark.parametrize("row_bytes", [1, 2, 7, 8, 9, 64, 7056])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, MIN_SAMPLES - 1, MIN_SAMPLES, 300])
def test_training_never_fails_and_repeats(row_bytes, kind, count):
    rows = make_rows(count, row_bytes, kind)
    dictionary = train_dictionary(rows)
    assert dictionary == train_dictionary(rows.copy())
    blob, starts, lengths = encode(rows, dictionary)
    assert np.array_equal(ParallelDecoder(dictionary, row_bytes, 1).decode(blob, starts, lengths), rows)


def test_dictionary_helps_frames():
    rows = make_rows(2000, 7056, "frames")
    dictionary = train_dictionary(rows[::4])
    assert dictionary
    assert encode(rows, dictionary)[2].sum() < encode(rows)[2].sum() / 2


def test_rows_may_differ_in_size():
    rows = [row[: 500 + number % 7] for number, row in enumerate(make_rows(300, 600, "frames"))]
    dictionary = train_dictionary(iter(rows))
    assert dictionary == train_dictionary(rows)
    lengths = ZstdCodec.encoded_lengths(rows, dictionary)
    assert lengths.dtype == np.int64 and len(lengths) == len(rows)
    assert lengths.sum() < ZstdCodec.encoded_lengths(rows, b"").sum()


def test_the_one_that_makes_unseen_rows_smallest(monkeypatch):
    """Rows kept from training decide; those that were trained on do not."""
    rows = make_rows(10 * HELD_OUT, 400, "frames")
    judged: list[int] = []
    inner = ZstdCodec.encoded_lengths

    def counted(samples, dictionary):
        judged.append(len(samples))
        return inner(samples, dictionary)

    monkeypatch.setattr(ZstdCodec, "encoded_lengths", counted)
    assert train_dictionary(rows)
    assert set(judged) == {10}
