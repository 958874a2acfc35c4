"""The buffer as a whole: iteration, exchange of parts, collation."""

from __future__ import annotations

from typing import Any

import pytest
import rbdata
import torch
import torchrl.data as torchrl
from rbdata.storage.replay import (
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from replay_tools import numbers, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


def test_next_and_iteration():
    buffer = numbers(12, sampler=SamplerWithoutReplacement())
    assert [len(batch) for batch in buffer] == [5, 5, 2]
    taken = [buffer.next() for _ in range(4)]
    assert taken[3] is None and len(taken[2]) == 2
    assert [len(next(buffer)) for _ in range(3)] == [5, 5, 2]
    with pytest.raises(StopIteration):
        next(buffer)
    assert len(next(buffer)) == 5
    endless = numbers()
    assert len([batch for batch, _ in zip(endless, range(50))]) == 50


def test_passes_of_two_buffers_side_by_side():
    """The end of a pass is that of one buffer: what a loop samples from another one neither ends nor continues it."""

    def make(count, **arguments):
        buffer = ReplayBuffer(storage=LazyTensorStorage(50), batch_size=4, **arguments)
        buffer.extend(torch.arange(count))
        return buffer

    one, two = (make(18, sampler=SamplerWithoutReplacement()) for _ in range(2))
    pairs = list(zip(one, two, strict=True))
    assert [len(batch) for batch, _ in pairs] == [len(batch) for _, batch in pairs] == [4, 4, 4, 4, 2]
    for other in (make(3, sampler=SamplerWithoutReplacement()), make(30)):  # ends at every batch, never ends
        found = []
        for batch in one:
            found += batch.tolist()
            other.sample()
            assert len(found) <= 18
        assert sorted(found) == list(range(18))


def test_samples_within_an_iteration():
    """A loop that samples the end of a pass itself has no batch left; one that begins another pass ends as well."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), sampler=SamplerWithoutReplacement(), batch_size=4)
    buffer.extend(torch.arange(20))
    drawn = [[*batch.tolist(), *buffer.sample().tolist()] for batch in buffer]
    assert [len(rows) for rows in drawn] == [8, 8, 8]
    assert {row for rows in drawn for row in rows} == set(range(20))


def test_parts_can_be_exchanged():
    buffer = numbers()
    before = buffer.set_sampler(SamplerWithoutReplacement(shuffle=False))
    assert isinstance(before, RandomSampler)
    assert buffer.sample()["index"].tolist() == [0, 1, 2, 3, 4]
    assert isinstance(buffer.set_writer(RoundRobinWriter()), TensorDictRoundRobinWriter)
    old = buffer.set_storage(LazyTensorStorage(3))
    assert len(old) == 20 and len(buffer) == 0
    buffer.extend(rollout([3]))
    assert len(buffer) == 3
    buffer.set_rng(torch.Generator().manual_seed(4))
    buffer.set_seed(4)


def test_samplers_by_hand():
    """What code written for TorchRL's samplers calls."""
    storage = LazyTensorStorage(10)
    storage.set(slice(0, 10), rollout([10]))
    index, info = RandomSampler().sample(storage, 4)
    assert index.shape == (4,) and info == {}
    index, info = SliceSampler(slice_len=2).sample(storage, 4)
    assert index[1] == index[0] + 1


def test_collate(folder):
    buffer = rbdata.load(folder, batch_size=4, collate_fn=lambda batch: batch["observation"])
    assert buffer.sample().shape == (4, 4)
    assert torch.equal(buffer[2:4], buffer.dataset["observation"][2:4])
    assert torch.equal(buffer.as_map().__getitems__([5, 2]), buffer.dataset["observation"][[5, 2]])


@pytest.mark.parametrize("lib", [rbdata, torchrl])
@pytest.mark.parametrize("storage", ["LazyTensorStorage", "ListStorage"])
def test_records_by_number_are_collated(lib, storage):
    """Several are, one is not; the records stay as they are."""

    def collate(records):
        batch: Any = torch.stack(records) if isinstance(records, list) else records.clone()
        return batch.set("x", batch["x"] * 2)

    buffer = lib.ReplayBuffer(storage=getattr(lib, storage)(5), collate_fn=collate)
    buffer.extend(TensorDict({"x": torch.arange(5)}, [5]))
    assert buffer[1:3]["x"].tolist() == buffer[[1, 2]]["x"].tolist() == [2, 4]
    assert buffer["x"].tolist() == [0, 2, 4, 6, 8]
    assert buffer[2]["x"] == 2


def test_what_is_added_to_one_buffers_transforms_is_not_added_to_anothers():
    first = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), batch_size=4, transform=lambda batch: batch.set("z", batch["a"])
    )
    first.extend(TensorDict({"a": torch.arange(4)}, [4]))
    second = TensorDictReplayBuffer(storage=first.storage, batch_size=4, transform=first.transform)
    second.append_transform(lambda batch: batch.set("z", batch["z"] * 0 - 1))
    assert first.sample()["z"].min() >= 0
    assert second.sample()["z"].max() == -1


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_records_of_a_list_are_stored_with_their_rows(storage):
    buffer = ReplayBuffer(storage=storage(5), writer=TensorDictRoundRobinWriter())
    data = TensorDict({"x": torch.arange(7)}, [7])
    buffer.extend(data[:3])
    buffer.extend(list(data[3:]))
    assert [int(buffer[row]["index"]) for row in range(5)] == [0, 1, 2, 3, 4]
    assert [int(buffer[row]["x"]) for row in range(5)] == [5, 6, 2, 3, 4]
