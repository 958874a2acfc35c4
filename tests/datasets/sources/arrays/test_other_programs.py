"""Files as other programs write them: what is an episode in them, what is read, and what a user may leave out."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import rbdata
from pyarrow import parquet
from rbdata.cli.options import parse_key_values
from rbdata.errors import CorruptSourceError, UsageError
from rbdata.storage.episodes import CUT, TERMINATED, TRUNCATED


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
    return dataset.episodes.lengths.tolist()


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
    assert "--leave-out cam/17/gain,cam/42/gain" in str(raised.value)
    dataset = convert(tmp_path / "lab", leave_out="cam/*/gain", map={"episode": 0})
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


# -- what is an episode --------------------------------------------------------------------------------------------------

#: A flag in the steps of an episode: of robomimic, set in every step of success; of ManiSkill, which may be lost again.
REPEATED = {"to the end": [0, 0, 0, 1, 1, 1], "and lost": [0, 1, 1, 0, 0, 1], "and not at the end": [0, 0, 1, 1, 0, 0]}


def demonstration(flag: list[int], more_states: int = 1, first: int = 0) -> dict[str, np.ndarray]:
    n = len(flag)
    states = np.arange(first, first + n + more_states, dtype=np.float32)[:, None]
    return {"obs": states, "actions": states[:n], "rewards": np.array(flag, np.float32), "dones": np.array(flag)}


@pytest.mark.parametrize(
    "kind, more_states, flag",
    [(kind, 1, "and lost") for kind in ("groups", "groups in data", "one group", "files", "lengths", "numbers", "map")]
    + [(kind, 0, flag) for kind in ("folders", "ends") for flag in REPEATED],
)
def test_a_flag_inside_an_episode_that_the_file_states_ends_nothing(
    kind: str, more_states: int, flag: str, tmp_path: Path
) -> None:
    """It is kept as a leaf, and counted; that of the last row says how the episode ended."""
    count = 1 if kind == "one group" else 3
    episodes = [demonstration(REPEATED[flag], more_states, 10 * k) for k in range(count)]
    together = {key: np.concatenate([one[key] for one in episodes]) for key in episodes[0]}
    path, options = tmp_path / "own.npz", {}
    if "group" in kind:
        inside = "data/" if "data" in kind else ""
        path = tmp_path / "own.hdf5"
        write_hdf5(
            path, {f"{inside}demo_{k}/{key}": value for k, one in enumerate(episodes) for key, value in one.items()}
        )
    elif kind in ("files", "folders", "map"):
        path = tmp_path / "own"
        for k, one in enumerate(episodes):
            name = {"files": f"traj_{k}.npz", "folders": f"episode_{k}/data.npz", "map": f"x_{k}.npz"}[kind]
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            np.savez(path / name, **one)
        options = {"map": {"episode": 0}} if kind == "map" else {}
    else:
        stated = {"lengths": [6] * 3, "ends": [6, 12, 18], "numbers": np.repeat([4, 7, 9], 6)}[kind]
        name = {"lengths": "episode_lengths", "ends": "episode_ends", "numbers": "episode"}[kind]
        np.savez(path, **together, **{name: np.array(stated)})
    dataset = convert(path, unknown_next="zero", **options)
    assert lengths(dataset) == [6] * count
    ended = REPEATED[flag][-1]
    assert dataset.episodes.outcomes.tolist() == [TERMINATED if ended else CUT] * count
    np.testing.assert_array_equal(dataset[:]["info", "dones"].numpy().reshape(-1), REPEATED[flag] * count)
    inner = sum(REPEATED[flag]) - ended
    assert f"Flags set before the end of an episode, which the file states otherwise: {inner * count} steps." in notes(
        dataset
    )


def test_files_whose_names_say_nothing_end_with_an_episode(tmp_path: Path) -> None:
    for k in range(2):
        np.savez(tmp_path / f"{k}.npz", **steps(5), done=np.array([0, 0, 1, 0, 0]))
    assert lengths(convert(tmp_path, unknown_next="zero")) == [3, 2, 3, 2]
    assert lengths(convert(tmp_path, force=True, unknown_next="zero", map={"episode": 0})) == [5, 5]


def test_flags_inside_groups_that_may_hold_several_episodes_end_them(tmp_path: Path) -> None:
    arrays = {f"env_{k}/{key}": value for k in range(2) for key, value in demonstration([0, 1, 0, 1], 0).items()}
    assert lengths(convert(write_hdf5(tmp_path / "own.h5", arrays))) == [2, 2, 2, 2]


def test_a_flag_inside_an_episode_of_a_generator_is_refused() -> None:
    one = {"observation": np.zeros(5), "action": np.zeros(4), "reward": np.zeros(4), "terminated": [0, 1, 0, 1]}
    with pytest.raises(UsageError, match=r"episode 0: a flag is set before the last step of its episode"):
        rbdata.from_episodes([one], "my/x")


@pytest.mark.parametrize(
    "kind, more_states", [("a group", 0), ("a file", 1), ("a map", 1), ("states", 0), ("states", 1)]
)
def test_one_demonstration_without_a_flag_is_an_episode(kind: str, more_states: int, tmp_path: Path) -> None:
    one = {key: value for key, value in demonstration([0] * 6, more_states).items() if key != "dones"}
    options: dict[str, Any] = {}
    if kind == "a group":
        path = write_hdf5(tmp_path / "own.hdf5", {f"data/demo_0/{key}": value for key, value in one.items()})
    elif kind == "a file":
        path = write_hdf5(tmp_path / "episode_0.hdf5", one)
    else:
        path = write_hdf5(tmp_path / "own.hdf5", one)
        options = {"map": {"episode": 0}} if kind == "a map" else {}
    if kind == "states" and not more_states:
        with pytest.raises(UsageError, match="nothing says where episodes end") as raised:
            convert(path, **options)
        assert "episode=0" in str(raised.value)
        return
    assert lengths(convert(path, **options)) == [5 + more_states]


@pytest.mark.parametrize("numbered", ["", "episode", "frame_index"])
@pytest.mark.parametrize("edges, with_next", [([1, 2, 3, 9], False), ([4], False), ([3, 5, 8, 11], True)])
def test_an_episode_goes_on_in_the_next_part(numbered: str, edges: list[int], with_next: bool, tmp_path: Path) -> None:
    """Files of equal sizes, whatever the episodes are; their names say so, or the numbers of their steps."""
    step = np.array([0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2])
    ends = [3, 8, 11]
    columns = {**steps(12), "terminated": np.isin(np.arange(12), ends), "truncated": np.zeros(12, bool)}
    columns |= {"next_obs": columns["obs"] + 1} if with_next else {}
    columns |= {numbered: np.repeat([5, 6, 7], [4, 5, 3]) if numbered == "episode" else step} if numbered else {}
    whole = rbdata.open_dataset(rbdata.from_arrays(columns, "my/whole"))
    parts = [0, *edges, 12]
    for k, (low, high) in enumerate(itertools.pairwise(parts)):
        name = {"episode": f"part-{k}", "frame_index": f"train-{k}"}.get(numbered, f"x-{k:05d}-of-{len(edges) + 1:05d}")
        np.savez(tmp_path / f"{name}.npz", **{key: value[low:high] for key, value in columns.items()})
    dataset = convert(tmp_path)
    assert lengths(dataset) == lengths(whole) == [4, 5, 3]
    for key in whole[:].keys(include_nested=True, leaves_only=True):
        np.testing.assert_array_equal(dataset[:][key].numpy(), whole[:][key].numpy(), str(key))


def test_what_is_left_out_of_any_part_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "x-0-of-2.npz", **steps(4), done=np.zeros(4))
    np.savez(
        tmp_path / "x-1-of-2.npz", **steps(4), done=np.arange(4) == 3, names=np.array(["a"] * 4), table=np.zeros((2, 2))
    )
    dataset = convert(tmp_path)
    assert lengths(dataset) == [8]
    assert set(dataset.manifest.source["left_out"]) == {"names", "table"}


def test_files_that_go_on_in_one_another_have_the_same_flags(tmp_path: Path) -> None:
    np.savez(tmp_path / "x-0-of-2.npz", **steps(4), terminated=np.zeros(4))
    np.savez(tmp_path / "x-1-of-2.npz", **steps(4), terminated=np.zeros(4), truncated=np.arange(4) == 3)
    with pytest.raises(
        UsageError, match=r"x-1-of-2.npz is unlike x-0-of-2.npz: truncated is truncated, and missing there"
    ):
        convert(tmp_path)


# -- layouts of other programs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
def test_the_dump_of_a_d3rlpy_buffer_is_its_episodes(several: bool, tmp_path: Path) -> None:
    """An array per episode and column; observations of several parts have one more number."""
    counts, ended = [5, 13, 4, *[2] * 9], [1, 0, 1, *[0] * 9]
    arrays: dict[str, Any] = {"columns": ["observations", "actions", "rewards", "terminated"]}
    arrays |= {"num_episodes": len(counts), "version": "2.1"}
    for k, n in enumerate(counts):
        rows = np.arange(n, dtype=np.float32)[:, None] + 100 * k
        for part in range(2 if several else 1):
            arrays[f"observations_{k}_{part}" if several else f"observations_{k}"] = rows * (part + 1)
        arrays |= {f"actions_{k}": rows + 1, f"rewards_{k}": rows + 2, f"terminated_{k}": bool(ended[k])}
    dataset = convert(write_hdf5(tmp_path / "buffer.h5", arrays))
    assert lengths(dataset) == [n if end else n - 1 for n, end in zip(counts, ended)]
    assert dataset.episodes.outcomes.tolist() == [TERMINATED if end else CUT for end in ended]
    kept = np.concatenate([np.arange(n if end else n - 1) + 100 * k for k, (n, end) in enumerate(zip(counts, ended))])
    np.testing.assert_array_equal(dataset[:]["action"].numpy()[:, 0], kept + 1)
    key = ("observation", "1") if several else ("observation",)
    np.testing.assert_array_equal(dataset[:][key].numpy()[:, 0], kept * (2 if several else 1))
    with h5py.File(tmp_path / "buffer.h5", "a") as file:
        del file["actions_7"]
    with pytest.raises(CorruptSourceError, match="actions_7 is not there"):
        convert(tmp_path / "buffer.h5", force=True)


@pytest.mark.parametrize(("steps", "cursor"), [(6, "_insertion_idx"), (10, "_index"), (13, "_insertion_idx")])
def test_the_ring_of_a_tianshou_buffer_is_read_in_order(cursor: str, steps: int, tmp_path: Path) -> None:
    """``save_hdf5`` writes the whole ring, and how many of its rows were written."""
    t, size = np.zeros(10, int), min(steps, 10)
    for k in range(steps):
        t[k % 10] = k
    meta = {"obs": np.stack([t, t], 1), "obs_next": np.stack([t + 1, t + 1], 1), "act": t, "rew": t * 2.0}
    meta |= {"terminated": t % 4 == 3, "truncated": np.zeros(10, bool), "done": t % 4 == 3}
    path = write_hdf5(tmp_path / "buffer.hdf5", {f"_meta/{name}": value for name, value in meta.items()})
    with h5py.File(path, "a") as file:
        file["_indices"] = np.arange(10)
        file.attrs.update({"_size": size, cursor: steps % 10, "maxsize": 10, "stack_num": 1})
    dataset, kept = convert(path), np.arange(steps - size, steps)
    np.testing.assert_array_equal(dataset[:]["action"].numpy(), kept)
    np.testing.assert_array_equal(dataset[:]["next", "terminated"].numpy()[:, 0], kept % 4 == 3)
    with h5py.File(path, "a") as file:  # as a buffer for each of several environments is written
        del file.attrs["_size"]
    with pytest.raises(UsageError, match="a ring for each of several environments"):
        convert(path, force=True)


def test_the_hint_for_arrays_of_several_environments_keeps_the_steps_of_each_together() -> None:
    """``[steps, environments]`` of Stable-Baselines3: what the hint says is done, and gives each environment's steps."""
    t = np.arange(12).reshape(6, 2)  # 6 steps of 2 environments
    buffer = {"observations": t[..., None], "actions": t[..., None], "rewards": t * 1.0, "dones": t % 4 == 3}
    with pytest.raises(UsageError, match=r"rewards is .* not one number per step") as raised:
        rbdata.from_arrays(buffer, "my/x")
    assert "swapaxes(0, 1)" in str(raised.value) and "truncated, true in the last step" in str(raised.value)
    flat = {key: value.swapaxes(0, 1).reshape(12, *value.shape[2:]) for key, value in buffer.items()}
    flat["truncated"] = np.arange(12) % 6 == 5
    flat["terminated"] = flat.pop("dones")
    dataset = rbdata.open_dataset(rbdata.from_arrays(flat, "my/x", unknown_next="zero"))
    np.testing.assert_array_equal(dataset[:]["action"].numpy()[:, 0], [*range(0, 12, 2), *range(1, 12, 2)])
    assert lengths(dataset) == [6, 2, 2, 2]


@pytest.mark.parametrize("separator", "/.$")
def test_names_of_groups_end_with_any_separator(separator: str, tmp_path: Path) -> None:
    """LeRobot writes ``observation.state``, MineRL ``observation$compass$angle``."""
    names = [
        name.replace("/", separator) for name in ("observation/compass/angle", "observation/state", "action/camera")
    ]
    arrays = {name: np.zeros((4, 2)) + k for k, name in enumerate(names)}
    np.savez(tmp_path / "own.npz", **arrays, reward=np.zeros(4), done=np.arange(4) == 3)
    dataset = convert(tmp_path / "own.npz")
    assert {"observation/compass/angle", "observation/state", "action/camera"} <= {leaf.name for leaf in dataset.schema}
    assert dataset[:]["action", "camera"].numpy().tolist() == [[2, 2]] * 4


@pytest.mark.parametrize("name", ["{}.npz", "part-{}.npz"])
def test_a_flag_of_one_value_in_a_file_of_an_episode_is_that_of_its_last_step(name: str, tmp_path: Path) -> None:
    for k in range(3):
        np.savez(tmp_path / name.format(k), **steps(5), terminated=np.bool_(k == 0), truncated=np.array([k == 1]))
    dataset = convert(tmp_path)
    assert (lengths(dataset), dataset.episodes.outcomes.tolist()) == ([5, 4, 4], [TERMINATED, TRUNCATED, CUT])


def test_arrays_of_the_whole_file_beside_its_episodes_are_left_out(tmp_path: Path) -> None:
    arrays = {f"episode_{k}/{key}": value for k in range(2) for key, value in demonstration([0, 0, 1]).items()}
    dataset = convert(write_hdf5(tmp_path / "own.h5", {**arrays, "fps": 30, "meta/joints": np.zeros(3)}))
    assert lengths(dataset) == [3, 3]
    assert set(dataset.manifest.source["left_out"]) == {"fps", "meta"}


def test_what_is_not_read_says_how_to_give_it(tmp_path: Path) -> None:
    ragged = pa.table(
        {"obs": [[[0.0], [1.0]], [[2.0]]], "acts": [[0], [1]], "rews": [[0.0], [1.0]], "terminal": [True, True]}
    )
    parquet.write_table(ragged, tmp_path / "rows.parquet")
    with pytest.raises(CorruptSourceError, match="differ in length") as raised:
        convert(tmp_path / "rows.parquet")
    assert "from_episodes(pyarrow.parquet.read_table(PATH).to_pylist(), ID)" in str(raised.value)
    rows = [{**row, "obs": row["obs"][:2]} for row in ragged.to_pylist()]
    assert lengths(rbdata.open_dataset(rbdata.from_episodes(rows, "my/rows"))) == [1, 1]
    (tmp_path / "own.zarr").mkdir()
    (tmp_path / "own.zarr/.zgroup").write_text("{}")
    with pytest.raises(UsageError, match=r"own\.zarr is a Zarr store, which is not read"):
        rbdata.convert(tmp_path / "own.zarr", "my/x")
    np.savez(tmp_path / "expert.npz", **steps(6), episode_starts=np.arange(6) % 3 == 0)
    with pytest.raises(UsageError, match="episode_starts may say where episodes end") as refused:
        convert(tmp_path / "expert.npz")
    assert "numpy.cumsum" in str(refused.value)
    for k in range(2):
        write_hdf5(
            tmp_path / f"aloha/episode_{k}.hdf5", {"observations/qpos": np.ones((4, 2)), "action": np.ones((4, 2))}
        )
    with pytest.raises(UsageError, match="no array is the reward") as missing:
        rbdata.convert(tmp_path / "aloha", "my/x")
    assert str(missing.value.hint).startswith("state it in the map, ")
    assert lengths(convert(tmp_path / "aloha", map={"reward": 0})) == [3, 3]
