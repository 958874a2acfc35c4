"""Arrow IPC files: every batch in order, and no memory without end for one that is packed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from rbdata.datasets.formats.arrow import ArrowFile
from rbdata.errors import CorruptSourceError
from worker_tasks import in_worker


def write(path, batches, *, compression=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, batches[0].schema, options=options) as file:
        for batch in batches:
            file.write(batch)
    return path


def batch(first, count):
    values = pa.array(range(first, first + count))
    return pa.record_batch({"plain": values, "deep": pa.StructArray.from_arrays([values], ["inner"])})


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_rows_of_several_batches(tmp_path, compression):
    file = ArrowFile(write(tmp_path / "x", [batch(0, 5), batch(5, 1), batch(6, 9)], compression=compression), "x")
    assert file.rows == 15
    for path in (("plain",), ("deep", "inner")):
        for low, high in ((0, 15), (3, 7), (5, 6), (14, 15), (2, 2)):
            found = [value for array in file.read(path, low, high, 2) for value in array.to_pylist()]
            assert found == list(range(low, high))


def rows_of(path):
    file = ArrowFile(path, "x")
    for _ in file.read(("a",), 0, 1, 1):
        pass
    return file.rows


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_batch_that_unpacks_to_too_much(tmp_path, compression):
    size, limit = 128 << 20, 100 << 20
    wide = pa.record_batch({"a": pa.Array.from_buffers(pa.uint8(), size, [None, pa.py_buffer(bytes(size))])})
    packed = write(tmp_path / "x", [wide], compression=compression)
    assert packed.stat().st_size < 1 << 20
    plain = write(tmp_path / "y", [wide])  # mapped: nothing is unpacked
    assert in_worker(rows_of, plain, label="y", memory=limit) == size
    with pytest.raises((CorruptSourceError, MemoryError, pa.ArrowException)):
        in_worker(rows_of, packed, label="x", memory=limit)


def test_offsets_that_lead_elsewhere(tmp_path):
    path = write(tmp_path / "x", [pa.record_batch({"a": pa.array([b"some", b"bytes"])})])
    data = path.read_bytes()
    offsets = (0).to_bytes(4, "little") + (4).to_bytes(4, "little") + (9).to_bytes(4, "little")
    path.write_bytes(data.replace(offsets, offsets[:8] + (1 << 30).to_bytes(4, "little")))
    with pytest.raises(pa.ArrowInvalid):
        list(ArrowFile(path, "x").read(("a",), 0, 2, 2))


def test_dictionaries_are_not_read(tmp_path):
    coded = pa.record_batch({"a": pa.array(["x", "y", "x"]).dictionary_encode()})
    with pytest.raises(CorruptSourceError, match="dictionary-encoded"):
        ArrowFile(write(tmp_path / "x", [coded]), "x")
