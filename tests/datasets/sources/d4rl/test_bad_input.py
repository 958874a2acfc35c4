"""Files that are not what they should be: a clear error that names them, and nothing half-written."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from d4rl_truth import make, to_dataset, write
from rbdata.datasets.acquire import download
from rbdata.datasets.convert import convert
from rbdata.datasets.ingest.records import ConvertOptions
from rbdata.datasets.ingest.request import Request
from rbdata.errors import CorruptSourceError, ObjectNotFoundError, UsageError


def good() -> dict[str, np.ndarray]:
    return make([3, 4], ["terminal", "terminal"])


def refuse(file: Path, root: Path, match: str, **extra) -> None:
    with pytest.raises(CorruptSourceError, match=match) as caught:
        to_dataset(file, root, **extra)
    assert file.name in str(caught.value)
    assert not (root / "my" / "run").exists()
    assert not (root / "my" / ".run.writing").exists()


@pytest.mark.parametrize("key", ["observations", "actions", "rewards", "terminals"])
def test_a_missing_array(key, tmp_path):
    arrays = good()
    del arrays[key]
    refuse(write(tmp_path / "raw" / "x.hdf5", arrays), tmp_path, f"has no {key}")


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("actions", np.zeros((6, 2)), "actions cannot be used: its shape"),
        ("rewards", np.zeros((7, 2)), "not one number a row"),
        ("rewards", np.array([0, 0, np.nan, 0, 0, 0, 0]), "reward of row 2 is nan"),
        ("rewards", np.full(7, 1e300), "reward of row 0 is 1e"),
        ("terminals", np.array([0, np.nan, 0, 0, 0, 0, 0], "f4"), "terminals of row 1 is nan"),
        ("terminals", np.array([0, 0, 0, 2, 0, 0, 0], "u1"), "terminals of row 3 is 2"),
        ("timeouts", np.array([0, 0, 0, 0.5, 0, 0, 0]), "timeouts of row 3 is 0.5"),
        ("next_observations", np.zeros((7, 4), "f4"), "next_observations are float32"),
        ("next_observations", np.zeros((7, 3), "f8"), "next_observations are float64"),
        ("observations", np.array([b"x"] * 7), "observations cannot be used"),
        ("actions", np.zeros(7, "c8"), "actions cannot be used"),
        ("observations", np.zeros((7, 0)), "observations cannot be used"),
    ],
)
def test_an_array_that_cannot_be_right(key, value, match, tmp_path):
    refuse(write(tmp_path / "raw" / "x.hdf5", {**good(), key: value}), tmp_path, match)


def test_no_rows(tmp_path):
    arrays = {key: value[:0] for key, value in good().items()}
    refuse(write(tmp_path / "raw" / "x.hdf5", arrays), tmp_path, "holds no rows")


def test_nothing_but_unknown_successors(tmp_path):
    refuse(write(tmp_path / "raw" / "x.hdf5", make([1, 1], ["timeout"] * 2)), tmp_path, "no step whose successor")


@pytest.mark.parametrize("content", [b"", b"<html>down for maintenance</html>", b"\x89HDF\r\n\x1a\n" + bytes(2000)])
def test_not_hdf5(content, tmp_path):
    file = tmp_path / "raw" / "x.hdf5"
    file.parent.mkdir()
    file.write_bytes(content)
    refuse(file, tmp_path, "not a whole HDF5 file")


@pytest.mark.parametrize("share", [0.3, 0.7, 0.999])
def test_a_file_that_was_cut(share, tmp_path):
    file = write(tmp_path / "raw" / "x.hdf5", make([300], ["terminal"]))
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    refuse(file, tmp_path, "not a whole HDF5 file")


def test_a_damaged_chunk(tmp_path):
    file = write(tmp_path / "raw" / "x.hdf5", make([3000], ["terminal"]), compression="gzip")
    with h5py.File(file) as source:
        chunk = source["actions"].id.get_chunk_info(0)
    with file.open("r+b") as raw:
        raw.seek(chunk.byte_offset + 20)
        raw.write(bytes(40))
    refuse(file, tmp_path, "the chunk at|not a whole HDF5 file")


def test_trap_66_links_out_of_the_file(tmp_path):
    other = write(tmp_path / "other" / "y.hdf5", good())
    for number, link in enumerate([h5py.ExternalLink(str(other), "/actions"), h5py.SoftLink("/observations")]):
        file = write(tmp_path / f"raw{number}" / "x.hdf5", good())
        with h5py.File(file, "a") as target:
            target["infos/sneaky"] = link
        refuse(file, tmp_path, "infos/sneaky is a link")


def test_trap_66_values_kept_in_other_files(tmp_path):
    arrays = good()
    del arrays["actions"]
    file = write(tmp_path / "raw" / "x.hdf5", arrays)
    with h5py.File(file, "a") as target:
        target.create_dataset("actions", (7, 2), "f4", external=[(str(tmp_path / "secret"), 0, 56)])
    refuse(file, tmp_path, "kept in another file")
    other = write(tmp_path / "other" / "y.hdf5", good())
    with h5py.File(file, "a") as target:
        del target["actions"]
        layout = h5py.VirtualLayout((7, 2), "f4")
        layout[:] = h5py.VirtualSource(str(other), "actions", (7, 2))
        target.create_virtual_dataset("actions", layout)
    refuse(file, tmp_path, "kept in another file")


def test_trap_66_huge_declared_shapes(tmp_path):
    file = tmp_path / "raw" / "x.hdf5"
    file.parent.mkdir()
    with h5py.File(file, "w") as target:
        for key, shape in {"observations": (10**12, 11), "actions": (10**12, 3), "rewards": (10**12,)}.items():
            target.create_dataset(key, shape, "f4", chunks=True)
        target.create_dataset("terminals", (10**12,), "bool", chunks=True)
    refuse(file, tmp_path, "declares .* but holds 0 bytes")


def test_a_group_that_contains_itself(tmp_path):
    file = write(tmp_path / "raw" / "x.hdf5", good())
    with h5py.File(file, "a") as target:
        target["infos/inside"] = target.create_group("loop")
        target["loop/again"] = target["loop"]
    assert len(to_dataset(file, tmp_path)) == 7


def test_a_folder_without_the_one_file(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ObjectNotFoundError, match="holds 0 HDF5 files"):
        convert(tmp_path / "empty", "d4rl", Request("my/run", root=tmp_path))
    write(tmp_path / "two" / "a.hdf5", good())
    write(tmp_path / "two" / "hopper_medium-v2.hdf5", good())
    with pytest.raises(ObjectNotFoundError, match="holds 2 HDF5 files"):
        convert(tmp_path / "two", "d4rl", Request("my/run", root=tmp_path))
    options = ConvertOptions(extra={"dataset": "hopper-medium-v2"})
    outcome = convert(tmp_path / "two", "d4rl", Request("my/run", root=tmp_path, options=options))
    assert outcome.manifest is not None and outcome.manifest.source["dataset"] == "hopper-medium-v2"


def test_a_mirror_without_the_file(tmp_path):
    with pytest.raises(ObjectNotFoundError, match=r"no hopper_medium-v2\.hdf5") as caught:
        download(Request("d4rl/hopper-medium-v2", root=tmp_path, mirror=str(tmp_path)))
    assert "--mirror" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "extra", [{"episodes_by": "magic"}, {"horizon": 0}, {"horizon": True}, {"horizon": "9"}, {"colour": 1}]
)
def test_options_that_make_no_sense(extra, tmp_path):
    file = write(tmp_path / "raw" / "x.hdf5", good())
    with pytest.raises(UsageError):
        to_dataset(file, tmp_path, **extra)
