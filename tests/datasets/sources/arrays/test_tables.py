"""Files of every kind as tables, written by their own libraries: the same arrays come out; what is not read is said."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
import rbdata
import torch
from pyarrow import feather, ipc, parquet
from rbdata.datasets.sources.arrays.opening import open_tables
from rbdata.datasets.sources.arrays.roles import find_roles
from rbdata.datasets.sources.arrays.tables import join_columns, memory_table
from rbdata.errors import CorruptSourceError, UsageError
from tensordict import TensorDict

N = 500


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(N, 3)).astype(np.float32),
        "act": rng.integers(0, 4, N),
        "rew": rng.normal(size=N),
        "done": rng.random(N) < 0.1,
    }


def as_table(data: dict[str, np.ndarray]) -> pa.Table:
    flat = pa.FixedSizeListArray.from_arrays(pa.array(data["obs"].reshape(-1)), 3)
    return pa.table({"obs": flat, **{name: pa.array(values) for name, values in data.items() if name != "obs"}})


def write_csv(path: Path, data: dict[str, np.ndarray], delimiter: str = ",") -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["obs_0", "obs_1", "obs_2", "act", "rew", "done"])
        for i in range(N):
            writer.writerow([*data["obs"][i].tolist(), data["act"][i], data["rew"][i], data["done"][i]])


def write_hdf5(path: Path, data: dict[str, np.ndarray]) -> None:
    with h5py.File(path, "w") as file:
        for name, values in data.items():
            file[name] = values


def write_streams(path: Path, data: dict[str, np.ndarray]) -> None:
    with ipc.new_stream(str(path), as_table(data).schema) as writer:
        writer.write_table(as_table(data), max_chunksize=64)


def write_npy_files(path: Path, data: dict[str, np.ndarray]) -> None:
    path.mkdir()
    for name, values in data.items():
        np.save(path / f"{name}.npy", values)


WRITERS: dict[str, Callable[[Path, dict[str, np.ndarray]], Any]] = {
    "stored.npz": lambda path, data: np.savez(path, **data),
    "packed.npz": lambda path, data: np.savez_compressed(path, **data),
    "folder": write_npy_files,
    "a.h5": write_hdf5,
    "a.csv": write_csv,
    "a.tsv": lambda path, data: write_csv(path, data, "\t"),
    "a.parquet": lambda path, data: parquet.write_table(as_table(data), path, row_group_size=64),
    "a.feather": lambda path, data: feather.write_feather(as_table(data), str(path), chunksize=64),
    "a.arrow": write_streams,
    "memmap": lambda path, data: TensorDict(dict(data), [N]).memmap(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_same_arrays_come_out(name: str, tmp_path: Path) -> None:
    data = arrays()
    WRITERS[name](tmp_path / name, data)
    with open_tables(tmp_path / name, tmp_path / "scratch") as tables:
        (table,) = tables
        if name.endswith((".csv", ".tsv")):
            table.values["obs"] = table.values.pop(str(join_columns(table, {})["observation"]))
        assert set(data) <= set(table.arrays)
        for key, values in data.items():
            found = table.read(key, 0, N)
            np.testing.assert_array_equal(found, values, err_msg=key)
            if not name.endswith((".csv", ".tsv")):  # text states no width
                assert found.dtype == values.dtype
            np.testing.assert_array_equal(table.read(key, 100, 103), values[100:103])


@pytest.mark.parametrize("written", [10, 50, 73])
@pytest.mark.parametrize("package", ["rbdata", "torchrl.data"])
def test_a_replay_buffer_checkpoint_is_its_records_in_the_order_written(
    package: str, written: int, tmp_path: Path
) -> None:
    data = pytest.importorskip(package)
    buffer = data.TensorDictReplayBuffer(storage=data.LazyMemmapStorage(50), batch_size=2)
    steps = torch.arange(written)
    for some in steps.split(7):
        buffer.extend(TensorDict({"obs": some[:, None] * 1.0, "next": {"reward": some[:, None]}}, [len(some)]))
    buffer.dumps(tmp_path / "checkpoint")
    with open_tables(tmp_path / "checkpoint", tmp_path / "scratch") as (table,):
        assert set(table.arrays) == {"obs", "next/reward"}
        wanted = steps[-50:].numpy()
        assert table.read("obs", 0, 100).reshape(-1).tolist() == wanted.tolist()
        for low in range(0, len(wanted), 3):
            assert table.read("next/reward", low, low + 4).reshape(-1).tolist() == wanted[low : low + 4].tolist()
    inside = (
        tmp_path / "checkpoint" / ("tensors/0" if package == "rbdata" else "storage")
    )  # it was read with the rows that were never written
    with pytest.raises(UsageError, match="never written") as caught, open_tables(inside, tmp_path / "scratch"):
        pass
    assert "buffer.dumps()" in str(caught.value.hint)


@pytest.mark.parametrize("package", ["rbdata", "torchrl.data"])
def test_a_checkpoint_of_records_out_of_order_is_refused(package: str, tmp_path: Path) -> None:
    data = pytest.importorskip(package)
    buffers = {
        "highest": data.TensorDictReplayBuffer(
            writer=data.TensorDictMaxValueWriter("obs"), storage=data.LazyTensorStorage(5)
        )
    }
    if package == "rbdata":
        buffers["moved"] = rbdata.TensorDictReplayBuffer(storage=rbdata.LazyTensorStorage(5))
    for name, buffer in buffers.items():
        buffer.extend(TensorDict({"obs": torch.arange(5)[:, None]}, [5]))
        if name == "moved":
            buffer.writer.cursor = 2
        buffer.extend(TensorDict({"obs": torch.arange(5, 8)[:, None]}, [3]))
        buffer.dumps(tmp_path / name)
        with (
            pytest.raises(UsageError, match="not in order of time"),
            open_tables(tmp_path / name, tmp_path / "scratch"),
        ):
            pass


def test_the_folder_of_a_storage_is_refused(tmp_path: Path) -> None:
    storage = rbdata.LazyMemmapStorage(10, scratch_dir=tmp_path / "ring")
    storage.set(slice(0, 3), TensorDict({"obs": torch.arange(3)[:, None]}, [3]))
    with pytest.raises(UsageError, match="LazyMemmapStorage"), open_tables(tmp_path / "ring", tmp_path / "scratch"):
        pass


@pytest.mark.parametrize("inside", ["", "data/"])
def test_groups_of_hdf5_are_episodes_in_the_order_of_their_numbers(inside: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number in range(12):
            group = file.create_group(f"{inside}demo_{number}")
            group["obs/pos"], group["actions"] = np.full(number + 2, number), np.zeros(number + 1)
        if inside:
            file["mask/train"] = np.array([b"demo_0"])
    with open_tables(tmp_path / "a.hdf5", tmp_path / "scratch") as tables:
        assert [len(table.read("actions", 0, 100)) for table in tables] == list(range(1, 13))


@pytest.mark.parametrize("inside", ["", "data/", "log/data/"])
def test_numbered_groups_of_other_names_are_episodes(inside: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number in (0, 10, 9):
            group = file.create_group(f"{inside}run {number}")
            group["x"], group["sensors/u"] = np.full((3, 2), number), np.zeros(3)
    with open_tables(tmp_path / "a.hdf5", tmp_path) as tables:
        assert [table.name.partition("run ")[2] for table in tables] == ["0", "9", "10"]
        assert all(set(table.values) == {"x", "sensors/u"} for table in tables)


def test_what_lies_beside_data_is_said(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(2):
            _write_episode(file.create_group(f"data/demo_{number}"), number)
        file["mask/train"], file["mean"] = np.array([b"demo_0"]), np.zeros(2)
    with open_tables(tmp_path / "a.h5", tmp_path) as tables:
        assert len(tables) == 2 and sorted(tables[0].unreadable) == ["mask", "mean"]


def test_numbered_groups_beside_others_are_not_episodes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("camera_0/rgb", "camera_1/rgb", "arm/position", "action/arm"):
            file[name] = np.zeros((3, 2))
    with open_tables(tmp_path / "a.hdf5", tmp_path) as tables:
        assert [set(table.values) for table in tables] == [
            {"camera_0/rgb", "camera_1/rgb", "arm/position", "action/arm"}
        ]


def test_a_folder_of_archives_is_a_table_each(tmp_path: Path) -> None:
    for number in (10, 9, 2):
        np.savez(tmp_path / f"episode_{number}.npz", act=np.zeros(number))
    with open_tables(tmp_path, tmp_path / "scratch") as tables:
        assert [table.arrays["act"].shape for table in tables] == [(2,), (9,), (10,)]


def test_whole_numbers_before_a_fraction_are_numbers(tmp_path: Path) -> None:
    lines = ["act,rew,name", *["1,0,x"] * 200_000, "2,0.5,y", "3,1,7"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with open_tables(tmp_path / "a.csv", tmp_path / "scratch") as (table,):
        assert table.arrays["rew"].dtype == np.float64
        assert table.read("rew", 199_999, 200_002).tolist() == [0, 0.5, 1]
        assert table.read("act", 200_000, 200_002).tolist() == [2, 3]
        assert list(table.unreadable) == ["name"]


def test_empty_cells_and_lists_of_other_lengths_name_their_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("act,rew\n1,2\n,3\n")
    with pytest.raises(CorruptSourceError, match="act of row 1 is empty"), open_tables(tmp_path / "a.csv", tmp_path):
        pass
    parquet.write_table(pa.table({"obs": [[1, 2], [3]]}), tmp_path / "a.parquet")
    with pytest.raises(CorruptSourceError, match="obs"), open_tables(tmp_path / "a.parquet", tmp_path):
        pass


def test_tables_of_spreadsheets_and_without_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeffact;rew\n1;2\n")
    with open_tables(tmp_path / "a.csv", tmp_path) as (table,):
        assert list(table.arrays) == ["act", "rew"]
    (tmp_path / "b.csv").write_text("1,1\n1,2\n")
    with pytest.raises(CorruptSourceError, match="several columns"), open_tables(tmp_path / "b.csv", tmp_path):
        pass


def test_states_of_a_simulator_are_not_the_observations() -> None:
    arrays = {
        "obs": {"eef": np.zeros((2, 3))},
        "states": np.zeros((2, 7)),
        "actions": np.zeros(2),
        "rewards": np.zeros(2),
    }
    roles = find_roles(memory_table(arrays).arrays, {}, "demo_0")
    assert roles.observation == {"observation/eef": "obs/eef"}
    assert roles.extra == {"info/states": "states"}
    del arrays["obs"]
    assert find_roles(memory_table(arrays).arrays, {}, "demo_0").observation == {"observation": "states"}


@pytest.mark.parametrize("name", ["a.npz", "a.h5", "a.parquet", "a.feather"])
def test_damaged_files_are_errors_that_name_them(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"what is this" * 20)
    with pytest.raises(CorruptSourceError, match=name), open_tables(tmp_path / name, tmp_path):
        pass


@pytest.mark.parametrize("name", ["a.pkl", "a.pt"])
def test_a_pickle_is_refused_with_the_way_out(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match="savez"), open_tables(tmp_path / name, tmp_path):
        pass


def test_objects_in_archives_are_left_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", act=np.zeros(2), names=np.array(["a", None], object))
    with open_tables(tmp_path / "a.npz", tmp_path) as (table,):
        assert list(table.arrays) == ["act"]
        assert list(table.unreadable) == ["names"]


def test_memory_takes_mappings_tensors_and_fields() -> None:
    nested = {"obs": {"pos": torch.ones(3, 2), "vel": [1.0, 2.0, 3.0]}, "act": torch.zeros(3, requires_grad=True)}
    assert {k: v.shape for k, v in memory_table(nested).arrays.items()} == {
        "obs/pos": (3, 2),
        "obs/vel": (3,),
        "act": (3,),
    }
    with pytest.raises(UsageError, match="mapping"):
        memory_table([1, 2, 3])


def test_large_numbers_of_text_that_are_not_rounded(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_text("obs,x,y\n1e300,9007199254740992,9007199254740993\n0.5,0.25,9007199254740995\n")
    with open_tables(path, tmp_path / "scratch") as (table,):
        assert table.read("obs", 0, 2).tolist() == [1e300, 0.5]
        assert table.read("x", 0, 2).tolist() == [2.0**53, 0.25]
        assert table.read("y", 0, 2).tolist() == [2**53 + 1, 2**53 + 3]


def test_nan_in_text_is_a_number_and_names_may_have_spaces(tmp_path: Path) -> None:
    path = tmp_path / "nan.csv"
    path.write_text("obs_0, obs_1, act, rew\n1, nan, 0, 1\nNaN, 2, 1, 2\n")
    with open_tables(path, tmp_path / "scratch") as (table,):
        np.testing.assert_array_equal(table.read("obs_1", 0, 2), [np.nan, 2])
        assert list(table.values) == ["obs_0", "obs_1", "act", "rew"]


def test_columns_of_text_are_left_out_also_where_they_are_empty(tmp_path: Path) -> None:
    """And columns of categories, as pandas writes them: their dictionary may be another one in each batch."""
    batches = [
        pa.record_batch({"obs": [1, 2], "robot": pa.array([name] * 2).dictionary_encode(), "word": [None, "x"]})
        for name in "ab"
    ]
    with ipc.new_stream(str(tmp_path / "own.arrow"), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    with open_tables(tmp_path / "own.arrow", tmp_path / "scratch") as (table,):
        assert table.read("obs", 0, 4).tolist() == [1, 2, 1, 2]
        assert list(table.unreadable) == ["robot", "word"]


def _write_episode(group: Any, number: int) -> None:
    group["obs"], group["act"], group["rew"] = np.full((3, 2), number, np.float32), np.zeros(2), np.zeros(2)


def test_a_group_named_as_the_episodes_that_is_none_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in (10, 2, 1):
            _write_episode(file.create_group(f"ep_{number}"), number)
        file["about/version"] = np.zeros(1)
    with open_tables(tmp_path / "a.h5", tmp_path / "scratch") as tables:
        assert [table.read("obs", 0, 1)[0, 0] for table in tables] == [1, 2, 10]
        assert list(tables[0].unreadable) == ["about"]
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file["ep_2/act"]
    message = "ep_2 is named as the episodes are"
    with pytest.raises(UsageError, match=message), open_tables(tmp_path / "a.h5", tmp_path / "scratch"):
        pass


def test_links_of_hdf5_are_arrays_too(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/obs"] = np.arange(3)
        file["obs"], file["same"] = h5py.SoftLink("/data/obs"), file["data/obs"]
        file["gone"], file["data/up"] = h5py.SoftLink("/nowhere"), file["data"]
    with open_tables(tmp_path / "a.h5", tmp_path / "scratch") as (table,):
        assert set(table.values) == {"data/obs", "obs", "same"}
        assert table.read("obs", 0, 3).tolist() == [0, 1, 2]
        assert table.unreadable == {"gone": "its link leads nowhere"}


def test_a_tensordict_of_several_dimensions_is_refused() -> None:
    steps = TensorDict({"observation": torch.zeros(2, 4, 3)}, [2, 4])
    with pytest.raises(UsageError, match=r"batch size \[2, 4\]"):
        memory_table(steps)


@pytest.mark.parametrize("source", ["arrays", "d4rl", None])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_that_this_program_has_open_is_not_called_damaged(mode: str, source: str | None, tmp_path: Path) -> None:
    """As in a notebook that has just looked into it, or written it and not closed it yet."""
    data = {
        "observations": np.ones((8, 2)),
        "actions": np.ones((8, 1)),
        "rewards": np.ones(8),
        "terminals": np.ones(8) > 0,
    }
    write_hdf5(tmp_path / "mine.hdf5", data)
    options = {"source": source, "root": tmp_path / "root"}
    with h5py.File(tmp_path / "mine.hdf5", mode), pytest.raises(UsageError, match=r"mine.hdf5 is open in this program"):
        rbdata.convert(tmp_path / "mine.hdf5", "my/open", **options)
    with h5py.File(tmp_path / "mine.hdf5", locking=False):
        path = rbdata.convert(tmp_path / "mine.hdf5", "my/open", **options)
    assert len(rbdata.open_dataset(path)) == 8


@pytest.mark.parametrize(
    ("names", "given", "joined"),
    [
        ("obs_10 obs_2 act", {}, {"observation": "obs_2,obs_10"}),
        ("obs_0 obs_1 observation", {}, {}),
        ("obs_0 obs_1 x", {"observation": "x"}, {"observation": "x"}),
        ("obs_0 obs_1 state_0", {}, {}),
        ("obs_0 obs_1", {"goal": "obs_1"}, {"observation": "obs_0", "goal": "obs_1"}),
        ("joint_0 action[0] action[1]", {}, {"action": "action[0],action[1]"}),
    ],
)
def test_numbered_columns_of_a_role_are_joined(names: str, given: dict[str, str], joined: dict[str, str]) -> None:
    """Unless the map or another array has the role."""
    table = memory_table({name: np.arange(3) for name in names.split()})
    assert join_columns(table, given) == joined


@pytest.mark.parametrize(("one", "other"), [(6, 4), (4, 6)])
def test_arrays_of_other_lengths_are_not_joined(one: int, other: int) -> None:
    """One with a row per state, one with a row per step: their rows are not those of the same states."""
    with pytest.raises(UsageError, match=f"pos {one}, vel {other}"):
        join_columns(memory_table({"pos": np.zeros(one), "vel": np.zeros(other)}), {"observation": ["pos", "vel"]})


@pytest.mark.parametrize("value", [None, 3j, b"pos"])
def test_an_entry_of_a_map_that_names_nothing_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="the map gives goal as"):
        join_columns(memory_table({"pos": np.zeros(4)}), {"goal": value})
