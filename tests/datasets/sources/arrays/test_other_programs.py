"""Files as other programs write them: what is an episode in them, what is read, and what a user may leave out."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import rbdata
from rbdata.cli.options import parse_key_values
from rbdata.errors import UsageError


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


def steps(n: int, first: int = 0) -> dict[str, np.ndarray]:
    """The rows of an episode; the observation is the number of the row in all episodes."""
    rows = np.arange(first, first + n, dtype=np.float32)
    return {"obs": rows[:, None], "act": rows[:, None] / 2, "rew": rows * 10}


def write_hdf5(path: Path, arrays: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            file[name] = value
    return path


def lengths(dataset: Any) -> list[int]:
    return dataset.episodes.length.tolist()


def convert(path: Path, **options: Any) -> Any:
    return rbdata.open_dataset(rbdata.convert(path, "my/own", source="arrays", **options))


def notes(dataset: Any) -> str:
    return " ".join(dataset.manifest.notes)


# -- arrays --------------------------------------------------------------------------------------------------------------


def test_an_array_that_only_some_files_have_is_named_with_its_file_and_may_be_left_out(tmp_path: Path) -> None:
    """Cameras by serial number: every robot has others, and all files have one name."""
    for robot, serial in enumerate(["17", "42"]):
        arrays = {**steps(4 + robot), f"cam/{serial}/gain": np.zeros(4 + robot), "cam/x": np.ones(4 + robot)}
        write_hdf5(tmp_path / f"lab/robot{robot}/run.h5", arrays)
    with pytest.raises(UsageError) as raised:
        convert(tmp_path / "lab")
    assert "robot1/run.h5 is unlike robot0/run.h5: info/cam/17/gain is missing" in str(raised.value)
    assert 'leave_out="cam/17/gain,cam/42/gain"' in str(raised.value)
    dataset = convert(tmp_path / "lab", leave_out="cam/*/gain")
    assert lengths(dataset) == [3, 4]
    assert "info/cam/x" in dataset.schema and "info/cam/17/gain" not in dataset.schema
    assert dataset.manifest.source["left_out"]["cam/17/gain"] == "as asked"
    with pytest.raises(UsageError, match="there is no array colour to leave out"):
        rbdata.convert(tmp_path / "lab", "my/other", source="arrays", leave_out="cam,colour")


def test_a_flag_that_is_left_out_says_nothing(tmp_path: Path) -> None:
    flags = {"terminated": np.arange(6) == 5, "truncated": np.arange(6) == 2, "timeouts": np.arange(6) == 1}
    np.savez(tmp_path / "own.npz", **steps(6), **flags)
    with pytest.raises(UsageError, match="truncated, timeouts may each be the truncated"):
        convert(tmp_path / "own.npz")
    assert lengths(convert(tmp_path / "own.npz", leave_out="truncated,time*")) == [6]


@pytest.mark.parametrize("dtype, wider", [("uint16", "int32"), ("uint32", "int64")])
def test_unsigned_numbers_are_stored_in_the_dtype_that_holds_them(dtype: str, wider: str, tmp_path: Path) -> None:
    """Depth in millimetres, counters."""
    most = np.iinfo(dtype).max
    depth = np.array([[0, most]] * 5 + [[7, 8]], dtype)
    arrays = {"observation": {"depth": depth, "x": np.zeros(6)}, "action": depth[:-1], "reward": np.zeros(5)}
    path = rbdata.from_episodes([{**arrays, "terminated": True, "count": depth[:-1]}], "my/depth")
    dataset = rbdata.open_dataset(path)
    for key in ("observation/depth", "action", "count"):
        assert dataset.schema[key].dtype == wider
        np.testing.assert_array_equal(dataset[:][tuple(key.split("/"))].numpy(), depth[:-1])
    np.savez(tmp_path / "own.npz", **{**steps(5), "obs": depth[:-1]}, done=np.arange(5) == 4)
    assert convert(tmp_path / "own.npz").schema["observation"].dtype == wider


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_text_tables_may_be_compressed(delimiter: str, tmp_path: Path) -> None:
    lines = ["x,y,act,rew,done", "0,1,0.5,1,0", "2,3,0.5,1,1", ""]
    text = "\n".join(lines).replace(",", delimiter)
    with gzip.open(tmp_path / "log.csv.gz", "wt") as file:
        file.write(text)
    path = rbdata.convert(tmp_path / "log.csv.gz", "my/log", map={"observation": "x,y", "action": "act"})
    np.testing.assert_array_equal(rbdata.open_dataset(path)[:]["observation"].numpy(), [[0, 1], [2, 3]])


def test_names_of_any_characters_become_keys(tmp_path: Path) -> None:
    """Names of simulators and spreadsheets: what a key cannot have becomes an underscore, as it does where no map names it."""
    arrays = {"in/$pos": np.zeros((4, 2)), "in/vel.x": np.ones((4, 1)), "$u": np.zeros(4), "r (1)": np.ones(4)}
    write_hdf5(tmp_path / "own.h5", {**arrays, "end": np.arange(4) == 3, "a$b": np.arange(4), "c d": np.arange(4)})
    given = {"observation": "in", "action": "$u", "reward": "r (1)", "done": "end", "a$b": "a$b"}
    words = [f"{ours}={theirs}" for ours, theirs in given.items()]
    assert parse_key_values(words, "--map", keys_are_paths=True) == given
    dataset = convert(tmp_path / "own.h5", map=given)
    assert {"observation/_pos", "observation/vel_x", "a_b", "info/c_d"} <= {leaf.name for leaf in dataset.schema}
