"""Exports, read back by the libraries they are for and by `rbdata convert`: the same values and episodes."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import rbdata
from pyarrow import parquet
from rbdata.datasets.export import write_export
from rbdata.errors import DatasetExistsError, ExportWarning, UsageError
from tensordict import TensorDict

LENGTHS = [5, 1, 9, 30]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


def episodes(kind: str) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for number, length in enumerate(LENGTHS):
        vector = rng.normal(size=(length + 1, 3)).astype(np.float32)
        frames = rng.integers(0, 5, (length + 1, 36, 36, 1), np.uint8)
        observation = {"vector": vector, "frames": frames, "both": {"pixels": frames, "state": vector}}[kind]
        yield {
            "observation": observation,
            "action": rng.normal(size=(length, 2)).astype(np.float32) if number >= 0 else None,
            "reward": rng.normal(size=length).astype(np.float32),
            "terminated": number % 2 == 0,
            "truncated": number % 2 == 1,
            "info": {"goal": rng.normal(size=(length, 2))},
        }


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], rbdata.Dataset]:
    """Opens a dataset of `episodes`, which no test changes."""
    shelf = tmp_path_factory.mktemp("shelf")
    for kind in ("vector", "frames", "both"):
        rbdata.from_episodes(episodes(kind), f"my/{kind}", root=shelf)
    return lambda kind: rbdata.open_dataset(shelf / "my" / kind)


def assert_same(one: rbdata.Dataset, other: rbdata.Dataset) -> None:
    assert set(one.schema.names) == set(other.schema.names)
    assert one.episodes.lengths.tolist() == other.episodes.lengths.tolist()
    assert one.episodes.outcomes.tolist() == other.episodes.outcomes.tolist()
    for name in one.schema.names:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
        assert one[name].dtype == other[name].dtype


@pytest.mark.parametrize(
    ("to", "kind"),
    [("npz", "both"), ("npz", "vector"), ("parquet", "both"), ("parquet", "frames"), ("torchrl", "both")],
)
def test_what_is_exported_is_converted_to_the_same(make: Any, kind: str, to: Any, tmp_path: Path) -> None:
    dataset = make(kind)
    path = rbdata.export(dataset, tmp_path / "out", to)
    given = {"episode": "episode"} if to == "parquet" else {}
    back = rbdata.open_dataset(rbdata.convert(path, "my/back", source="arrays", map=given))
    assert_same(back, dataset)


def test_a_table_that_was_exported_is_converted_with_its_shapes(tmp_path: Path) -> None:
    """It is not taken for OpenML's, and rows of one number stay rows, as Pendulum's actions are."""
    steps = {"action": np.zeros((4, 1), np.float32), "one": np.arange(4)[:, None], "plain": np.arange(4)}
    one = {"observation": np.arange(5.0)[:, None], "reward": np.zeros(4), "truncated": True, "info": steps.pop("one")}
    dataset = rbdata.open_dataset(rbdata.from_episodes([{**one, **steps}], "my/ones"))
    path = rbdata.export(dataset, tmp_path / "out", "parquet")
    back = rbdata.open_dataset(rbdata.convert(path, "my/back"))
    for name in set(dataset.schema.names) - {"info", "plain"}:
        assert back[name].shape == dataset[name].shape
    assert_same(back, dataset)


@pytest.mark.parametrize(("to", "name"), [("parquet", "step"), ("rlds", "is_first")])
def test_a_leaf_with_a_name_of_the_format_is_refused(to: Any, name: str, tmp_path: Path) -> None:
    """It was lost, or two columns had one name."""
    one = {"observation": np.zeros((5, 2)), "action": np.zeros(4), "reward": np.zeros(4), "truncated": True}
    dataset = rbdata.open_dataset(rbdata.from_episodes([{**one, name: np.arange(4)}], "my/x"))
    with pytest.raises(UsageError, match=name):
        rbdata.export(dataset, tmp_path / "out", to)
    assert not list(tmp_path.glob("*out*"))


def test_rlds_is_converted_to_the_same(make: Any, tmp_path: Path) -> None:
    dataset = make("both")
    path = rbdata.export(dataset, tmp_path / "my_robot" / "2.0.0", "rlds")
    assert sorted(file.name for file in path.iterdir())[-1] == "my_robot-train.tfrecord-00000-of-00001"
    back = rbdata.open_dataset(rbdata.convert(path, "my/back"))
    assert_same(back, dataset)
    assert back.manifest.source["metadata"]["version"] == "2.0.0"


def test_rlds_of_every_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several files; names that are taken stay under ``info``."""
    monkeypatch.setattr("rbdata.datasets.formats.tfds._FILE_BYTES", 100)
    rng = np.random.default_rng(0)
    made = []
    for length in (3, 1, 4):
        info: dict[str, Any] = {
            dtype: rng.integers(0, 2, (length, 3)).astype(dtype)
            for dtype in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
        }
        info["int64"] = rng.integers(-(1 << 63), (1 << 63) - 1, (length, 3))
        info["float64"] = rng.normal(size=(length, 3))
        info["reward"] = rng.normal(size=length)
        one = {"observation": rng.normal(size=(length + 1, 2)), "action": rng.integers(-9, 9, length)}
        made.append({**one, "reward": np.ones(length, np.float32), "info": info})
    dataset = rbdata.open_dataset(rbdata.from_episodes(iter(made), "my/kinds"))
    path = rbdata.export(dataset, tmp_path / "Odd-Name", "rlds")
    assert len(list(path.glob("odd_name-train.tfrecord-*-of-00003"))) == 3
    back = rbdata.open_dataset(rbdata.convert(path, "my/back", source="rlds", last_row="observation"))
    assert {name.replace("info/info", "info") for name in back.schema.names} == set(dataset.schema.names)
    assert back.episodes.outcomes.tolist() == dataset.episodes.outcomes.tolist()
    for name in dataset.schema.names:
        found = back["info/info/reward" if name == "info/reward" else name]
        assert found.dtype == dataset[name].dtype
        np.testing.assert_array_equal(found, dataset[name])


def test_arrays_of_numpy(make: Any, tmp_path: Path) -> None:
    dataset = make("both")
    with np.load(rbdata.export(dataset, tmp_path / "out", "npz")) as arrays:
        assert set(arrays) == {
            *("observation/pixels", "observation/state", "action", "info/goal", "next/reward", "next/done"),
            *("next/terminated", "next/truncated", "episode_lengths"),
        }
        assert arrays["episode_lengths"].tolist() == LENGTHS
        for name in ("pixels", "state"):  # a row per state
            wanted = np.concatenate([one["observation"][name] for one in episodes("both")])
            np.testing.assert_array_equal(arrays[f"observation/{name}"], wanted)
        np.testing.assert_array_equal(arrays["next/reward"], dataset["next/reward"])
    vector = make("vector")
    with np.load(rbdata.export(vector, tmp_path / "vector", "npz")) as arrays:
        np.testing.assert_array_equal(arrays["observation"], vector["observation"])
        np.testing.assert_array_equal(arrays["next/observation"], vector["next/observation"])


def test_d4rl_reads_transitions(make: Any, tmp_path: Path) -> None:
    dataset = make("frames")
    path = rbdata.export(dataset.path, tmp_path / "out", "d4rl")
    assert path.name == "out.hdf5"
    with h5py.File(
        path
    ) as file:  # as d4rl.qlearning_dataset: rows that time-outs end have no successor in the next row
        end = np.array(file["timeouts"]) | np.array(file["terminals"])
        rows = np.flatnonzero(~end[:-1])
        states = np.array(file["observations"])
        np.testing.assert_array_equal(states[rows + 1], dataset["next/observation"].numpy()[rows])
        np.testing.assert_array_equal(file["next_observations"], dataset["next/observation"])
        np.testing.assert_array_equal(file["rewards"], dataset["next/reward"].reshape(-1))
        np.testing.assert_array_equal(file["terminals"], dataset["next/terminated"].reshape(-1))
        np.testing.assert_array_equal(file["infos/goal"], dataset["info/goal"])
    assert_same(rbdata.open_dataset(rbdata.convert(path, "my/back", source="d4rl")), dataset)


def test_d4rl_holds_one_array_of_observations(make: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one array"):
        rbdata.export(make("both"), tmp_path / "out", "d4rl")
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("kind", ["vector", "both"])
def test_minari_iterates_the_episodes(make: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    dataset = make(kind)
    with pytest.warns(ExportWarning, match="info/goal"):
        rbdata.export(dataset, tmp_path / "minari" / "mine" / "x-v0", "minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    loaded = minari.load_dataset("mine/x-v0")
    assert loaded.total_steps == sum(LENGTHS)
    for found, wanted in zip(loaded.iterate_episodes(), episodes(kind), strict=True):
        states = wanted["observation"]
        leaves = states if isinstance(states, dict) else {"": states}
        for name, values in leaves.items():
            np.testing.assert_array_equal(found.observations[name] if name else found.observations, values)
        np.testing.assert_array_equal(found.actions, wanted["action"])
        np.testing.assert_array_equal(found.rewards, wanted["reward"])
        assert (found.terminations[-1], found.truncations[-1]) == (wanted["terminated"], wanted["truncated"])
        assert not found.terminations[:-1].any()
    back = rbdata.open_dataset(rbdata.convert(tmp_path / "minari" / "mine" / "x-v0", "my/back"))
    for name in back.schema.names:
        np.testing.assert_array_equal(back[name], dataset[name], err_msg=name)


def test_minari_makes_the_environment_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `make_env` does, with its arguments; of own data nothing is stated."""
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    arguments = {"sutton_barto_reward": True}
    recorded = rbdata.record("CartPole-v1", steps=20, env_args=arguments)
    stated = rbdata.from_episodes(episodes("vector"), "my/stated", environment="MountainCar-v0")
    for name, path, wanted in (("a-v0", recorded, "CartPole-v1"), ("b-v0", stated, "MountainCar-v0")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExportWarning)
            rbdata.export(path, tmp_path / "minari" / name, "minari")
        with minari.load_dataset(name).recover_environment() as env:
            assert env.spec.id == wanted
            assert name != "a-v0" or env.unwrapped._sutton_barto_reward
        back = rbdata.open_dataset(rbdata.convert(tmp_path / "minari" / name, f"my/{name}"))
        with back.make_env() as env:
            assert env.spec.id == wanted
    with pytest.warns(ExportWarning, match="environment is not stated: nowhere/None-v0"):
        unknown = rbdata.from_episodes(episodes("vector"), "my/unknown", environment="nowhere/None-v0")
        rbdata.export(unknown, tmp_path / "minari" / "c-v0", "minari")
    assert minari.load_dataset("c-v0").env_spec is None


@pytest.mark.parametrize(("to", "shape"), [("npz", ()), ("parquet", (1,)), ("parquet", (2,)), ("torchrl", ())])
def test_numbered_leaves_stay_apart(to: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Columns ``x_0`` and ``x_1`` of a table of someone else's are one array; leaves of an export are not."""

    def numbered(rows: int, first: int) -> dict[str, np.ndarray]:
        whole = np.arange(rows).reshape(-1, *[1] * len(shape)) + np.zeros(shape)
        return {f"agent_{number}": whole + 1000 * number + first for number in range(2)}

    made = [
        {"observation": numbered(5, first), "action": np.arange(4), "reward": np.ones(4), "terminated": True}
        | {"info": {**numbered(4, 7), "img_0": numbered(4, 9)["agent_0"]}}
        for first in (0, 100)
    ]
    dataset = rbdata.open_dataset(rbdata.from_episodes(made, "my/agents"))
    target = rbdata.export(dataset, tmp_path / f"out{'.' + to if to != 'torchrl' else ''}", to=to)
    assert_same(dataset, rbdata.open_dataset(rbdata.convert(target, "my/back")))


def test_a_table_with_a_leaf_episode_is_refused(make: Any, tmp_path: Path) -> None:
    def named(td: TensorDict) -> TensorDict:
        return td.set("episode", td["action"][:, 0].clone())

    dataset = rbdata.open_dataset(rbdata.preprocess(make("vector"), named, dest="my/named"))
    with pytest.raises(UsageError, match="a leaf episode"):
        rbdata.export(dataset, tmp_path / "out", to="parquet")


@pytest.mark.parametrize(
    ("to", "named"),
    [
        ("d4rl", None),
        ("rlds", "info/goal: its column is info/goal."),
        ("lerobot", "info/goal: its column is info.goal."),
    ],
)
def test_leaves_with_the_same_name_in_info_stay_apart(make: Any, to: Any, named: str | None, tmp_path: Path) -> None:
    def beside(td: TensorDict) -> TensorDict:
        return td.set("goal", td["action"] + 100)

    dataset = rbdata.open_dataset(rbdata.preprocess(make("vector"), beside, dest="my/beside"))
    if named is None:  # one of the two was lost
        with pytest.raises(UsageError, match="leaves info/goal and goal"):
            rbdata.export(dataset, tmp_path / "out", to)
        return
    assert named in write_export(dataset, tmp_path / "out", to).notes


def test_task_and_the_task_of_info_have_one_column_in_lerobot(make: Any, tmp_path: Path) -> None:
    def tasks(td: TensorDict) -> TensorDict:
        return td.set("task", td["action"]).set(("info", "task"), td["action"] + 1)

    dataset = rbdata.open_dataset(rbdata.preprocess(make("vector"), tasks, dest="my/tasks"))
    with pytest.raises(UsageError, match="leaves info/task and task"):
        rbdata.export(dataset, tmp_path / "out", "lerobot")


def test_npz_has_an_array_of_its_own(make: Any, tmp_path: Path) -> None:
    def named(td: TensorDict) -> TensorDict:
        return td.set("episode_lengths", td["action"][:, 0].clone())

    dataset = rbdata.preprocess(make("vector"), named, dest="my/named")
    with pytest.raises(UsageError, match="a leaf episode_lengths"):
        rbdata.export(dataset, tmp_path / "out.npz", to="npz")
    assert not (tmp_path / "out.npz").exists()


def test_parquet_is_a_table_of_steps(make: Any, tmp_path: Path) -> None:
    dataset = make("both")
    table = parquet.read_table(rbdata.export(dataset, tmp_path / "out", "parquet"))
    assert table["episode"].to_pylist() == np.repeat(range(4), LENGTHS).tolist()
    assert table["step"].to_pylist() == [step for length in LENGTHS for step in range(length)]
    np.testing.assert_array_equal(np.stack(table["observation/pixels"].to_pylist()), dataset["observation/pixels"])
    np.testing.assert_array_equal(table["next/reward"].to_numpy(), dataset["next/reward"].reshape(-1))


def test_tensordict_maps_the_folder(make: Any, tmp_path: Path) -> None:
    dataset = make("both")
    mapped = TensorDict.load_memmap(rbdata.export(dataset, tmp_path / "out", "torchrl"))
    assert (mapped == dataset.to_tensordict()).all()


@pytest.mark.parametrize("to", ["npz", "d4rl", "minari", "parquet", "torchrl", "rlds"])
def test_what_the_data_cut_is_said(to: Any, tmp_path: Path) -> None:
    one = next(episodes("vector")) | {"terminated": False, "truncated": False}
    del one["info"]
    dataset = rbdata.open_dataset(rbdata.from_episodes([one], "my/cut"))
    assert dataset.episodes.outcomes.tolist() == [3]
    done = write_export(dataset, tmp_path / "out-v0", to)
    assert ("1 episode that the data cut counts as truncated" in " ".join(done.notes)) == (to != "rlds")
    back = rbdata.open_dataset(rbdata.convert(done.path, "my/back", procs=1))
    assert back.episodes.outcomes.tolist() == [3 if to == "rlds" else 2]


def test_a_beginning_that_the_data_lack_is_said(make: Any, tmp_path: Path) -> None:
    view = make("vector").select(steps=[1, 2, 3, 4, 5])
    assert view.episodes.midway.tolist() == [True, False]
    done = write_export(view, tmp_path / "out", "npz")
    assert "the beginning of 1 episode is not in the data, which the format does not say" in " ".join(done.notes)


@pytest.mark.parametrize("to", ["npz", "d4rl", "minari", "parquet", "torchrl", "rlds"])
def test_that_an_end_is_both_is_held_or_said(to: Any, tmp_path: Path) -> None:
    one = next(episodes("vector")) | {"terminated": True, "truncated": True}
    del one["info"]
    done = write_export(rbdata.open_dataset(rbdata.from_episodes([one], "my/ends")), tmp_path / "out-v0", to)
    back = rbdata.open_dataset(rbdata.convert(done.path, "my/back", procs=1))
    said = "terminated and truncated at once are terminals only" in " ".join(done.notes)
    assert bool(back["next/truncated"][-1]) != said


@pytest.mark.parametrize("to", ["rlds", "minari"])
def test_force_replaces_exports_alone(make: Any, to: Any, tmp_path: Path) -> None:
    """It deleted whatever was in the folder."""
    dataset, own = make("vector"), tmp_path / "out-v0"
    own.mkdir()
    rbdata.export(dataset, own, to, force=True)  # an empty folder
    rbdata.export(dataset, own, to, force=True)
    work = tmp_path / "work-v0"
    work.mkdir()
    (work / "thesis.txt").write_text("precious")
    with pytest.raises(DatasetExistsError, match="work-v0 is a folder that holds something other than an export"):
        rbdata.export(dataset, work, to, force=True)
    assert (work / "thesis.txt").read_text() == "precious"
    with pytest.raises(DatasetExistsError, match="is a dataset: it is not replaced"):
        rbdata.export(dataset, shutil.copytree(dataset.path, tmp_path / "x-v0"), to, force=True)


def test_force_replaces_no_folder_by_a_file(make: Any, tmp_path: Path) -> None:
    (tmp_path / "out.npz").mkdir()
    with pytest.raises(DatasetExistsError, match="it is not replaced"):
        rbdata.export(make("vector"), tmp_path / "out.npz", "npz", force=True)


def test_an_export_has_a_name(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one was the current folder, and with a suffix a file beside it."""
    monkeypatch.chdir(tmp_path)
    dataset = make("vector")
    for dest in ("", ".", Path()):
        with pytest.raises(UsageError, match="is the current folder"):
            rbdata.export(dataset, dest, "npz", force=True)


@pytest.mark.parametrize("to", ["minari", "rlds", "lerobot"])
def test_successors_that_are_not_the_next_observation_are_not_lost(make: Any, to: Any, tmp_path: Path) -> None:
    """The format has a row per state; those of several steps would become those of one."""

    def elsewhere(td: TensorDict) -> TensorDict:
        return td.set(("next", "observation"), td["next", "observation"] + 1)

    path = rbdata.preprocess(make("vector"), elsewhere, dest="my/n", procs=1)
    with pytest.raises(UsageError, match=r"next/observation of step 0 .* the observation of the step that follows"):
        write_export(rbdata.open_dataset(path), tmp_path / "out-v0", to)
    assert not (tmp_path / "out-v0").exists()
    write_export(rbdata.open_dataset(path), tmp_path / "out", "torchrl")


def test_successors_that_differ_by_rounding_are_said(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(6, 3))
    successors = states[1:] * (1 + 1e-9)
    flags = {"action": np.zeros((5, 1)), "reward": np.zeros(5), "terminated": np.arange(5) == 4}
    arrays = {"observation": states[:-1], "next_observation": successors, **flags}
    dataset = rbdata.open_dataset(rbdata.from_arrays(arrays, "my/rounded"))
    assert len(dataset.episodes) == 1
    done = write_export(dataset, tmp_path / "out-v0", "rlds")
    assert (
        "next/observation becomes the observation of the step that follows, which differs by rounding" in done.notes[0]
    )


def test_an_existing_target_is_kept_unless_asked(make: Any, tmp_path: Path) -> None:
    dataset = make("vector")
    (tmp_path / "out.npz").write_text("mine")
    with pytest.raises(DatasetExistsError):
        rbdata.export(dataset, tmp_path / "out", "npz")
    assert (tmp_path / "out.npz").read_text() == "mine"
    rbdata.export(dataset, tmp_path / "out", "npz", force=True)
    assert np.load(tmp_path / "out.npz")["action"].shape == (sum(LENGTHS), 2)


def test_names_that_a_format_does_not_take(make: Any, tmp_path: Path) -> None:
    dataset = make("vector")
    with pytest.raises(UsageError, match="x-v0"):
        rbdata.export(dataset, tmp_path / "x", "minari")
    with pytest.raises(UsageError, match="npz"):
        rbdata.export(dataset, tmp_path / "x", "zarr")
    assert not list(tmp_path.glob("*x*"))


def test_an_interrupted_export_leaves_nothing(make: Any, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for to in ("npz", "d4rl", "parquet", "torchrl"):
        with pytest.raises(KeyboardInterrupt):
            write_export(make("vector"), tmp_path / "out", to, report=interrupt)
        assert not list(tmp_path.glob("*out*"))


# -- in Python -----------------------------------------------------------------------------------------------------------


def test_arrays_in_memory(make: Any) -> None:
    dataset = make("both")
    arrays = dataset.to_numpy()
    assert set(arrays) == set(dataset.schema.names)
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, dataset[name])
    assert list(dataset.to_numpy([("next", "reward"), "action"])) == ["next/reward", "action"]
    below = dataset.to_numpy(["observation"])  # it returned dictionaries
    assert set(below) == {"observation/pixels", "observation/state"} == set(dataset.to_numpy("observation"))
    np.testing.assert_array_equal(below["observation/state"], dataset["observation/state"])
    with pytest.raises(rbdata.RbdataError, match="rewards"):
        dataset.to_numpy(["rewards"])


@pytest.mark.parametrize("kind", ["vector", "frames"])
def test_transitions_as_those_of_d4rl(make: Any, kind: str) -> None:
    dataset = make(kind)
    arrays = dataset.qlearning()
    wanted = [one["observation"] for one in episodes(kind)]
    np.testing.assert_array_equal(arrays["observations"], np.concatenate([states[:-1] for states in wanted]))
    np.testing.assert_array_equal(arrays["next_observations"], np.concatenate([states[1:] for states in wanted]))
    np.testing.assert_array_equal(arrays["rewards"], np.concatenate([one["reward"] for one in episodes(kind)]))
    ends = np.cumsum(LENGTHS) - 1
    assert np.flatnonzero(arrays["terminals"]).tolist() == ends[::2].tolist()
    with pytest.raises(rbdata.RbdataError, match="observation"):
        make("both").qlearning()


def test_episodes_one_by_one_and_as_a_table(make: Any) -> None:
    dataset = make("vector")
    for found, wanted in zip(dataset.iter_episodes(), episodes("vector"), strict=True):
        np.testing.assert_array_equal(found["observation"], wanted["observation"][:-1])
    table = dataset.episodes.to_arrow().to_pydict()
    assert table["length"] == LENGTHS
    assert table["outcome"] == ["terminated", "truncated"] * 2
    assert table["episode"] == [0, 1, 2, 3]
    np.testing.assert_allclose(table["return"], [one["reward"].sum() for one in episodes("vector")], rtol=1e-5)
    pandas = pytest.importorskip("pandas")
    assert dataset.episodes.to_pandas().equals(pandas.DataFrame(table))
