"""For the campaign `inputs`: readers of whole episodes (OGBench's npz, Gen-DGRL's tar and pickles), and bombs of their kind."""

from __future__ import annotations

import io
import lzma
import pickle
import random
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

Corpus = list[bytes]


def read_episodes(reader: Any, path: Path) -> int:
    """Everything that is decoded of a file's episodes; returns how many bytes. Raises ValueError for columns of odd lengths."""
    from rbdata.datasets.ingest.episode_files import LazyRows, RawInput

    raw = RawInput("x", path if reader.whole else None, None if reader.whole else _pieces(path), Counter())
    size = 0
    for episode in reader.episodes(raw):
        for key, rows, is_state in episode.rows():
            found = 0
            for block in rows.blocks if isinstance(rows, LazyRows) else (rows,):
                found, size = found + len(block), size + block.nbytes
            if found != episode.count(is_state):
                raise ValueError(f"{key} has {found} rows of {len(episode.rewards)} steps")
    return size


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 16):
            yield piece


# -- readers -------------------------------------------------------------------------------------------------------------


def ogbench_corpus(folder: Path) -> Corpus:
    from ogbench_truth import make, write

    made = [
        make([4, 3]),
        make([3, 2], (6, 6, 3), "uint8", qpos=None, qvel=None),
        make([2], (2,)) | {"rewards": np.arange(3.0)},
    ]
    paths = [write(folder / f"{number}.npz", arrays, packed=number < 2) for number, arrays in enumerate(made)]
    return [path.read_bytes() for path in paths]


def change_npz(corpus: Corpus, rng: random.Random, _: int) -> bytes:
    """Half of the changes are inside of an array's file, with the right checksums."""
    from inputs import mutate

    data = rng.choice(corpus)
    if rng.random() < 0.5:
        return mutate(rng, data, corpus)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as changed:
        chosen = rng.choice(archive.namelist())
        for name in archive.namelist():
            member = archive.read(name)
            changed.writestr(name, mutate(rng, member, corpus) if name == chosen else member)
    return out.getvalue()


def read_ogbench(data: bytes, folder: Path) -> None:
    """What NumPy reads as well has as many bytes as it says."""
    from rbdata.datasets.sources.ogbench.reader import OgbenchReader, single_task

    path = folder / "x.npz"
    path.write_bytes(data)
    read_episodes(OgbenchReader(), path)
    read_episodes(OgbenchReader(single_task("pointmaze-medium", 0)), path)


def dgrl_corpus(folder: Path) -> Corpus:
    from gen_dgrl_truth import episode, write

    made = [episode(3, side=4), episode(2, 1, side=4)]
    kinds: list[tuple[str, dict[str, Any]]] = [
        *(("a.tar", {"protocol": protocol}) for protocol in (3, 4, 5)),
        *(("b.tar", {"kind": "npz"}), ("c.tar.xz", {})),
    ]
    return [write(folder / str(number) / name, made, **how).read_bytes() for number, (name, how) in enumerate(kinds)]


def change_tar(corpus: Corpus, rng: random.Random, _: int) -> bytes:
    """Most changes are inside of a file of the archive, whose headers stay right."""
    from inputs import mutate

    data = rng.choice(corpus)
    if rng.random() < 0.3 or data[257:262] != b"ustar":
        return mutate(rng, data, corpus)
    size = int(data[124:135], 8)
    inside = mutate(rng, data[512 : 512 + size], corpus)[:size].ljust(size, b"\0")
    return data[:512] + inside + data[512 + size :]


def read_dgrl(data: bytes, folder: Path) -> None:
    from rbdata.datasets.sources.gen_dgrl.reader import GenDgrlReader
    from rbdata.datasets.sources.gen_dgrl.source import LIMITS

    path = folder / "chaser.tar"
    path.write_bytes(data)
    read_episodes(GenDgrlReader(LIMITS, "chaser"), path)


def pickle_corpus(_: Path) -> Corpus:
    value = {"a": np.arange(6, dtype="<i4").reshape(2, 3), "b": [1, "x", None, 2.5, (1, 2, 3, 4)], "c": np.float32(2)}
    return [pickle.dumps(value, protocol) for protocol in (3, 4, 5)]


def read_pickled(data: bytes, folder: Path) -> None:
    """Whatever the bytes are, only arrays and plain values come out."""
    from rbdata.datasets.formats.numpy_pickle import read_pickle

    _check_plain(read_pickle(io.BytesIO(data), "x"))


def _check_plain(value: Any) -> None:
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        _check_plain(one)
    if not isinstance(value, (dict, list, tuple, np.ndarray, np.generic, str, bytes, int, float, bool, type(None))):
        raise ValueError(f"a {type(value).__name__} came out of a pickle")


# -- bombs ---------------------------------------------------------------------------------------------------------------


def _zeros(size: int) -> tuple[bytes, int]:
    """So many zeros, deflated, and their checksum; ``size`` is a multiple of 16 MiB."""
    packer, block = zlib.compressobj(9, zlib.DEFLATED, -15), bytes(1 << 24)
    first, again = (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    crc = 0
    for _ in range(size // len(block)):
        crc = zlib.crc32(block, crc)
    return first + again * (size // len(block) - 1) + packer.flush(), crc


def _npy_head(dtype: str, shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def _zip(path: Path, members: dict[str, tuple[bytes, int, int]]) -> None:
    """A zip of members that are deflated already: data, size and checksum of what they unpack to."""
    out, central = b"", b""
    for name, (data, size, crc) in members.items():
        fields = struct.pack("<5H3I2H", 20, 0, 8, 0, 33, crc, len(data), size, len(name), 0)
        central += (
            b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<3H2I", 0, 0, 0, 0, len(out)) + name.encode()
        )
        out += b"PK\x03\x04" + fields + name.encode() + data
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, len(members), len(members), len(central), len(out), 0)
    path.write_bytes(out + central + end)


def _member(dtype: str, shape: tuple[int, ...]) -> tuple[bytes, int, int]:
    """An array of zeros as a member."""
    head = _npy_head(dtype, shape)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = size // (1 << 24) * (1 << 24)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    begin = packer.compress(head + bytes(size - whole)) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = zlib.crc32(head + bytes(size - whole))
    for _ in range(whole >> 24):
        crc = zlib.crc32(bytes(1 << 24), crc)
    return begin + (_zeros(whole)[0] if whole else packer.flush()), len(head) + size, crc


def npz_wide_rows(path: Path) -> str:
    """An episode of 40 rows of 31 MiB, of zeros."""
    _zip(
        path / "x.npz",
        {
            "observations.npy": _member("|u1", (40, 31 << 20)),
            "actions.npy": _member("<f4", (40, 1)),
            "terminals.npy": _member("|b1", (40,)),
        },
    )
    return "ogbench"


def npz_many_rows(path: Path) -> str:
    """Four million rows of zeros without an end, and arrays of as many."""
    rows = 1 << 22
    keys = {
        "observations": ("<f4", (rows, 8)),
        "actions": ("<f4", (rows, 4)),
        "terminals": ("|b1", (rows,)),
        "qpos": ("<f4", (rows, 32)),
    }
    _zip(path / "x.npz", {f"{key}.npy": _member(dtype, shape) for key, (dtype, shape) in keys.items()})
    return "ogbench"


def npz_wide_flags(path: Path) -> str:
    """Flags of 2 GiB: a number of 8 bytes for each of 256 million rows."""
    rows = 1 << 28
    keys = {"observations": ("|u1", (rows, 1)), "actions": ("|u1", (rows,)), "terminals": ("<i8", (rows,))}
    _zip(path / "x.npz", {f"{key}.npy": _member(dtype, shape) for key, (dtype, shape) in keys.items()})
    return "ogbench"


def _tar_of(name: str, head: bytes, zeros: int, tail: bytes) -> Iterator[bytes]:
    """A tar with one file: ``head``, so many zeros, ``tail``."""
    import tarfile

    info = tarfile.TarInfo(name)
    info.size = len(head) + zeros + len(tail)
    yield info.tobuf(tarfile.GNU_FORMAT) + head
    for _ in range(zeros >> 24):
        yield bytes(1 << 24)
    yield tail + bytes(-info.size % 512 + 1024)


def _packed(path: Path, pieces: Iterator[bytes]) -> None:
    packer = lzma.LZMACompressor(preset=0)
    with path.open("wb") as file:
        for piece in pieces:
            file.write(packer.compress(piece))
        file.write(packer.flush())


def dgrl_long_episode(path: Path) -> str:
    """A pickled episode whose frames unpack to 4 GiB less 64 bytes, in a tar of a megabyte."""
    from gen_dgrl_truth import episode, packed

    whole = packed(episode(1, side=4), protocol=3)
    at = whole.index(b"B" + (2 * 3 * 16 * 4).to_bytes(4, "little"))
    head = whole[:at] + b"B" + (240 << 24).to_bytes(4, "little")
    _packed(
        path / "chaser.tar.xz", _tar_of("chaser/20230329T092200_0_1_1_10.00.npy", head, 240 << 24, whole[at + 389 :])
    )
    return "gen_dgrl"


def dgrl_skipped_file(path: Path) -> str:
    """A file of 1 GiB that is no episode."""
    _packed(path / "chaser.tar.xz", _tar_of("chaser/zeros.bin", b"", 64 << 24, b""))
    return "gen_dgrl"


BOMBS: tuple[Callable[[Path], str], ...] = (
    *(npz_wide_rows, npz_many_rows, npz_wide_flags, dgrl_long_episode, dgrl_skipped_file),
)


def read_bomb(kind: str, path: Path) -> None:
    """Read what a bomb's function wrote."""
    from rbdata.datasets.sources.gen_dgrl.reader import GenDgrlReader
    from rbdata.datasets.sources.gen_dgrl.source import LIMITS
    from rbdata.datasets.sources.ogbench.reader import OgbenchReader
    from rbdata.errors import CorruptSourceError

    reader: Any = OgbenchReader() if kind == "ogbench" else GenDgrlReader(LIMITS, "chaser")
    with suppress(CorruptSourceError):
        read_episodes(reader, next(path.iterdir()))
