"""Storages and writers: a suite that every storage runs, rings of any shape, files, and bad input."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import DamagedDatasetError, DatasetExistsError, ReadOnlyError, SchemaError, UsageError
from rbdata.storage.replay import (
    DatasetStorage,
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)
from rbdata.storage.replay.windows.edges import Edges
from rbdata.storage.replay.windows.timeline import Timeline, from_ends
from replay_tools import equal, rollout, write_and_die
from storage_tools import contents, make_episodes, write_dataset
from tensordict import TensorDict, tensorclass

KINDS = ["list", "tensor", "lazy", "memmap"]


def make(kind: str, size: int, tmp_path, **more):
    if kind == "list":
        return ListStorage(size)
    if kind == "tensor":
        return TensorStorage(torch.zeros_like(rollout([size])), **more)
    return LazyTensorStorage(size, **more) if kind == "lazy" else LazyMemmapStorage(size, **more)


@pytest.mark.parametrize("kind", KINDS)
class TestEveryStorage:
    """What holds for all of them."""

    def test_rows_come_back(self, kind, tmp_path):
        storage = make(kind, 10, tmp_path)
        buffer = ReplayBuffer(storage=storage, batch_size=5)
        data = rollout([4, 3])
        if kind == "tensor":
            assert len(buffer) == 10
            buffer.empty()
        assert buffer.extend(data).tolist() == list(range(7))
        assert len(buffer) == 7
        assert equal(buffer[:], data)
        assert equal(buffer[3], data[3])
        assert equal(buffer[2:5], data[2:5])
        assert equal(buffer[[5, 1]], data[[5, 1]])
        assert equal(buffer[torch.tensor([5, 1])], data[[5, 1]])
        assert torch.equal(buffer["next", "reward"], data["next", "reward"])
        batch, info = buffer.sample(return_info=True)
        assert equal(batch, data[info["index"]])

    def test_batches_are_copies(self, kind, tmp_path):
        buffer = ReplayBuffer(storage=make(kind, 4, tmp_path), batch_size=8)
        buffer.extend(rollout([4]))
        batch = buffer.sample()
        batch["observation"].fill_(-1)
        batch["next", "reward"] *= 100
        assert equal(buffer[:], rollout([4]))

    def test_it_wraps(self, kind, tmp_path):
        buffer = ReplayBuffer(storage=make(kind, 5, tmp_path), batch_size=5)
        buffer.empty()
        for number in range(12):
            assert buffer.add(rollout([1], first=10 * number)[0]) == number % 5
        assert buffer["action"].tolist() == [100, 110, 70, 80, 90]
        assert buffer.extend(rollout([12], first=500)).tolist() == [(12 + i) % 5 for i in range(12)]
        assert sorted(buffer["action"].tolist()) == [507, 508, 509, 510, 511]
        assert buffer["action"][(12 + 11) % 5] == 511

    def test_items_can_be_set(self, kind, tmp_path):
        buffer = ReplayBuffer(storage=make(kind, 4, tmp_path), batch_size=2)
        buffer.extend(rollout([4]))
        buffer[1] = rollout([1], first=50)[0]
        assert buffer["action"].tolist() == [0, 50, 2, 3]
        buffer[torch.tensor([0, 3])] = rollout([2], first=70)
        assert buffer["action"].tolist() == [70, 50, 2, 71]

    def test_slices(self, kind, tmp_path):
        buffer = TensorDictReplayBuffer(
            storage=make(kind, 12, tmp_path), sampler=SliceSampler(slice_len=3), batch_size=60
        )
        if kind == "tensor":
            buffer = TensorDictReplayBuffer(
                storage=TensorStorage(rollout([5, 4, 3])), sampler=SliceSampler(slice_len=3), batch_size=60
            )
        else:
            buffer.extend(rollout([5, 4, 3]))
        starts = set()
        for _ in range(10):
            batch = buffer.sample()
            assert bool((batch["action"].view(-1, 3).diff(dim=1) == 1).all())
            assert batch["next", "truncated"].view(-1, 3).tolist() == [[False, False, True]] * 20
            starts.update(batch["action"][::3].tolist())
        assert starts == {0, 1, 2, 5, 6, 9}

    def test_states(self, kind, tmp_path):
        buffer = TensorDictReplayBuffer(storage=make(kind, 10, tmp_path), batch_size=5, seed=0)
        buffer.empty()
        buffer.extend(rollout([9, 5]))
        buffer.sample()
        state = buffer.state_dict()
        wanted = [buffer.sample() for _ in range(3)]
        other = TensorDictReplayBuffer(storage=make(kind, 10, tmp_path), batch_size=5, seed=1)
        if kind == "tensor":
            other = TensorDictReplayBuffer(storage=TensorStorage(torch.zeros_like(buffer[:])), batch_size=5)
        other.load_state_dict(state)
        assert all(equal(other.sample(), batch) for batch in wanted)
        assert equal(other[:], buffer[:])
        buffer.extend(rollout([3], first=99))
        other.extend(rollout([3], first=99))
        assert equal(other[:], buffer[:])

    def test_pickling(self, kind, tmp_path):
        buffer = TensorDictReplayBuffer(storage=make(kind, 10, tmp_path), batch_size=5, seed=0)
        if kind == "tensor":
            buffer = TensorDictReplayBuffer(storage=TensorStorage(rollout([7])), batch_size=5, seed=0)
        else:
            buffer.extend(rollout([7]))
        buffer.sample()
        other = pickle.loads(pickle.dumps(buffer))
        assert all(equal(other.sample(), buffer.sample()) for _ in range(20))


@pytest.mark.parametrize("make", [LazyTensorStorage, LazyMemmapStorage])
@settings(max_examples=30, deadline=None)
@given(
    capacity=st.integers(2, 20),
    width=st.integers(1, 3),
    lengths=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=4),
    length=st.integers(1, 4),
    stack=st.one_of(st.none(), st.integers(1, 3)),
    n=st.one_of(st.none(), st.integers(1, 4)),
)
def test_windows_of_rings(make, capacity, width, lengths, length, stack, n):
    """Slices, stacks and n-step returns of rings that have wrapped, of one and more columns: never across an episode."""
    ndim = 1 if width == 1 else 2
    buffer = TensorDictReplayBuffer(
        storage=make(capacity * width, ndim=ndim),
        sampler=SliceSampler(slice_len=length, strict_length=False),
        batch_size=4 * length,
        frame_stack=stack,
        n_step=n,
        gamma=0.5,
    )
    for number, batch in enumerate(lengths):
        columns = [rollout(batch, first=1000 * number + 10_000 * env, open_end=True) for env in range(width)]
        buffer.extend(columns[0] if width == 1 else torch.stack(columns))
    whole = {int(row["action"]): row for row in buffer.storage.get(slice(None)).reshape(-1)}
    for _ in range(3):
        batch = buffer.sample()
        ends = [0, *(batch["next", "truncated"].squeeze(1).nonzero().squeeze(1) + 1).tolist()]
        assert ends[-1] == len(batch)
        for low, high in pairwise(ends):
            piece = batch[low:high]
            actions = piece["action"].tolist()
            assert actions == list(range(actions[0], actions[0] + len(actions)))
            assert len(piece["collector", "traj_ids"].unique()) == 1
            assert len(piece) <= length
        for row in batch:
            check_window(row, whole, stack, n)


def check_window(row, whole, stack, n) -> None:
    action, trajectory = int(row["action"]), int(row["collector", "traj_ids"])
    mine = {key: kept for key, kept in whole.items() if int(kept["collector", "traj_ids"]) == trajectory}
    last = action
    while last + 1 in mine and last + 1 < action + (n or 1):
        last += 1
    if n:
        rewards = [float(mine[at]["next", "reward"]) * 0.5 ** (at - action) for at in range(action, last + 1)]
        assert float(row["next", "reward"]) == pytest.approx(sum(rewards), rel=1e-5)
        assert int(row["steps_to_next_obs"]) == last - action + 1
    after = mine[last]["next", "observation"]
    if stack is None:
        assert torch.equal(row["observation"], mine[action]["observation"])
        assert torch.equal(row["next", "observation"], after)
        return
    zero = torch.zeros(2)
    past = [mine[at]["observation"] if at in mine else zero for at in range(action - stack + 1, action + 1)]
    assert torch.equal(row["observation"], torch.stack(past))
    past = [mine[at]["observation"] if at in mine else zero for at in range(last - stack + 2, last + 1)]
    assert torch.equal(row["next", "observation"], torch.stack([*past, after]))


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 9), width=st.integers(1, 4), oldest=st.integers(0, 8), seed=st.integers(0, 9))
def test_positions_and_rows_are_inverse(length, width, oldest, seed):
    ends = torch.rand(length * width, generator=torch.Generator().manual_seed(seed)) < 0.3
    timeline = from_ends(ends, length, width, oldest % length)
    rows = torch.arange(length * width)
    positions = timeline.positions(rows)
    assert sorted(positions.tolist()) == rows.tolist()
    assert torch.equal(timeline.rows(positions), rows)
    columns = timeline.rows(rows).view(width, length) % width
    assert bool((columns == torch.arange(width)[:, None]).all())
    assert all(end % length == 0 or ends[timeline.rows(torch.tensor(end - 1))] for end in timeline.starts[1:].tolist())


def test_edges_are_worked_out_once_for_each_state(monkeypatch):
    calls = []
    inner = Edges.timeline
    monkeypatch.setattr(Edges, "timeline", lambda self, *args: calls.append(1) or inner(self, *args))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), sampler=SliceSampler(slice_len=2), batch_size=4)
    buffer.extend(rollout([5, 5]))
    for _ in range(50):
        buffer.sample()
    assert len(calls) == 1
    buffer.extend(rollout([5]))
    buffer.sample()
    assert len(calls) == 2


def test_a_dataset_needs_no_looking(tmp_path, monkeypatch):
    """Slices of a folder come from its episode table, and opening one reads no rows."""
    folder = write_dataset(tmp_path, make_episodes([5, 9]))
    monkeypatch.setattr(Edges, "timeline", lambda *_: pytest.fail("edges were searched for"))
    storage = DatasetStorage(folder)
    assert isinstance(storage.timeline(Edges()), Timeline)
    assert isinstance(storage.timeline(Edges(end_keys=(("next", "done"),))), Timeline)


def test_a_dataset_is_not_written(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([5, 9]))
    before = contents(folder)
    buffer = TensorDictReplayBuffer(storage=folder, batch_size=4)
    assert isinstance(buffer.writer, ImmutableDatasetWriter)
    row = buffer.storage.get(slice(0, 2))
    for write in (
        lambda: buffer.extend(row),
        lambda: buffer.add(row[0]),
        lambda: buffer.empty(),
        lambda: buffer.__setitem__(0, row[0]),
    ):
        with pytest.raises(ReadOnlyError, match="doesn't allow writing"):
            write()
    batch = buffer.sample()
    batch["observation"].zero_()
    buffer[:]["action"].zero_()
    assert contents(folder) == before


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change,words",
    [
        (lambda data: data.exclude("action"), "without action"),
        (lambda data: data.set("more", torch.zeros(len(data))), "with more"),
        (lambda data: data.set("action", data["action"].int()), "key action: got int32 .*, the storage holds int64"),
        (lambda data: data.set("observation", torch.zeros(len(data), 3)), r"float32 \[3\].*float32 \[2\]"),
        (lambda data: {"action": data["action"]}, "not a dict"),
        (lambda data: data[:0], "no records"),
    ],
    ids=["missing", "more", "dtype", "shape", "kind", "empty"],
)
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_data_that_do_not_fit(storage, change, words):
    buffer = ReplayBuffer(storage=storage(10), batch_size=2)
    buffer.extend(rollout([4]))
    with pytest.raises(SchemaError, match=words):
        buffer.extend(change(rollout([3])))
    assert equal(buffer[:], rollout([4]))
    assert buffer.extend(rollout([2])).tolist() == [4, 5]


def test_other_bad_input():
    with pytest.raises(SchemaError, match="takes TensorDicts"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(5)).extend({"x": torch.zeros(3)})
    with pytest.raises(SchemaError, match="not alike"):
        ReplayBuffer(storage=LazyTensorStorage(5)).extend([torch.zeros(3), torch.zeros(2)])
    with pytest.raises(SchemaError, match="no dimension 1"):
        ReplayBuffer(storage=LazyTensorStorage(5, ndim=2)).extend(rollout([3]))
    with pytest.raises(UsageError, match="max_size"):
        LazyTensorStorage(0)
    with pytest.raises(UsageError, match="a storage is wanted"):
        ReplayBuffer(storage=7)
    with pytest.raises(SchemaError, match="sequence of records"):
        ReplayBuffer(storage=ListStorage(5)).extend({"x": 2})
    with pytest.raises(UsageError, match="one dimension"):
        ListStorage(5, ndim=2)
    with pytest.raises(UsageError, match="one dimension"):
        ReplayBuffer(storage=LazyTensorStorage(5, ndim=2), writer=TensorDictMaxValueWriter())
    with pytest.raises(SchemaError, match="no next/reward"):
        ReplayBuffer(storage=LazyTensorStorage(5), writer=TensorDictMaxValueWriter()).extend(
            TensorDict({"x": torch.zeros(3)}, [3])
        )
    with pytest.raises(UsageError, match="CPU"):
        LazyMemmapStorage(5, device="cuda")


# -- kinds of data -----------------------------------------------------------------------------------------------------


@tensorclass
class Step:
    observation: torch.Tensor
    reward: torch.Tensor


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_tensorclasses(storage):
    buffer = ReplayBuffer(storage=storage(6), batch_size=4)
    buffer.extend(Step(observation=torch.arange(8.0).view(8, 1), reward=torch.arange(8), batch_size=[8]))
    batch = buffer.sample()
    assert isinstance(batch, Step)
    assert torch.equal(batch.observation.squeeze(1), batch.reward.float())


def test_lists_hold_anything():
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=3)
    buffer.extend([1, 2, 3])
    assert set(buffer.sample().tolist()) <= {1, 2, 3}
    ragged = ReplayBuffer(storage=ListStorage(4), batch_size=8)
    ragged.extend([TensorDict({"x": torch.zeros(n)}, []) for n in (1, 2, 3)])
    assert ragged.sample().batch_size == (8,)
    words = ReplayBuffer(storage=ListStorage(4), batch_size=2, collate_fn=lambda records: records)
    words.extend(["a", "b"])
    assert set(words.sample()) <= {"a", "b"}


def test_trajectories_as_records():
    """One record may be a whole trajectory: what lies beyond the rows stays a batch dimension."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5), batch_size=3)
    buffer.extend(torch.stack([rollout([6], first=100 * env) for env in range(4)]))
    batch = buffer.sample()
    assert batch.batch_size == (3, 6)
    assert batch["observation"].shape == (3, 6, 2)
    assert torch.equal(batch["action"][:, 0], 100 * batch["index"].reshape(3, -1)[:, 0])


def test_numpy_and_ranges():
    storage = LazyTensorStorage(10)
    storage.set(range(10), rollout([10]))
    assert equal(storage.get(np.array([3, 4])), rollout([10])[3:5])
    assert equal(storage.get(range(2)), rollout([10])[:2])


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_folder_opened_again(tmp_path):
    first = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "ring"), batch_size=4)
    first.extend(rollout([7]))
    first.extend(rollout([6], first=50))
    with pytest.raises(DatasetExistsError, match="not empty"):
        LazyMemmapStorage(10, scratch_dir=tmp_path / "ring")
    again = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "ring", existsok=True), batch_size=4)
    assert equal(again[:], first[:])
    assert again.storage.oldest == 3
    assert again.extend(rollout([2], first=90)).tolist() == [3, 4]
    assert first["action"].tolist()[3:5] == [90, 91]  # both are the same files
    assert equal(TensorDict.load_memmap(tmp_path / "ring"), first[:])


def test_what_was_written_survives_a_kill(tmp_path):
    """A process that writes and dies without a word leaves all rows of its finished writes."""
    process = multiprocessing.get_context("spawn").Process(target=write_and_die, args=(tmp_path / "ring",))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    again = ReplayBuffer(storage=LazyMemmapStorage(100, scratch_dir=tmp_path / "ring", existsok=True), batch_size=4)
    assert equal(again[:], rollout([30]))


@pytest.mark.parametrize("damage", ["counters", "json", "leaf", "ndim"])
def test_a_damaged_folder(tmp_path, damage):
    buffer = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path / "ring"), batch_size=4)
    buffer.extend(rollout([7]))
    if damage == "counters":
        (tmp_path / "ring" / "rbdata_counters.memmap").write_bytes(b"")
    elif damage == "json":
        (tmp_path / "ring" / "rbdata_storage.json").write_text("{")
    elif damage == "leaf":
        (tmp_path / "ring" / "action.memmap").unlink()
    kind = UsageError if damage == "ndim" else DamagedDatasetError
    with pytest.raises(kind):
        LazyMemmapStorage(10, scratch_dir=tmp_path / "ring", existsok=True, ndim=2 if damage == "ndim" else 1)


def test_temporary_files_go_with_the_storage(tmp_path):
    storage = LazyMemmapStorage(10)
    storage.set(slice(0, 3), rollout([3]))
    folder = storage.scratch_dir
    child = os.fork()
    if not child:
        del storage  # of the parent
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.is_dir()
    del storage
    assert not folder.exists()
    for wanted in (True, False):
        storage = LazyMemmapStorage(10, scratch_dir=tmp_path / "named" if wanted else None, auto_cleanup=wanted)
        storage.set(slice(0, 3), rollout([3]))
        folder = storage.scratch_dir
        del storage
        assert folder.exists() is not wanted
    shutil.rmtree(folder)


def test_max_values_over_time():
    buffer = ReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter(), batch_size=2)
    batch = torch.stack([rollout([3], first=first) for first in (0, 100, 200)])
    batch["next", "reward"] = torch.tensor([1.0, 5.0, 3.0]).view(3, 1, 1).expand(3, 3, 1).clone()
    buffer.extend(batch)
    assert sorted(buffer["action"][:, 0].tolist()) == [100, 200]
    assert buffer.add(batch[0]) is None
