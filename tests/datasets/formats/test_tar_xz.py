"""Archives as streams: the same files as Python's tarfile and lzma find, and clear errors for all else."""

from __future__ import annotations

import io
import lzma
import tarfile
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rbdata.datasets.formats.tar import tar_members
from rbdata.datasets.formats.xz import PIECE, unxz
from rbdata.errors import CorruptSourceError

_NAMES = st.lists(
    st.text("abcé.-", min_size=1, max_size=90).filter(lambda part: part not in (".", "..")), min_size=1, max_size=4
)


@dataclass(frozen=True)
class Kind:
    type: bytes


def tar_of(files, form=tarfile.PAX_FORMAT):
    """The bytes of an archive of (path, data) pairs; a `Kind` instead of data makes another member than a file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for path, data in files:
            info = tarfile.TarInfo(path)
            if not isinstance(data, Kind):
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
            else:
                info.type = data.type
                info.linkname = "/etc/passwd"
                archive.addfile(info)
    return buffer.getvalue()


def cut(data, size):
    return (data[low : low + size] for low in range(0, len(data), size))


@given(
    st.lists(st.tuples(_NAMES.map("/".join), st.binary(max_size=1500)), max_size=5),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    st.integers(1, 2000),
    st.booleans(),
)
def test_what_tarfile_writes(files, form, size, read):
    found = []
    for member in tar_members(cut(tar_of(files, form), size), "a"):
        data = b"".join(map(bytes, member)) if read else None
        found.append((member.path, member.size, data))
    assert found == [(path, len(data), data if read else None) for path, data in files]


def test_folders_are_left_out_and_what_is_not_read_is_skipped():
    data = tar_of([("d", Kind(tarfile.DIRTYPE)), ("d/a", b"1" * 1000), ("d/b", b"2" * 1000)])
    found = []
    for member in tar_members([data], "a"):
        found.append((member.path, bytes(next(iter(member)))[:1]))
    assert found == [("d/a", b"1"), ("d/b", b"2")]


@pytest.mark.parametrize(
    ("path", "data", "problem"),
    [
        ("../x", b"1", "leads out of it"),
        ("a/../../x", b"1", "leads out of it"),
        ("/etc/x", b"1", "leads out of it"),
        ("x", Kind(tarfile.SYMTYPE), "is a link"),
        ("x", Kind(tarfile.LNKTYPE), "is a link"),
        ("x", Kind(tarfile.CHRTYPE), "is a device"),
        ("x", Kind(tarfile.FIFOTYPE), "is a pipe"),
    ],
)
def test_what_is_refused(path, data, problem):
    with pytest.raises(CorruptSourceError, match=f"^a.tar.*{problem}"):
        list(tar_members([tar_of([(path, data)])], "a.tar"))


def test_damage():
    whole = tar_of([("x", b"1" * 3000)])
    for size in (0, 100, 600, 2000, 3500):
        with pytest.raises(CorruptSourceError, match="a is cut short"):
            list(tar_members([whole[:size]], "a"))
    with pytest.raises(CorruptSourceError, match="checksum of a header"):
        list(tar_members([whole[:20] + b"?" + whole[21:]], "a"))
    with pytest.raises(CorruptSourceError, match="something after its end"):
        list(tar_members([whole, b"more"], "a"))
    for field, text in (("path", "x" * (1 << 17)), ("size", "-5")):
        info = tarfile.TarInfo("x")
        info.pax_headers = {field: text}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.addfile(info)
        with pytest.raises(CorruptSourceError):
            list(tar_members([buffer.getvalue()], "a"))


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=3), st.integers(1, 500), st.integers(0, 3))
def test_what_lzma_writes(parts, size, zeros):
    data = b"".join(lzma.compress(part) + bytes(4 * zeros) for part in parts)
    assert b"".join(unxz(cut(data, size), "a")) == b"".join(parts)


def test_a_bomb_comes_in_pieces():
    data = lzma.compress(bytes(64 << 20))
    assert len(data) < 20_000
    assert max(map(len, unxz([data], "a"))) <= PIECE


@pytest.mark.parametrize("size", [1, 30, 200])
def test_damaged_xz(size):
    whole = lzma.compress(bytes(range(256)) * 20)
    with pytest.raises(CorruptSourceError, match="a is cut short"):
        list(unxz([whole[:size]], "a"))
    for damaged in (
        whole[:size] + bytes([whole[size] ^ 255]) + whole[size + 1 :],
        whole + b"more bytes",
        b"PK\x03\x04" * 9,
    ):
        with pytest.raises(CorruptSourceError, match="a is "):
            list(unxz([damaged], "a"))


def test_an_empty_file_is_no_archive():
    with pytest.raises(CorruptSourceError, match="a is cut short"):
        list(tar_members(unxz([], "a"), "a"))


def test_memory_of_the_decoder_is_bounded():
    strong = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
    compressor = lzma.LZMACompressor(filters=strong)
    data = compressor.compress(b"x") + compressor.flush()
    with pytest.raises(CorruptSourceError, match="damaged xz file"):
        list(unxz([data], "a"))
