"""The zstd codec: rows come back, whatever they hold, however they are batched; damage raises, and never crashes."""

from __future__ import annotations

import numpy as np
import pytest
from codec_tools import KINDS, encode, make_rows, train_dictionary
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import DamagedDatasetError
from rbdata.storage.codecs.zstd import HELD_OUT, MIN_SAMPLES, RowDecoder, RowEncoder, ZstdCodec


@settings(max_examples=examples(120), deadline=None)
@given(
    count=st.integers(1, 200),
    row_bytes=st.one_of(st.integers(1, 40), st.integers(1, 9000)),
    kind=st.sampled_from(KINDS),
    with_dictionary=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 5),
)
def test_round_trip(count, row_bytes, kind, with_dictionary, threads, seed):
    rows = make_rows(count, row_bytes, kind, seed)
    dictionary = train_dictionary(make_rows(MIN_SAMPLES, row_bytes, kind, seed + 1)) if with_dictionary else b""
    blob, starts, lengths = encode(rows, dictionary)
    order = np.random.default_rng(seed).permutation(count)
    decoded = RowDecoder(dictionary, row_bytes, threads).decode(blob, starts[order], lengths[order])
    assert decoded.dtype == np.uint8 and decoded.flags.writeable
    assert np.array_equal(decoded, rows[order])


@settings(max_examples=examples(30), deadline=None)
@given(rows=st.lists(st.binary(min_size=5, max_size=5), min_size=1, max_size=80))
def test_round_trip_of_any_content(rows):
    array = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 5)
    blob, starts, lengths = encode(array)
    assert np.array_equal(RowDecoder(b"", 5, 2).decode(blob, starts, lengths), array)


def test_same_bytes_for_any_number_of_threads():
    rows = make_rows(700, 900, "frames")
    dictionary = train_dictionary(rows)
    for given_dictionary in (b"", dictionary):
        blobs = {encode(rows, given_dictionary, threads)[0].tobytes() for threads in (1, 2, 3, 8)}
        assert len(blobs) == 1


def test_same_bytes_whatever_the_batches():
    """A row's bytes do not depend on the rows it is compressed with."""
    rows = make_rows(300, 500, "frames")
    dictionary = train_dictionary(rows)
    whole = encode(rows, dictionary)[0].tobytes()
    encoder = RowEncoder(dictionary)
    pieces = [
        encoder.encode(rows.reshape(-1), np.arange(low, min(low + 37, 300)) * 500, 500)[0] for low in range(0, 300, 37)
    ]
    assert b"".join(pieces) == whole


def test_rows_may_repeat_overlap_and_come_in_any_order():
    data = np.arange(256, dtype=np.uint8)
    starts = np.array([200, 0, 0, 3, 100, 246])
    blob, lengths = RowEncoder(b"").encode(data, starts, 10)
    begin = np.cumsum(lengths) - lengths
    decoded = RowDecoder(b"", 10, 1).decode(np.frombuffer(blob, np.uint8), begin, lengths)
    assert np.array_equal(decoded, np.stack([data[start : start + 10] for start in starts]))


def test_row_beyond_the_buffer():
    with pytest.raises(ValueError):
        RowEncoder(b"").encode(np.zeros(100, np.uint8), np.array([95]), 10)


@pytest.mark.parametrize("with_dictionary", [False, True])
@pytest.mark.parametrize("kind", ["noise", "frames", "zeros"])
def test_damage_never_crashes_nor_changes_the_shape(kind, with_dictionary):
    """Every byte of some rows changed, in three ways: an error of ours, or rows of the right size."""
    rows = make_rows(70, 61, kind)
    dictionary = train_dictionary(rows) if with_dictionary else b""
    blob, starts, lengths = encode(rows, dictionary)
    decoder = RowDecoder(dictionary, 61)
    errors = 0
    for at in range(int(starts[8])):
        for change in (1, 0x80, 0xFF):
            damaged = blob.copy()
            damaged[at] ^= change
            try:
                out = decoder.decode(damaged, starts[:10], lengths[:10])
            except DamagedDatasetError as error:
                assert error.hint
                errors += 1
                continue
            assert out.shape == (10, 61)
            row = int(np.searchsorted(starts, at, "right")) - 1
            intact = [number for number in range(10) if number != row]
            assert np.array_equal(out[intact], rows[intact])  # only the damaged row is affected
    assert errors
    assert np.array_equal(decoder.decode(blob, starts, lengths), rows)  # and the decoder still works


def test_wrong_boundaries_and_truncation():
    rows = make_rows(70, 100, "frames")
    blob, starts, lengths = encode(rows)
    decoder = RowDecoder(b"", 100, 2)
    for change in ((starts + 1, lengths), (starts, lengths - 1), (starts, lengths * 0)):
        with pytest.raises(DamagedDatasetError):
            decoder.decode(blob, *change)
    with pytest.raises(DamagedDatasetError):
        decoder.decode(blob[:-1], starts, lengths)
    for row_bytes in (99, 101, 1):
        with pytest.raises(DamagedDatasetError):
            RowDecoder(b"", row_bytes, 1).decode(blob, starts, lengths)
    assert np.array_equal(decoder.decode(blob, starts, lengths), rows)


def test_wrong_dictionary():
    rows = make_rows(300, 1000, "frames")
    blob, starts, lengths = encode(rows, train_dictionary(rows))
    other = train_dictionary(make_rows(300, 1000, "frames", seed=9))
    for dictionary in (b"", other, b"no dictionary at all" * 9):
        try:
            decoded = RowDecoder(dictionary, 1000, 1).decode(blob, starts, lengths)
        except DamagedDatasetError:
            continue
        assert decoded.shape == rows.shape


def test_no_rows():
    decoded = RowDecoder(b"", 10, 2).decode(np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64))
    assert decoded.shape == (0, 10)


def test_two_thread_split_with_very_uneven_rows():
    rows = make_rows(400, 2000, "zeros")
    rows[-1] = make_rows(1, 2000, "noise")
    rows[0] = make_rows(1, 2000, "noise", 1)
    blob, starts, lengths = encode(rows)
    for threads in (2, 3, 7):
        assert np.array_equal(RowDecoder(b"", 2000, threads).decode(blob, starts, lengths), rows)


# -- training dictionaries ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_bytes", [1, 8, 7056])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [MIN_SAMPLES - 1, MIN_SAMPLES])
def test_training_never_fails_and_repeats(row_bytes, kind, count):
    rows = make_rows(count, row_bytes, kind)
    dictionary = train_dictionary(rows)
    assert dictionary == train_dictionary(rows.copy())
    blob, starts, lengths = encode(rows, dictionary)
    assert np.array_equal(RowDecoder(dictionary, row_bytes, 1).decode(blob, starts, lengths), rows)


def test_dictionary_helps_frames():
    rows = make_rows(600, 7056, "frames")
    dictionary = train_dictionary(rows[::2])
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
