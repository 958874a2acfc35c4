"""Folders of more files than may be open at once, and files whose arrays are in other files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import rbdata
from processes import start_forked
from pyarrow import parquet
from rbdata.errors import RbdataError

FILES, LIMIT = 60, 40


def episode(number: int, rows: int = 3) -> dict[str, np.ndarray]:
    ends = np.arange(rows) == rows - 1
    return {
        "obs": np.full((rows, 2), number, np.float32),
        "act": np.zeros((rows, 1), np.float32),
        "rew": np.arange(1, rows + 1, dtype=np.float32),
        "done": ends,
    }


def write_hdf5(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values


def write_parquet(path: Path, arrays: dict[str, np.ndarray]) -> None:
    parquet.write_table(pa.table({name: list(values) for name, values in arrays.items()}), path)


WRITERS: dict[str, Callable[[Path, dict[str, np.ndarray]], Any]] = {
    "packed.npz": lambda path, arrays: np.savez_compressed(path, **arrays),
    "a.h5": write_hdf5,
    "a.parquet": write_parquet,
}


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    """In folders of many files; and where no descriptor is left, a file is not called damaged."""
    for name in ("packed.npz", "a.h5", "a.parquet"):
        folder = tmp_path / f"of {name}"
        folder.mkdir()
        for number in range(FILES):
            WRITERS[name](folder / f"{number}{Path(name).suffix}", episode(number))
        WRITERS[name](tmp_path / f"a{Path(name).suffix}", episode(0))
    code = f"""
import os, resource, rbdata
from pathlib import Path
from rbdata.datasets.sources.arrays.opening import open_tables
os.chdir({os.fspath(tmp_path)!r})
there = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (there + {LIMIT}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for name in ("packed.npz", "a.h5", "a.parquet"):
    rbdata.convert(f"of {{name}}", f"my/{{name}}", source="arrays", root="root", progress=False)
held = []
for name in ("a.npz", "a.h5", "a.parquet"):
    try:
        while True:
            held.append(os.open(".", os.O_RDONLY))
    except OSError:
        pass
    try:
        open_tables(Path(name), Path("scratch")).__enter__()
    except OSError as error:
        print(name, error.errno)
"""
    process = start_forked(code, output=tmp_path / "said")
    process.join()
    assert process.exitcode == 0
    for name in ("packed.npz", "a.h5", "a.parquet"):
        found = rbdata.open_dataset(tmp_path / "root/my" / name)
        assert len(found.episodes) == FILES
        assert found["observation"][::3, 0].tolist() == list(range(FILES))
    assert (tmp_path / "said").read_text().split() == ["a.npz", "24", "a.h5", "24", "a.parquet", "24"]


# -- archives ------------------------------------------------------------------------------------------------------------


def test_a_stored_member_with_another_checksum_is_refused_by_name(tmp_path: Path) -> None:
    arrays = episode(3, rows=8)
    np.savez(tmp_path / "own.npz", **arrays, unused=np.arange(8))
    data = bytearray((tmp_path / "own.npz").read_bytes())
    data[data.find(np.float32(5).tobytes()) + 2] ^= 8
    (tmp_path / "own.npz").write_bytes(data)
    with pytest.raises(RbdataError, match=r"own\.npz: rew\.npy is damaged: its checksum"):
        rbdata.convert(tmp_path / "own.npz", "my/own", root=tmp_path)
    assert not (tmp_path / "my/own").exists()


def test_rows_in_the_order_of_fortran(tmp_path: Path) -> None:
    states = np.arange(24, dtype=np.float64).reshape(8, 3)
    np.savez(tmp_path / "own.npz", **{**episode(0, rows=8), "obs": np.asfortranarray(states)})
    found = rbdata.open_dataset(rbdata.convert(tmp_path / "own.npz", "my/own", root=tmp_path))
    assert np.array_equal(np.asarray(found["observation"]), states)


# -- HDF5 ----------------------------------------------------------------------------------------------------------------


def test_demonstrations_that_are_links_to_files(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "one.h5", episode(1))
    for name in ("demo_1", "extra"):  # the second is not named as the demonstrations are
        with h5py.File(tmp_path / "all.h5", "w") as file:
            for number in (0, 2):
                for key, values in episode(number).items():
                    file[f"data/demo_{number}/{key}"] = values
            file[f"data/{name}"] = h5py.ExternalLink("one.h5", "/")
        if name == "demo_1":
            with pytest.raises(RbdataError, match=r"demo_1 is named .* is not read: it is a link to one\.h5"):
                rbdata.convert(tmp_path / "all.h5", "my/own", root=tmp_path)
    found = rbdata.open_dataset(rbdata.convert(tmp_path / "all.h5", "my/own", root=tmp_path))
    assert len(found.episodes) == 2


@pytest.mark.parametrize("kind", ["virtual", "raw"])
def test_an_array_whose_values_are_in_other_files_is_not_zeros(kind: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "all.h5", "w") as file:
        for name in ("act", "rew", "done"):
            file[name] = episode(1)[name]
        if kind == "raw":
            file.create_dataset("obs", (3, 2), "f4", external=[("gone.raw", 0, 24)])
        else:
            layout = h5py.VirtualLayout((3, 2), np.float32)
            layout[:] = h5py.VirtualSource("gone.h5", "obs", (3, 2), np.float32)
            file.create_virtual_dataset("obs", layout)
    with pytest.raises(RbdataError, match=r"it is kept in another file, gone\.(raw|h5)") as caught:
        rbdata.convert(tmp_path / "all.h5", "my/own", root=tmp_path, source="arrays")
    assert "all.h5" in str(caught.value)
