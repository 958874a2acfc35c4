"""Memory maps from elsewhere: read as tensordict reads them, and nothing that they name is run."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from rbdata.errors import DamagedDatasetError, UsageError
from rbdata.storage.tensordict_folder import read_memmap
from tensordict import TensorDict


class RunsCode:
    """Unpickled, it makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def example() -> TensorDict:
    return TensorDict(
        {
            "action": torch.arange(6).view(3, 2),
            "empty": torch.zeros(3, 0),
            "half": torch.arange(3, dtype=torch.bfloat16),
            "a b/c": torch.ones(3, dtype=torch.bool),
            "..": torch.zeros(3),
            "next": {"reward": torch.rand(3, 1), "deep": {"x": torch.rand(3, 4)}},
        },
        [3],
    )


def test_same_as_tensordict(tmp_path):
    written = example()
    written.memmap(str(tmp_path / "data"))
    found = read_memmap(tmp_path / "data")
    assert found.batch_size == written.batch_size and found.is_locked
    assert set(found.keys(True, True)) == set(written.keys(True, True))
    for key in written.keys(True, True):
        assert found[key].dtype == written[key].dtype and torch.equal(found[key], written[key])


def test_writes_reach_the_files(tmp_path):
    example().memmap(str(tmp_path / "data"))
    read_memmap(tmp_path / "data")["action"][1] = 77
    assert TensorDict.load_memmap(tmp_path / "data")["action"][1].tolist() == [77, 77]


def test_values_in_json(tmp_path):
    written = TensorDict({"x": torch.ones(2)}, [])
    values = {"full": True, "shift": 3, "storage_shape": (3, 2), "name": "text", "nothing": None, "rate": 0.5}
    for name, value in values.items():
        written.set_non_tensor(name, value)
    written.memmap(str(tmp_path / "data"))
    found = read_memmap(tmp_path / "data")
    for name, value in values.items():
        there = found.get_non_tensor(name)
        assert there == value or tuple(there) == value


@pytest.mark.parametrize(
    "of_class",
    [
        "<class 'tensordict.tensorclass.NonTensorStack'>",
        "<class 'tensordict.tensorclass.NonTensorData'>",
        "<class 'tensordict._lazy.LazyStackedTensorDict'>",
        "<class 'os.path'>",
        "posix.system",
        None,
        7,
    ],
)
@pytest.mark.parametrize("place", ["", "inner"])
def test_no_class_of_a_stranger_is_loaded(tmp_path, of_class, place):
    """The attack that ``TensorDict.load_memmap`` falls for: a stack of values names a pickle."""
    TensorDict({"x": torch.ones(2), "inner": {"y": torch.ones(2)}}, [2]).memmap(str(tmp_path / "data"))
    folder, ran = tmp_path / "data" / place, tmp_path / "ran"
    attack = {"_type": of_class, "stack_dim": 0, "data": "pickle.pkl", "device": None, "shape": [2]}
    (folder / "meta.json").write_text(json.dumps(attack))
    for name in ("pickle.pkl", "other.pickle"):
        (folder / name).write_bytes(pickle.dumps(RunsCode(ran)))
    with pytest.raises(UsageError, match="not read"):
        read_memmap(tmp_path / "data")
    assert not ran.exists()


def test_pickles_are_refused_at_every_level(tmp_path):
    example().memmap(str(tmp_path / "data"))
    (tmp_path / "data" / "next" / "deep" / "other.pickle").write_bytes(b"x")
    with pytest.raises(UsageError, match="pickled"):
        read_memmap(tmp_path / "data")


@pytest.mark.parametrize("what", ["action.memmap", "meta.json", "next"])
def test_links_are_not_followed(tmp_path, what):
    example().memmap(str(tmp_path / "data"))
    path = tmp_path / "data" / what
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedDatasetError, match="is a link"):
        read_memmap(tmp_path / "data")


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": [3, 2], "dtype": "torch.float64"},
        {"shape": [3, -2], "dtype": "torch.int64"},
        {"shape": [3, 2.0], "dtype": "torch.int64"},
        {"shape": [3, 2], "dtype": "torch.load"},
        {"shape": "xyz", "dtype": "torch.int64"},
    ],
)
def test_entries_that_do_not_fit_their_files(tmp_path, entry):
    example().memmap(str(tmp_path / "data"))
    meta = tmp_path / "data" / "meta.json"
    record = json.loads(meta.read_text())
    record["action"] = entry
    meta.write_text(json.dumps(record))
    os.truncate(tmp_path / "data" / "action.memmap", 47)
    with pytest.raises(DamagedDatasetError):
        read_memmap(tmp_path / "data")
    assert (tmp_path / "data" / "action.memmap").stat().st_size == 47
