"""Values, episodes and flags of RoboSet, beside the transitions that were meant and beside a plain reader of random logs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pytest
import rbdata
from effort import examples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from paths import DATA
from rbdata.storage.integrity import verify
from transitions_truth import Truth

TRUTH = DATA / "roboset/truth"


def converted(folder: Path, root: Path):
    path = rbdata.convert(folder, "my/x", root=root, procs=0)
    assert verify(path).ok
    return rbdata.open_dataset(path)


def write(path: Path, trials: dict[str, dict[str, np.ndarray]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        for trial, arrays in trials.items():
            for key, values in arrays.items():
                how = {"compression": "gzip"} if np.ndim(values) else {}
                file.create_dataset(f"{trial}/{key}", data=values, **how)
    return path


@pytest.mark.parametrize("name", ["FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4", "DAPG(human)/door_v2d-v1"])
def test_transitions_are_those_that_were_meant(tmp_path, name):
    """Trap 86: reward and done of a row belong to its observation; no step of the last row; trials by their number."""
    rbdata.download(f"roboset/{name}", root=tmp_path, mirror=DATA / "roboset", procs=0)
    dataset = rbdata.open_dataset(f"roboset/{name}", root=tmp_path)
    Truth.of_file(TRUTH / f"{name.replace('/', '_')}.npz").check(dataset)
    assert verify(dataset.path).ok
    trials = dataset["episode"][dataset.episode_starts[:-1]].tolist()
    files = dataset["seed"][dataset.episode_starts[:-1]].tolist()
    assert list(zip(files, trials)) == sorted(zip(files, trials)) and trials[:3] == [0, 1, 2][: len(trials)]
    assert "info/proprio_dict" not in dataset.schema and dataset.manifest.counts["empty_arrays"]
    assert (dataset["next/info/rwd_sparse"].float() == dataset["next/info/rwd_sparse"].float()).all()


def test_a_real_robot_has_cameras_and_no_reward(tmp_path):
    rbdata.download("roboset/real/set_0_trace", root=tmp_path, mirror=DATA / "roboset", procs=0)
    dataset = rbdata.open_dataset("roboset/real/set_0_trace", root=tmp_path)
    truth = np.load(TRUTH / "real_set_0.npz")
    joints = [dataset[f"observation/{key}"].numpy() for key in ("qp_arm", "qv_arm", "qp_ee", "qv_ee")]
    assert np.array_equal(np.concatenate(joints, 1), truth["obs"])
    actions = [dataset[f"action/{key}"].numpy() for key in ("ctrl_arm", "ctrl_ee")]
    assert np.array_equal(np.concatenate(actions, 1), truth["action"])
    with h5py.File(DATA / "roboset/real/set_0_trace.h5") as file:
        for camera in ("rgb_left", "rgb_right", "rgb_top", "rgb_wrist", "d_left"):
            frames = file["Trial0/data"][camera][:]
            assert np.array_equal(dataset[f"observation/{camera}"].numpy(), frames[:-1])
            assert np.array_equal(dataset[f"next/observation/{camera}"].numpy(), frames[1:])
    assert not dataset["next/reward"].any() and dataset["next/truncated"][-1]
    assert dataset["info/solved"].isnan().all() and any("no rewards" in note for note in dataset.manifest.notes)


def simulated(rng, rows, *, done=(), nan=(), last_action=False, dtype="f8", cameras=False):
    arrays = {
        "observations": rng.normal(size=(rows, 3)).astype(dtype),
        "actions": rng.normal(size=(rows, 2)).astype(dtype),
        "rewards": rng.normal(size=rows).astype(dtype),
        "done": np.isin(np.arange(rows), done),
        "time": np.arange(rows).astype(dtype),
        "env_infos/solved": np.zeros(rows, bool),
        "env_infos/obs_dict/qp:arm": rng.normal(size=(rows, 2)).astype(dtype),
        "env_infos/proprio_dict": np.full(rows, np.nan, "f2"),
        "user_cmt": np.array([b"a text"]),
    }
    if cameras:
        arrays["env_infos/visual_dict/rgb:left_cam:20x20:2d"] = rng.integers(0, 256, (rows, 20, 20, 3), np.uint8)
    if not last_action:
        arrays["actions"][-1] = np.nan
    arrays["actions"][list(nan)] = np.nan
    return arrays


def plain_truth(truth: Truth, arrays: dict[str, np.ndarray]) -> None:
    """A loop over rows: an episode ends with a done, before a step that has NaN, and with the last row."""
    obs, action, reward, done = (arrays[key] for key in ("observations", "actions", "rewards", "done"))
    first = 0
    for t in range(len(obs) - 1):
        if np.isnan(action[t]).any():
            if t > first:
                truth.add(obs[first : t + 1], action[first:t], reward[first + 1 : t + 1], "cut")
            first = t + 1
        elif done[t + 1] or t == len(obs) - 2:
            end = "terminated" if done[t + 1] else "truncated"
            truth.add(obs[first : t + 2], action[first : t + 1], reward[first + 1 : t + 2], end)
            first = t + 1


@st.composite
def logs(draw):
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    dtype, cameras = draw(st.sampled_from(["f8", "f4", "f2", ">f8"])), draw(st.booleans())
    made = []
    for _ in range(draw(st.integers(1, 2))):
        trials = {}
        for number in draw(st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True)):
            rows = draw(st.integers(2, 9))
            some = st.lists(st.integers(0, rows - 1), max_size=2)
            trials[f"Trial{number}"] = simulated(
                rng,
                rows,
                done=draw(some),
                nan=draw(some),
                last_action=draw(st.booleans()),
                dtype=dtype,
                cameras=cameras,
            )
        made.append(trials)
    return made


def truth_of(made) -> Truth:
    truth = Truth()
    for trials in made:
        for name in sorted(trials, key=lambda name: int(name[5:])):
            plain_truth(truth, trials[name])
    return truth


@settings(max_examples=examples(8), phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
@given(logs().filter(lambda made: truth_of(made).episodes))
def test_logs_of_any_shape(made):
    with TemporaryDirectory() as folder:
        for number, trials in enumerate(made):
            write(Path(folder) / "raw" / f"policy{number}_trace.h5", trials)
        dataset = converted(Path(folder) / "raw", Path(folder) / "root")
        truth_of(made).check(dataset)
        arrays = [arrays for trials in made for arrays in trials.values()]
        nan = sum(int(np.isnan(one["actions"][:-1]).any(1).sum()) for one in arrays)
        assert dataset.manifest.counts["unusable_steps"] == nan
        assert dataset.manifest.counts["given_up_steps"] == sum(
            not np.isnan(one["actions"][-1]).any() for one in arrays
        )
        assert "info/obs_dict/qp_arm" in dataset.schema and "info/user_cmt" not in dataset.schema


def real(rng, rows, **lengths):
    arrays = {
        **{f"data/{key}": rng.normal(size=(rows, 7)).astype("f2") for key in ("qp_arm", "qv_arm", "ctrl_arm")},
        **{f"data/{key}": rng.normal(size=(rows, 1)).astype("f2") for key in ("qp_ee", "qv_ee", "ctrl_ee")},
        "data/rgb_left": rng.integers(0, 256, (rows, 24, 40, 3), np.uint8),
        "data/time": np.arange(rows).astype("f2"),
        "derived/pose_ee": rng.normal(size=(rows, 6)).astype("f2"),
    }
    return {key: values[: lengths.get(key.partition("/")[2], rows)] for key, values in arrays.items()}


def test_trials_of_unequal_arrays_and_with_success(tmp_path):
    rng = np.random.default_rng(0)
    trials = {
        "Trial0": {**real(rng, 6, rgb_left=4, qv_arm=5), "config/solved": np.float16(1)},
        "Trial1": real(rng, 3),
        "Trial2": real(rng, 1),
    }
    write(tmp_path / "raw" / "x.h5", trials)
    dataset = converted(tmp_path / "raw", tmp_path / "root")
    assert dataset.episodes.lengths.tolist() == [3, 2]
    counts = dataset.manifest.counts
    assert counts["unequal_trials"] == 1 and counts["empty_episodes"] == 1
    assert np.array_equal(dataset["observation/rgb_left"][:3].numpy(), trials["Trial0"]["data/rgb_left"][:3])
    assert np.array_equal(dataset["next/observation/pose_ee"][3:].numpy(), trials["Trial1"]["derived/pose_ee"][1:])
    assert dataset["info/solved"][:3].eq(1).all() and dataset["info/solved"][3:].isnan().all()
