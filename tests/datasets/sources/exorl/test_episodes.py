"""ExORL's archives: the rows of dm_env order, episodes by number, and archives that are not as they should be."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import rbdata
from rbdata.errors import CorruptSourceError

DATA = Path(__file__).parents[3] / "data" / "exorl"


def convert(path: Path, root: Path) -> rbdata.Dataset:
    return rbdata.open_dataset(rbdata.convert(path, "my/x", root=root, source="exorl", progress=False))


def test_what_an_algorithm_adds_is_kept(tmp_path):
    dataset = convert(DATA / "jaco" / "diayn.zip", tmp_path)
    with np.load(DATA / "truth" / "jaco-diayn.npz") as truth:
        assert np.array_equal(dataset["observation"], truth["obs"])
        assert np.array_equal(dataset["next", "terminated"][:, 0], truth["terminated"])
    with zipfile.ZipFile(DATA / "jaco" / "diayn.zip") as archive, archive.open("buffer/episode_000000_40.npz") as file:
        assert np.array_equal(dataset["info", "skill"][:40], np.load(file)["skill"][1:])


@pytest.mark.parametrize("change", ["rows", "key", "pickle"])
def test_an_episode_that_is_not_sound_is_named(tmp_path, change):
    arrays = {key: np.zeros((5, 2), np.float32) for key in ("observation", "action", "reward", "discount")}
    if change == "rows":
        arrays["action"] = arrays["action"][:4]
    elif change == "key":
        del arrays["discount"]
    else:
        arrays["action"] = np.array([[{}]] * 5)
    np.savez(tmp_path / "episode_000000_4.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.write(tmp_path / "episode_000000_4.npz", "buffer/episode_000000_4.npz")
    with pytest.raises(CorruptSourceError, match="episode_000000_4"):
        convert(tmp_path / "x.zip", tmp_path / "root")
    assert not (tmp_path / "root" / "my").exists()
