"""RoboSet over HTTP, and logs that are not as they should be: named, nothing half-written, the next run goes on."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import rbdata
from paths import DATA
from rbdata.datasets import catalogue
from rbdata.errors import CorruptSourceError, ObjectNotFoundError
from servers import http_server
from transitions_truth import Truth

DOOR = "DAPG(human)/door_v2d-v1"


def trial(**changed) -> dict[str, np.ndarray]:
    arrays = {
        "observations": np.zeros((5, 3)),
        "actions": np.zeros((5, 2)),
        "rewards": np.zeros(5),
        "done": np.zeros(5, bool),
        **changed,
    }
    return {key: values for key, values in arrays.items() if values is not None}


def write(path: Path, name: str = "Trial0", **changed) -> Path:
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "a") as file:
        for key, values in trial(**changed).items():
            file[f"{name}/{key}"] = values
    return path


def refused(path: Path, root: Path, message: str) -> None:
    with pytest.raises(CorruptSourceError, match=message):
        rbdata.convert(path, "my/x", root=root, source="roboset", procs=0)
    assert not (root / "my").exists()


def test_from_a_web_server_that_breaks_off(tmp_path):
    with http_server(DATA / "roboset") as server:
        server.faults.cut(after=700)
        rbdata.download(f"roboset/{DOOR}", root=tmp_path, mirror=server.url, procs=0)
        assert any(one[2] == "bytes=700-" for one in server.faults.requests)
    truth = Truth.of_file(DATA / f"roboset/truth/{DOOR.replace('/', '_')}.npz")
    truth.check(rbdata.open_dataset(f"roboset/{DOOR}", root=tmp_path))


def test_paths_are_recognised_and_places_named(tmp_path):
    assert catalogue.recognise(DATA / "roboset" / DOOR) == "roboset"
    assert catalogue.recognise(DATA / "roboset" / "real" / "set_0_trace.h5") == "roboset"
    with pytest.raises(ObjectNotFoundError, match="no logs of"):
        rbdata.download("roboset/real/set_9", root=tmp_path, mirror=str(DATA / "roboset"))
    with pytest.raises(rbdata.errors.DatasetNotFoundError):
        rbdata.download("roboset/DAPG", root=tmp_path, mirror=str(DATA / "roboset"))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"actions": None}, "Trial1 has no actions"),
        ({"rewards": np.zeros((5, 2))}, "Trial1: rewards is"),
        ({"observations": np.array([b"a"] * 5)}, "has no observations"),
        ({"observations": np.zeros((5, 4))}, "observation"),
        ({"env_infos/more": np.zeros(5)}, "info/more"),
    ],
)
def test_a_trial_that_is_not_sound(tmp_path, changed, message):
    write(tmp_path / "raw" / "x.h5")
    write(tmp_path / "raw" / "x.h5", "Trial1", **changed)
    refused(tmp_path / "raw" / "x.h5", tmp_path / "root", message)


def test_logs_without_trials_and_with_links(tmp_path):
    path = write(tmp_path / "raw" / "x.h5", "Other")
    refused(path, tmp_path / "root", "holds no trials")
    with h5py.File(path, "a") as file:
        file["Trial0"] = h5py.ExternalLink("other.h5", "Trial0")
    refused(path, tmp_path / "root", "not a group of this file")
    path.write_bytes(path.read_bytes()[:900])
    refused(path, tmp_path / "root", r"x\.h5")
    path.unlink()
    write(path)
    assert len(rbdata.open_dataset(rbdata.convert(path, "my/x", root=tmp_path / "root", source="roboset"))) == 4


def test_success_that_is_kept_in_another_file_is_not_read(tmp_path):
    path = write(tmp_path / "raw" / "x.h5")
    (tmp_path / "other").write_bytes(np.float32(1).tobytes())
    with h5py.File(path, "a") as file:
        file.create_dataset("Trial0/config/solved", (1,), "f4", external=[(str(tmp_path / "other"), 0, 4)])
    refused(path, tmp_path / "root", "config/solved is kept in another file")


@pytest.mark.parametrize("rows", [1, 0])
def test_a_trial_without_a_step_is_left_out(tmp_path, rows):
    """A log that was stopped at once has an observation, or nothing."""
    short = {key: values[:rows] for key, values in trial().items()}
    write(write(tmp_path / "raw" / "a.h5", **short), "Trial1")
    dataset = rbdata.open_dataset(rbdata.convert(tmp_path / "raw", "my/x", root=tmp_path, source="roboset", procs=0))
    assert dataset.episodes.lengths.tolist() == [4] and dataset["episode"].tolist() == [1] * 4
    assert dataset.manifest.counts["empty_episodes"] == 1
