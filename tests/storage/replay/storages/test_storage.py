"""A suite that every storage runs."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorStorage,
)
from replay_tools import equal, rollout

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


@pytest.mark.parametrize("existing_folder", [False, True])
@pytest.mark.parametrize("kind", ["list", "lazy", "memmap"])
def test_a_deep_copy_has_rows_of_its_own(kind, existing_folder, tmp_path):
    folder = {"scratch_dir": tmp_path} if existing_folder and kind == "memmap" else {}
    storage = make(kind, 6, tmp_path, **folder)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4, seed=0)
    empty = copy.deepcopy(buffer)
    buffer.extend(rollout([5]))
    buffer.extend(rollout([3], first=50))  # the ring wraps
    before = buffer[:].clone()
    copied = copy.deepcopy(buffer)
    assert equal(copied[:], before)
    assert equal(copied.sample(), buffer.sample())
    assert copied.extend(rollout([2], first=90)).tolist() == [2, 3]
    copied[0:1] = copied[2:3]
    empty.extend(rollout([2], first=70))
    assert equal(buffer[:], before)
    assert empty["action"].tolist() == [70, 71]
    after = copied[:].clone()
    buffer.extend(rollout([6], first=200))
    assert equal(copied[:], after)
