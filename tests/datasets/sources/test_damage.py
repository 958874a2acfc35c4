"""A bit of a provider's file was flipped: the file is refused by the check of its container, or the data are the same.

Only bytes that a container checks are changed here: packed chunks of HDF5, members of archives, whole gzip, xz and TFRecord
files. No check have: values that HDF5 stores without a filter (contiguous, or as chunks without deflate or fletcher32), the
structure of HDF5's older format, ``.npy``, Arrow (also packed by LZ4 or zstd: pyarrow writes frames without checksums), Parquet
without page checksums (an option of all writers, off by default), JPEG, videos, plain tar, ARFF, CSV and TensorDict's maps.
"""

from __future__ import annotations

import gzip
import io
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import rbdata
from paths import DATA
from PIL import Image
from pyarrow import parquet
from rbdata.datasets.formats.pictures import decode_picture, decode_pictures
from rbdata.errors import CorruptSourceError, RbdataError
from rbdata.storage.dataset import Dataset

TRIES = 2


def everywhere(path: Path) -> Iterator[int]:
    """Places over a whole file."""
    size = path.stat().st_size
    yield from (size * number // (TRIES + 1) for number in range(1, TRIES + 1))


def in_chunks(path: Path) -> Iterator[int]:
    """Places inside packed chunks of HDF5 arrays, the largest first."""
    found: list[tuple[int, int]] = []

    def look(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.chunks and (item.compression or item.fletcher32):
            item.id.chunk_iter(lambda info: found.append((info.size, info.byte_offset)))

    with h5py.File(path) as file:
        file.visititems(look)
    for size, offset in sorted(found, reverse=True)[:TRIES]:
        yield from (offset + size // 2, offset + size - 2)  # deflate may not notice the former: the same values again


def in_members(path: Path) -> Iterator[int]:
    """Places inside members of a zip file, the largest first."""
    with zipfile.ZipFile(path) as archive:
        entries = sorted(archive.infolist(), key=lambda one: one.compress_size, reverse=True)[:TRIES]
    for entry in entries:
        yield entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2


Places = Callable[[Path], Iterator[int]]
PROVIDERS: dict[str, tuple[str, str, str, Places]] = {
    # what is converted, its source, the files in it, where they are changed
    "DQN Replay": ("atari/dqn/*/*/replay_logs", "atari", "*observation_ckpt.0.gz", everywhere),
    "RL Unplugged": ("rl_unplugged/atari_episodes_ordered/*", "atari", "run_*", everywhere),
    "D4RL": ("d4rl/gym_mujoco_v2/halfcheetah_random-v2.hdf5", "d4rl", "*", in_chunks),
    "Gen-DGRL": ("gen_dgrl/1M/expert/chaser.tar.xz", "gen_dgrl", "*", everywhere),
    "ExORL": ("exorl/walker/*.zip", "exorl", "*", in_members),
    "OGBench": ("ogbench/puzzle-3x3-play-v0.npz", "ogbench", "*", in_members),
    "V-D4RL, npz": ("vd4rl/vd4rl/main/walker_walk/*/64px", "vd4rl", "*.npz", in_members),
    "RLDS": ("rlds/toy_spec/*", "rlds", "*tfrecord*", everywhere),
    "RoboSet": ("roboset/real/set_0_trace.h5", "roboset", "*", in_chunks),
}


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


def contents(path: Path) -> list[bytes]:
    found = Dataset(path)
    return [found.episodes.lengths.tobytes(), *(found[leaf.name].numpy().tobytes() for leaf in found.manifest.schema)]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_flipped_bit_in_a_file_of_a_provider(provider: str, tmp_path: Path) -> None:
    pattern, source, inside, places = PROVIDERS[provider]
    found = sorted(DATA.glob(pattern))[0]
    path = tmp_path / "raw" / found.name
    _copy(found, path)
    options: dict[str, Any] = {"source": source, "root": tmp_path, "procs": 0, "force": True}
    sound = contents(rbdata.convert(path, "my/x", **options))
    file = sorted(path.rglob(inside))[0] if path.is_dir() else path
    data, refused = file.read_bytes(), 0
    for at in places(file):
        file.write_bytes(flipped(data, at))
        try:
            assert contents(rbdata.convert(path, "my/y", **options)) == sound, f"byte {at} of {file.name}"
        except RbdataError as error:
            assert file.name in str(error)
            refused += 1
    assert refused


def _copy(found: Path, path: Path) -> None:
    path.parent.mkdir()
    if found.is_dir():
        shutil.copytree(found, path)
    else:
        shutil.copy(found, path)


# -- own files -----------------------------------------------------------------------------------------------------------


def steps(rows: int = 400) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(rows, 8)),
        "act": rng.normal(size=(rows, 2)),
        "rew": rng.normal(size=rows),
        "done": np.arange(rows) % 20 == 19,
    }


def write_hdf5(path: Path, **how: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, values in steps().items():
            file.create_dataset(name, data=values, chunks=(100, *values.shape[1:]), **how)


def write_csv(path: Path) -> None:
    arrays = steps()
    rows = zip(arrays["obs"][:, 0], arrays["act"][:, 0], arrays["rew"], arrays["done"].astype(int))
    with gzip.open(path, "wt") as file:
        file.write("obs,act,rew,done\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))


def write_parquet(path: Path) -> None:
    table = pa.table({name: list(values) for name, values in steps().items()})
    parquet.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)


OWN: dict[str, tuple[Callable[[Path], Any], Places]] = {
    "stored.npz": (lambda path: np.savez(path, **steps()), in_members),
    "packed.npz": (lambda path: np.savez_compressed(path, **steps()), in_members),
    "gzip.h5": (lambda path: write_hdf5(path, compression="gzip"), in_chunks),
    "shuffle.h5": (lambda path: write_hdf5(path, compression="gzip", shuffle=True), in_chunks),
    "fletcher.h5": (lambda path: write_hdf5(path, fletcher32=True), in_chunks),
    "lzf.h5": (lambda path: write_hdf5(path, compression="lzf", fletcher32=True), in_chunks),
    "checked.parquet": (write_parquet, everywhere),
    "a.csv.gz": (write_csv, everywhere),
}


@pytest.mark.parametrize("name", OWN)
def test_a_flipped_bit_in_an_own_file(name: str, tmp_path: Path) -> None:
    write, places = OWN[name]
    path = tmp_path / name
    write(path)
    assert len(Dataset(rbdata.convert(path, "my/x", root=tmp_path, procs=0))) == 400
    data = path.read_bytes()
    for at in places(path):
        path.write_bytes(flipped(data, at))
        with pytest.raises(CorruptSourceError, match=name):
            rbdata.convert(path, "my/y", root=tmp_path, procs=0)
    assert not (tmp_path / "my/y").exists()


def test_a_flipped_bit_in_a_png() -> None:
    """Pillow leaves out the checksums of its data; those of zlib notice most changes, not all."""
    picture = np.full((32, 32, 3), 7, np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=1)
    data = file.getvalue()
    begin = data.find(b"IDAT") + 4
    for at in range(begin, begin + int.from_bytes(data[begin - 8 : begin - 4], "big")):
        with pytest.raises(CorruptSourceError):
            decode_picture(flipped(data, at), "a picture")
        with pytest.raises(CorruptSourceError):
            list(decode_pictures([flipped(data, at)], picture.shape, "uint8", "a picture"))
    assert np.array_equal(decode_picture(data, "a picture"), picture)
