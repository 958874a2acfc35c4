"""V-D4RL over HTTP, and files that are not as they should be: named, nothing half-written, the next run goes on."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import rbdata
from paths import DATA
from rbdata.datasets import catalogue
from rbdata.errors import CorruptSourceError, ObjectNotFoundError, UsageError
from servers import http_server
from transitions_truth import Truth

NAME, SHARDS = "walker_walk-medium_replay-64px", "cheetah_run-medium-84px"


def folder_of(name: str) -> Path:
    return DATA / "vd4rl/vd4rl/main" / "/".join(name.split("-"))


def npz(**changed) -> dict[str, np.ndarray]:
    arrays = {
        "image": np.zeros((5, 8, 8, 3), np.uint8),
        "action": np.zeros((5, 2), np.float32),
        "reward": np.zeros(5),
        "is_terminal": np.zeros(5, bool),
        **changed,
    }
    return {key: values for key, values in arrays.items() if values is not None}


def shard(**changed) -> dict[str, np.ndarray]:
    arrays = {
        "observation": np.zeros((5, 3, 8, 8), np.uint8),
        "action": np.zeros((5, 2), np.float32),
        "reward": np.zeros(5),
        "discount": np.ones(5),
        "step_type": np.array([0, 1, 1, 1, 2]),
        **changed,
    }
    return {key: values for key, values in arrays.items() if values is not None}


def refused(folder: Path, root: Path, message: str) -> None:
    with pytest.raises(CorruptSourceError, match=message):
        rbdata.convert(folder, "my/x", root=root, source="vd4rl", procs=0)
    assert not (root / "my").exists()


@pytest.mark.parametrize("name", [NAME, SHARDS])
def test_from_a_web_server_that_breaks_off(tmp_path, name):
    """What arrived is kept: the rest is asked for."""
    with http_server(DATA / "vd4rl") as server:
        server.faults.cut(after=700, times=2)
        rbdata.download(f"vd4rl/{name}", root=tmp_path, mirror=server.url, procs=0)
        assert any(one[2] == "bytes=700-" for one in server.faults.requests)
    dataset = rbdata.open_dataset(f"vd4rl/{name}", root=tmp_path)
    truth = Truth.of_file(DATA / f"vd4rl/truth/{name}.npz")
    truth.check(dataset, "observation" if name == SHARDS else "observation/image")


def test_names():
    assert catalogue.resolve("vd4rl/walker_walk-random")[0] == "vd4rl/walker_walk-random"
    assert catalogue.resolve("vd4rl/distracting/walker_walk/random/64px")[1] is not None
    for name in ("walker_walk-best", "walker_walk-random-32px", "main/../x/64px"):
        with pytest.raises(rbdata.errors.DatasetNotFoundError):
            catalogue.resolve(f"vd4rl/{name}")
    assert catalogue.recognise(folder_of(NAME)) == catalogue.recognise(folder_of(SHARDS)) == "vd4rl"


def test_a_place_without_the_data_is_named(tmp_path):
    with pytest.raises(ObjectNotFoundError, match="no files of"):
        rbdata.download("vd4rl/humanoid_walk-random", root=tmp_path, mirror=str(DATA / "vd4rl"))
    (tmp_path / "empty").mkdir()
    with pytest.raises((ObjectNotFoundError, UsageError)):
        rbdata.convert(tmp_path / "empty", "my/x", root=tmp_path, source="vd4rl")


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"image": None}, "has no image"),
        ({"reward": np.zeros(4)}, "reward has the shape"),
        ({"is_terminal": np.zeros(4, bool)}, "is_terminal has the shape"),
        ({"image": np.zeros((5, 8, 8, 3))}, "not frames"),
        ({"action": np.array([{}] * 5)}, "pickle"),
        ({"reward": np.full(5, np.nan)}, "not a finite number"),
        ({"reward": np.zeros((5, 2))}, r"x-4\.npz"),
        ({"discount": np.ones((5, 2))}, r"x-4\.npz: discount has the shape \[5, 2\], not one number a row"),
    ],
)
def test_a_file_that_is_not_sound(tmp_path, changed, message):
    (tmp_path / "raw").mkdir()
    np.savez_compressed(tmp_path / "raw" / "a-4.npz", **npz())
    np.savez_compressed(tmp_path / "raw" / "x-4.npz", **npz(**changed))
    refused(tmp_path / "raw", tmp_path / "root", message)


def test_a_file_unlike_the_first_is_named(tmp_path):
    (tmp_path / "raw").mkdir()
    np.savez(tmp_path / "raw" / "a-4.npz", **npz())
    np.savez(tmp_path / "raw" / "b-4.npz", **npz(action=np.zeros((5, 3), np.float32)))
    refused(tmp_path / "raw", tmp_path / "root", r"b-4\.npz.*action")
    np.savez(tmp_path / "raw" / "b-4.npz", **npz())
    assert (
        len(rbdata.open_dataset(rbdata.convert(tmp_path / "raw", "my/x", root=tmp_path / "root", source="vd4rl"))) == 8
    )


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"step_type": None}, "has no step_type"),
        ({"step_type": np.array([0, 1, 3, 1, 2])}, "3 in row 2"),
        ({"reward": np.zeros(4)}, "reward has the shape"),
        ({"discount": np.ones((5, 2))}, r"0\.hdf5: discount has the shape \[5, 2\], not one number a row"),
        ({"observation": np.zeros((5, 3, 8, 8))}, "not frames"),
        ({"action": np.array([b"a"] * 5)}, "not rows of numbers"),
    ],
)
def test_a_shard_that_is_not_sound(tmp_path, changed, message):
    (tmp_path / "raw").mkdir()
    with h5py.File(tmp_path / "raw" / "0.hdf5", "w") as file:
        for key, values in shard(**changed).items():
            file[key] = values
    refused(tmp_path / "raw", tmp_path / "root", message)


def test_a_shard_that_links_elsewhere_is_refused(tmp_path):
    (tmp_path / "raw").mkdir()
    with h5py.File(tmp_path / "raw" / "0.hdf5", "w") as file:
        for key, values in shard(reward=None).items():
            file[key] = values
        file["reward"] = h5py.ExternalLink("other.hdf5", "reward")
    refused(tmp_path / "raw", tmp_path / "root", "reward is a link to somewhere else")
