"""The rows of one leaf in a part."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from rbdata.errors import SchemaError
from rbdata.storage.checksums import crc32c, sum_cells
from rbdata.storage.codecs.zstd import ZstdCodec
from rbdata.storage.leaf import DTYPES, Leaf
from rbdata.storage.part_file import RowsFile, encoder_of, lengths_path, read_plain_rows, rows_path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_rows_of_every_dtype(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 2 if dtype == "bool" else 100, (11, *shape)).astype(dtype)
    variants = {
        "as is": array,
        "big-endian": array.astype(array.dtype.newbyteorder(">")),
        "every other": np.repeat(array, 2, axis=0)[::2],
        "backwards": np.ascontiguousarray(array[::-1])[::-1],
        "fortran": np.asfortranarray(array),
    }
    for name, variant in variants.items():
        file = RowsFile(tmp_path / name, Leaf("x", "step", dtype, shape), None)
        for some in (variant[:4], variant[4:4], variant[4:]):
            file.append(some)
        assert file.finish(11) == ""
        found = read_plain_rows(rows_path(tmp_path / name), array.size, np.dtype(dtype).newbyteorder("<"))
        assert np.array_equal(found.reshape(array.shape), array), name
        assert file.position() == (11, array.nbytes, crc32c(found))
        assert not lengths_path(tmp_path / name).exists()


@pytest.mark.parametrize("bad", [np.zeros(3, "float32"), np.zeros(3, "int64"), np.zeros((3, 1))])
def test_rows_that_are_not_the_leafs(tmp_path: Path, bad: np.ndarray) -> None:
    file = RowsFile(tmp_path / "x", Leaf("x", "step", "float64", ()), None)
    with pytest.raises(SchemaError, match=r"key x: got .*, the schema says float64 \(\)"):
        file.append(bad)
    file.close()


def test_compressed_rows_have_lengths(tmp_path: Path) -> None:
    leaf = Leaf("x", "state", "uint8", (40,), "zstd")
    rows = np.random.default_rng(0).integers(0, 9, (7, 40)).astype("uint8")
    file = RowsFile(tmp_path / "x", leaf, ZstdCodec.encoder(b""))
    file.append(rows[:5])
    before = file.position()
    file.append(rows[5:])
    checksum = file.finish(5)
    lengths = np.fromfile(lengths_path(tmp_path / "x"), "<i8")
    assert lengths.tolist() == ZstdCodec.encoded_lengths(rows, b"").tolist()
    assert before[:2] == (5, lengths[:5].sum())
    assert checksum == crc32c(lengths[:5])
    _, length, cells = file.position()
    assert sum_cells(rows_path(tmp_path / "x"), 0, length) == (length, cells)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_compresses_with_threads_of_its_own(tmp_path: Path) -> None:
    """Who has converted, and forks, converts there too: a child that waited for threads of its parent would never end."""
    leaf = Leaf("x", "step", "uint8", (50,), codec="zstd")
    rows = np.random.default_rng(0).integers(0, 5, (400, 50), np.uint8)
    starts = np.arange(400, dtype=np.uint64) * 50
    (tmp_path / "x").mkdir()
    (tmp_path / "x/dictionary").write_bytes(b"")

    def encoded() -> bytes:
        encode = encoder_of(leaf, tmp_path, threads=2)
        assert encode is not None
        return encode(rows.tobytes(), starts, 50)[0]

    expected = encoded()
    child = os.fork()
    if not child:
        signal.alarm(120)
        os._exit(encoded() != expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
