"""A user's own file that looks like a provider's is read as own arrays; what a provider writes is still recognised."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import rbdata
from paths import DATA
from pyarrow import parquet
from rbdata.datasets import catalogue
from rbdata.errors import UsageError
from rbdata.storage.dataset import Dataset


def steps(**names: str) -> dict[str, np.ndarray]:
    """Four steps that end; an array is called as it is in ``names``."""
    arrays = {
        "observations": np.arange(8, dtype=np.float32).reshape(4, 2),
        "actions": np.ones((4, 1), np.float32),
        "rewards": np.arange(1, 5, dtype=np.float32),
        "terminals": np.arange(4) == 3,
    }
    return {names.get(name, name): values for name, values in arrays.items()}


def write(path: Path, groups: dict[str, dict[str, Any]], **attributes: Any) -> None:
    with h5py.File(path, "w") as file:
        file.attrs.update(attributes)
        for group, arrays in groups.items():
            for name, values in arrays.items():
                file[f"{group}/{name}"] = values


def numbered_groups(path: Path) -> Path:
    write(path / "a.h5", {f"episode_{number}": steps() for number in range(3)}, total_episodes=3)
    return path / "a.h5"


def trials(path: Path) -> Path:
    write(path / "a.h5", {f"Trial{number}": steps(observations="obs", terminals="dones") for number in range(3)})
    return path / "a.h5"


def dm_env_states(path: Path) -> Path:
    named = steps(observations="observation", actions="action", rewards="reward", terminals="terminated")
    write(path / "a.hdf5", {"": {**named, "step_type": np.array([0, 1, 1, 2])}})
    return path / "a.hdf5"


def with_final_states(path: Path) -> Path:
    write(path / "a.hdf5", {"": {**steps(), "observations": np.arange(10, dtype=np.float32).reshape(5, 2)}})
    return path / "a.hdf5"


def with_episode_ids(path: Path) -> Path:
    write(path / "a.hdf5", {"": {**steps(), "episode_id": np.arange(4) // 2, "terminals": np.arange(4) % 2 == 1}})
    return path / "a.hdf5"


def beside_metadata(path: Path) -> Path:
    (path / "metadata.json").write_text('{"robot": "arm", "date": "today"}')
    np.savez(path / "a.npz", **steps())
    return path


def table(path: Path) -> Path:
    columns = {
        name: list(values) for name, values in steps(observations="obs", actions="action", rewards="reward").items()
    }
    parquet.write_table(pa.table(columns), path / "a.parquet")
    return path / "a.parquet"


def beside_weights(path: Path) -> Path:
    (path / "agent_ckpt.5.gz").write_bytes(b"weights")
    np.savez(path / "a.npz", **steps())
    return path


def runs(path: Path) -> Path:
    np.savez(path / "run_1-0-of-1.npz", **steps())
    return path


OWN: list[tuple[Callable[[Path], Path], int]] = [
    (numbered_groups, 3),
    (trials, 3),
    (dm_env_states, 1),
    (with_final_states, 1),
    (with_episode_ids, 2),
    (beside_metadata, 1),
    (table, 1),
    (runs, 1),
    (beside_weights, 1),
]


@pytest.mark.parametrize(("make", "episodes"), OWN, ids=lambda one: getattr(one, "__name__", ""))
def test_own_files_that_look_like_a_provider_s(make: Callable[[Path], Path], episodes: int, tmp_path: Path) -> None:
    path = make(tmp_path)
    assert catalogue.recognise(path) == "arrays"
    found = rbdata.open_dataset(rbdata.convert(path, "my/own", root=tmp_path / "root"))
    assert len(found.episodes) == episodes
    assert found["next", "reward"].flatten().tolist() == [1, 2, 3, 4] * (len(found) // 4)


def test_features_called_image_are_not_frames_of_vd4rl(tmp_path: Path) -> None:
    arrays = steps(observations="image", actions="action", rewards="reward", terminals="is_terminal")
    np.savez(tmp_path / "a.npz", **arrays, is_first=np.arange(4) == 0)
    assert catalogue.recognise(tmp_path / "a.npz") == "arrays"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("minari/cartpole/random-v0/data/main_data.hdf5", "minari"),
        ("minari/cartpole/random-v0", "minari"),
        ("minari/cartpole/arrow-v0", "minari"),
        ("d4rl/gym_mujoco/walker2d_random.hdf5", "d4rl"),  # of before the time-out flags
        ("d4rl/gym_mujoco_v2/halfcheetah_random-v2.hdf5", "d4rl"),
        ("roboset/real/set_0_trace.h5", "roboset"),
        ("roboset/DAPG(human)/door_v2d-v1", "roboset"),
        ("vd4rl/vd4rl/main/cheetah_run/medium/84px", "vd4rl"),
        ("gen_dgrl/1M/expert/chaser.tar.xz", "gen_dgrl"),
        ("rl_unplugged/atari_episodes_ordered/Breakout", "atari"),
        ("exorl/walker/rnd.zip", "exorl"),
        ("ogbench/puzzle-3x3-play-v0-val.npz", "ogbench"),
        ("frozen/raw/table/t.arff", "openml"),
    ],
)
def test_what_a_provider_writes(path: str, source: str) -> None:
    assert catalogue.recognise(DATA / path) == source


def assert_same(one: Path, other: Path) -> None:
    first, second = Dataset(one), Dataset(other)
    assert first.episodes.lengths.tolist() == second.episodes.lengths.tolist()
    for leaf in first.manifest.schema:
        assert np.array_equal(first[leaf.name].numpy(), second[leaf.name].numpy()), leaf.name


@pytest.mark.parametrize("within", ["", "chaser"])
def test_an_unpacked_archive_of_gen_dgrl(within: str, tmp_path: Path) -> None:
    """The files are in the order of their times, which is not that of the archive."""
    with tarfile.open(DATA / "gen_dgrl/1M/expert/chaser.tar.xz") as archive:
        members = sorted(archive.getnames())
        with tarfile.open(tmp_path / "chaser.tar", "w") as ordered:
            for member in map(archive.getmember, members):
                ordered.addfile(member, archive.extractfile(member))
        archive.extractall(tmp_path / "unpacked", filter="data")
    path = tmp_path / "unpacked" / within
    assert catalogue.recognise(path) == "gen_dgrl"
    packed = rbdata.convert(tmp_path / "chaser.tar", "my/packed", root=tmp_path, procs=1)
    assert_same(rbdata.convert(path, "my/files", root=tmp_path, procs=1), packed)


def test_an_unpacked_archive_of_two_games_or_of_none_asks_which(tmp_path: Path) -> None:
    for game in ("chaser", "maze"):
        with tarfile.open(DATA / f"gen_dgrl/1M/expert/{game}.tar.xz") as archive:
            archive.extractall(tmp_path / "unpacked", filter="data")
    with pytest.raises(UsageError, match="holds files of chaser, maze"):
        rbdata.convert(tmp_path / "unpacked", "my/x", root=tmp_path)
    made = rbdata.convert(tmp_path / "unpacked", "my/x", root=tmp_path, dataset="maze-1M_E", procs=1)
    assert Dataset(made).manifest.source["dataset"] is None
    (tmp_path / "unpacked/maze").rename(tmp_path / "other")
    with pytest.raises(UsageError, match="not named after a game"):
        rbdata.convert(tmp_path / "other", "my/y", root=tmp_path)


def test_an_unpacked_archive_of_exorl(tmp_path: Path) -> None:
    (path,) = (DATA / "exorl/walker").rglob("*.zip")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "unpacked")
    assert catalogue.recognise(tmp_path / "unpacked") == "exorl"
    packed = rbdata.convert(path, "my/packed", root=tmp_path, procs=1)
    assert_same(rbdata.convert(tmp_path / "unpacked", "my/files", root=tmp_path, procs=1), packed)
    assert catalogue.recognise(tmp_path / "unpacked/buffer") == "exorl"
