"""Checkpoints from elsewhere: no code is run, no link is followed, and a damaged one leaves the buffer as it was."""

from __future__ import annotations

import contextlib
import json
import pickle
from pathlib import Path

import pytest
from checkpoint_tools import filled, make
from rbdata.errors import RbdataError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    TensorDictReplayBuffer,
)
from replay_tools import equal, rollout
from tensordict import TensorDict


class RunsCode:
    """Unpickled, it makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def attack(folder: Path, ran: Path) -> None:
    """What ``TensorDict.load_memmap`` runs: a class that unpickles the file that its JSON names."""
    stack = {"_type": "<class 'tensordict.tensorclass.NonTensorStack'>", "stack_dim": 0, "data": "pickle.pkl"}
    (folder / "meta.json").write_text(json.dumps({**stack, "device": None}))
    (folder / "pickle.pkl").write_bytes(pickle.dumps(RunsCode(ran)))


def test_tensordict_would_run_the_code(tmp_path):
    """The test is of something real."""
    (tmp_path / "data").mkdir()
    attack(tmp_path / "data", tmp_path / "ran")
    for allowed in ({"allow_pickle": True}, {}):  # which tensordict 0.13 has not
        with contextlib.suppress(Exception):  # of what the code returned
            TensorDict.load_memmap(tmp_path / "data", **allowed)
    assert (tmp_path / "ran").exists()


def test_loads_runs_no_code(tmp_path):
    """Whichever folder of tensors the code is put into."""
    filled().dumps(tmp_path / "checkpoint")
    folders = sorted({path.parent for path in (tmp_path / "checkpoint").rglob("meta.json")})
    assert len(folders) > 1
    for folder in folders:
        kept = (folder / "meta.json").read_bytes()
        attack(folder, tmp_path / "ran")
        buffer = filled()
        before = buffer[:].clone()
        with pytest.raises(RbdataError):
            buffer.loads(tmp_path / "checkpoint")
        assert not (tmp_path / "ran").exists()
        assert equal(buffer[:], before)
        (folder / "meta.json").write_bytes(kept)
        (folder / "pickle.pkl").unlink()


@pytest.mark.parametrize("place", [".", "next"])
def test_an_existing_storage_runs_no_code(tmp_path, place):
    storage = LazyMemmapStorage(20, scratch_dir=tmp_path / "data")
    TensorDictReplayBuffer(storage=storage, batch_size=4).extend(rollout([5, 6, 3]))
    del storage
    attack(tmp_path / "data" / place, tmp_path / "ran")
    with pytest.raises(RbdataError):
        LazyMemmapStorage(20, scratch_dir=tmp_path / "data", existsok=True)
    assert not (tmp_path / "ran").exists()


def test_links_in_a_checkpoint_are_refused(tmp_path):
    filled().dumps(tmp_path / "checkpoint")
    for path in sorted((tmp_path / "checkpoint").rglob("*")):
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(RbdataError):
            make().loads(tmp_path / "checkpoint")
        path.unlink()
        (tmp_path / "elsewhere").rename(path)
