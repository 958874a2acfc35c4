"""Checkpoints from elsewhere: no code is run, no link is followed, and a damaged one leaves the buffer as it was."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import rbdata
import torch
import torchrl.data
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rbdata.errors import DamagedDatasetError, RbdataError
from rbdata.storage.checksums import crc32c
from rbdata.storage.replay import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    SamplerWithoutReplacement,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
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


SAMPLERS: dict[str, Any] = {
    "passes": SamplerWithoutReplacement,
    "slices": lambda: SliceSamplerWithoutReplacement(slice_len=2),
    "priorities": lambda: PrioritizedSampler(20, 0.7, 0.5),
}


def make(sampler: str = "passes", storage: Any = LazyTensorStorage) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=storage(20), sampler=SAMPLERS[sampler](), batch_size=4, seed=1)


def filled(sampler: str = "passes", storage: Any = LazyTensorStorage) -> TensorDictReplayBuffer:
    buffer = make(sampler, storage)
    buffer.extend(rollout([5, 6, 3]))
    buffer.sample()
    return buffer


def make_torchrl_like(path: Path) -> None:
    """Take away what rbdata adds, so that no checksum protects the rest."""
    (path / "rbdata_checkpoint.json").unlink()


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


@pytest.mark.parametrize("place", [".", "next"])
@pytest.mark.parametrize("linked", [False, True])
def test_loads_runs_no_code(tmp_path, place, linked):
    filled().dumps(tmp_path / "checkpoint")
    make_torchrl_like(tmp_path / "checkpoint")
    folder = tmp_path / "checkpoint" / "storage" / place
    if linked:
        folder.rename(tmp_path / "elsewhere")
        folder.parent.mkdir(exist_ok=True)
        folder.symlink_to(tmp_path / "elsewhere")
    attack(folder, tmp_path / "ran")
    buffer = filled()
    before = buffer[:].clone()
    with pytest.raises(RbdataError):
        buffer.loads(tmp_path / "checkpoint")
    assert not (tmp_path / "ran").exists()
    assert equal(buffer[:], before)


@pytest.mark.parametrize("place", [".", "next"])
def test_an_existing_storage_runs_no_code(tmp_path, place):
    storage = LazyMemmapStorage(20, scratch_dir=tmp_path / "data")
    TensorDictReplayBuffer(storage=storage, batch_size=4).extend(rollout([5, 6, 3]))
    del storage
    attack(tmp_path / "data" / place, tmp_path / "ran")
    with pytest.raises(RbdataError):
        LazyMemmapStorage(20, scratch_dir=tmp_path / "data", existsok=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["storage", "writer", "writer/metadata.json", "storage/action.memmap", "sampler"])
def test_links_in_a_checkpoint_are_refused(tmp_path, name):
    filled().dumps(tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RbdataError):
        make().loads(tmp_path / "checkpoint")


@pytest.mark.parametrize("name", ["writer/metadata.json", "sampler/state.json", "storage/meta.json"])
def test_pipes_and_devices_do_not_hang(tmp_path, name):
    filled().dumps(tmp_path / "checkpoint")
    make_torchrl_like(tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / name
    path.unlink()
    os.mkfifo(path)
    if name.startswith("sampler"):  # TorchRL's samplers are not read
        make().loads(tmp_path / "checkpoint")
    else:
        with pytest.raises(RbdataError):
            make().loads(tmp_path / "checkpoint")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "storage/../../outside", "a//b", "", "x\\y"])
def test_names_that_lead_out_of_a_checkpoint(tmp_path, name):
    filled().dumps(tmp_path / "checkpoint")
    (tmp_path / "outside").write_text("12345")
    rewrite(tmp_path / "checkpoint", lambda record: {**record, "files": {name: [5, "00000000"]}})
    with pytest.raises(RbdataError, match="leads out"):
        make().loads(tmp_path / "checkpoint")


def rewrite(checkpoint: Path, change: Any) -> None:
    """Change the description of a checkpoint, and make its checksums right again."""
    path = checkpoint / "rbdata_checkpoint.json"
    record = json.loads(path.read_text())
    record.pop("checksum")
    record = change(record)
    record["checksum"] = crc32c(json.dumps(record, sort_keys=True).encode())
    path.write_text(json.dumps(record))


def with_right_sums(record: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    files = {}
    for name in record["files"]:
        data = (checkpoint / name).read_bytes()
        files[name] = [len(data), crc32c(data)]
    return {**record, "files": files}


_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 50),
    st.sampled_from(
        [1 << 40, 1 << 70, -1, 0.5, float("nan"), 1e300, "", "x", [], [1], {}, {"a": 1}, [[0, 1]], [-1, 7]]
    ),
)
_JSON = ["buffer_metadata.json", "writer/metadata.json", "storage/storage_metadata.json", "storage/meta.json"]
_STATES = ["sampler/state.json", "position/state.json", "transforms/state.json"]


def places(record: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [path] if path else []
    if isinstance(record, dict):
        for key in sorted(record):
            found += places(record[key], (*path, key))
    elif isinstance(record, list):
        for number in range(min(len(record), 3)):
            found += places(record[number], (*path, number))
    return found


@given(data=st.data(), sampler=st.sampled_from(sorted(SAMPLERS)), own=st.booleans())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_change_of_values_is_a_typed_error_or_harmless(tmp_path_factory, data, sampler, own):
    """Checksums made right again, as somebody who means harm would."""
    checkpoint = tmp_path_factory.mktemp("fuzz") / "checkpoint"
    storage = data.draw(st.sampled_from([LazyTensorStorage, ListStorage]))
    filled(sampler, storage).dumps(checkpoint)
    names = [name for name in [*_JSON, *_STATES, "storage/state.json"] if (checkpoint / name).exists()]
    path = checkpoint / data.draw(st.sampled_from(names))
    record = json.loads(path.read_text())
    there = places(record)
    if there:
        where = data.draw(st.sampled_from(there))
        inner = record
        for step in where[:-1]:
            inner = inner[step]
        if data.draw(st.booleans()) and isinstance(inner, dict):
            del inner[where[-1]]
        else:
            inner[where[-1]] = data.draw(_values)
    path.write_text(json.dumps(record))
    if own:
        rewrite(checkpoint, lambda described: with_right_sums(described, checkpoint))
    elif storage is LazyTensorStorage:
        make_torchrl_like(checkpoint)
    buffer = filled(sampler, storage)
    before, size, length = buffer[:], buffer.batch_size, len(buffer)
    before = before.clone() if hasattr(before, "clone") else before
    try:
        buffer.loads(checkpoint)
    except RbdataError:
        assert len(buffer) == length and buffer.batch_size == size
        if storage is LazyTensorStorage:
            assert equal(buffer[:], before)
    for _ in range(3):
        try:
            buffer.sample(4)
        except RbdataError:
            break
    buffer.extend(rollout([4]))
    assert 0 <= len(buffer) <= 20


@pytest.mark.parametrize("part", ["storage", "sampler", "writer"])
@pytest.mark.parametrize("value", [[], {}, None, 3])
def test_a_part_that_is_no_class(tmp_path, part, value):
    filled().dumps(tmp_path / "checkpoint")
    rewrite(tmp_path / "checkpoint", lambda record: {**record, "about": {**record["about"], part: value}})
    with pytest.raises(RbdataError, match=f"the checkpoint's {part} is a"):
        make().loads(tmp_path / "checkpoint")


def test_rows_of_a_writer_that_are_not_there(tmp_path):
    def empty() -> TensorDictReplayBuffer:
        writer = TensorDictMaxValueWriter(rank_key="action")
        return TensorDictReplayBuffer(storage=LazyTensorStorage(20), writer=writer, batch_size=4)

    buffer = empty()
    buffer.extend(rollout([5, 6, 3]))
    buffer.dumps(tmp_path / "checkpoint")
    make_torchrl_like(tmp_path / "checkpoint")
    values = torch.frombuffer(bytearray(14 * 16), dtype=torch.float64).view(14, 2)
    for row in (-1.0, 14.0, 1e18, 1e300, float("nan")):
        values[:, 1] = torch.arange(14)
        values[3, 1] = row
        (tmp_path / "checkpoint" / "writer" / "current_top_values.memmap").write_bytes(values.numpy().tobytes())
        with pytest.raises(RbdataError):
            empty().loads(tmp_path / "checkpoint")


@pytest.mark.parametrize("path", [[""], [], ["action", "b"], [3], "x", None, ["next"]])
def test_compressed_records_of_a_kind_that_there_is_not(tmp_path, path):
    filled(storage=CompressedListStorage).dumps(tmp_path / "checkpoint")
    make_torchrl_like(tmp_path / "checkpoint")
    file = tmp_path / "checkpoint" / "storage" / "state.json"
    state = json.loads(file.read_text())
    leaves = state["values"]["kinds"][0]["leaves"]
    next(leaf for leaf in leaves if leaf[0] == ["observation"])[0] = path
    file.write_text(json.dumps(state))
    buffer = filled(storage=CompressedListStorage)
    before = buffer[:].clone()
    with contextlib.suppress(RbdataError):
        buffer.loads(tmp_path / "checkpoint")
        buffer.sample()
        return
    assert equal(buffer[:], before)


def test_a_batch_that_no_storage_justifies(tmp_path):
    filled().dumps(tmp_path / "checkpoint")
    make_torchrl_like(tmp_path / "checkpoint")
    file = tmp_path / "checkpoint" / "buffer_metadata.json"
    file.write_text(json.dumps({"batch_size": 1 << 31, "consume_after_n_samples": None}))
    buffer = make()
    with pytest.raises(RbdataError, match="batch_size is 2147483648"):
        buffer.loads(tmp_path / "checkpoint")
    assert buffer.batch_size == 4


@pytest.mark.parametrize("rows", [0, 1, 13])
def test_a_next_row_behind_a_gap_is_refused_before_anything_changes(tmp_path, rows):
    """Of a checkpoint of TorchRL, which has no checksums: `extend` would fail when training has begun."""
    theirs = torchrl.data.TensorDictReplayBuffer(storage=torchrl.data.LazyTensorStorage(20), batch_size=4)
    theirs.extend(TensorDict({"obs": torch.arange(14.0)}, [14]))
    theirs.dumps(tmp_path)
    path = tmp_path / "storage" / "storage_metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "len": rows}))
    buffer = rbdata.TensorDictReplayBuffer(storage=rbdata.LazyTensorStorage(20), batch_size=4)
    buffer.extend(TensorDict({"obs": torch.full((3,), -1.0)}, [3]))
    with pytest.raises(DamagedDatasetError, match="row 14 cannot be the next one"):
        buffer.loads(tmp_path)
    assert buffer[:]["obs"].tolist() == [-1.0] * 3
    buffer.extend(TensorDict({"obs": torch.zeros(2)}, [2]))
    assert len(buffer) == 5
