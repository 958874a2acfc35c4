"""Records that are used up."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import SamplingError, SchemaError, UsageError
from rbdata.storage import replay
from rbdata.storage.replay import (
    ConsumingSampler,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
)
from tensordict import TensorDict


def full(rows: int = 6, uses: int = 1, **options: Any) -> Any:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), consume_after_n_samples=uses, seed=0, **options)
    buffer.extend(torch.arange(rows))
    return buffer


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "extend", "sample"]), st.integers(1, 9)), min_size=5, max_size=25
)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.booleans(), OPERATIONS)
def test_rows_lengths_and_states_are_those_of_torchrl(uses: int, in_list: bool, operations: list[tuple[str, int]]):
    import torchrl.data as peer

    def made(lib: Any) -> Any:
        place = lib.ListStorage(9) if in_list else lib.LazyTensorStorage(9)
        return lib.ReplayBuffer(
            storage=place, consume_after_n_samples=uses, generator=torch.Generator().manual_seed(uses)
        )

    ours, theirs, value = made(replay), made(peer), 0
    for what, count in operations:
        data = torch.arange(value, value + count)
        value += count
        if what == "add":
            assert ours.add(data[0]) == theirs.add(data[0])
        elif what == "extend":
            assert ours.extend(list(data)).tolist() == theirs.extend(list(data)).tolist()
        elif what == "sample" and len(theirs):
            assert torch.equal(ours.sample(count), theirs.sample(count))
        elif what == "sample":
            for buffer in (ours, theirs):
                with pytest.raises(RuntimeError, match="annot sample from an empty storage"):
                    buffer.sample(count)
        assert len(ours) == len(theirs)
        assert ours.stats()["size"] == len(ours)
    if len(ours.storage):  # each goes on with the state of the other
        swapped = made(replay), made(peer)
        swapped[0].load_state_dict(theirs.state_dict())
        swapped[1].sampler.load_state_dict(ours.sampler.state_dict())
        assert len(swapped[0]) == len(ours) == swapped[1].sampler._num_sampleable()
        last = [buffer.extend(list(torch.arange(4))).tolist() for buffer in (ours, swapped[0])]
        assert last[0] == last[1] == theirs.extend(list(torch.arange(4))).tolist()


def test_iteration_goes_on_where_records_are_written_meanwhile():
    buffer = full(batch_size=4)
    batches = []
    for batch in buffer:
        batches.append(batch.tolist())
        if len(batches) == 2:
            buffer.extend(torch.arange(10, 13))
    assert [len(batch) for batch in batches] == [4, 2, 3]
    assert sorted(batches[0] + batches[1]) == [*range(6)]
    assert sorted(batches[2]) == [10, 11, 12]
    assert (len(buffer), len(buffer.storage), buffer.can_sample()) == (0, 6, False)
    with pytest.raises(SamplingError, match="all 6 records are consumed"):
        buffer.sample()


def test_looking_consumes_nothing():
    buffer = full(uses=2)
    buffer.sample(5)
    before = buffer.sampler.position()
    assert buffer.can_sample(3)
    _ = buffer[:], buffer.stats(), buffer.state_dict(), repr(buffer), len(buffer), len(buffer.as_map())
    assert torch.equal(buffer.sampler.position(), before)
    assert repr(buffer.sampler) == "ConsumingSampler(max_sample_count=2, sampleable=6)"


def test_copies_states_and_checkpoints_go_on_alike(tmp_path: Path):
    buffer = full(8, uses=2, batch_size=3)
    for _ in range(4):
        buffer.sample()
    others = [full(3, uses=2, batch_size=3) for _ in range(2)]
    others[0].load_state_dict(buffer.state_dict())
    buffer.dumps(tmp_path / "saved")
    others[1].loads(tmp_path / "saved")
    buffer.sampler.dumps(tmp_path / "sampler")
    sampler = ConsumingSampler()
    sampler.loads(tmp_path / "sampler")
    assert torch.equal(sampler.position(), buffer.sampler.position())
    others.append(copy.deepcopy(buffer))
    assert 0 < len(buffer) < 8
    expected = [buffer.extend(torch.arange(20, 22)), *(buffer.sample() for _ in range(3))]
    for other in others:
        found = [other.extend(torch.arange(20, 22)), *(other.sample() for _ in range(3))]
        assert all(map(torch.equal, found, expected))
        assert len(other) == len(buffer)


def test_checkpoints_of_torchrl_with_counts_are_refused(tmp_path: Path):
    import torchrl.data as peer

    theirs = peer.ReplayBuffer(storage=peer.LazyTensorStorage(8), consume_after_n_samples=1)
    theirs.extend(torch.arange(6))
    theirs.sample(2)
    theirs.dumps(tmp_path)
    buffer = full()
    with pytest.raises(UsageError, match="pickle"):
        buffer.loads(tmp_path)
    assert len(buffer) == 6


def test_a_write_that_fails_takes_no_rows():
    buffer = full()
    consumed = buffer.sample(2).tolist()
    for data in (torch.zeros(2, 5), []):
        with pytest.raises(SchemaError):
            buffer.extend(data)
    assert len(buffer) == 4
    assert buffer.extend(torch.arange(20, 22)).tolist() == consumed
    assert buffer.extend(torch.arange(30, 50)).shape == (20,)  # of more than there is room for the newest stay
    assert sorted(buffer.sample(9).tolist()) == [*range(42, 50)]


def test_emptying_and_other_samplers_begin_anew():
    buffer = full()
    buffer.sample(4)
    buffer.empty()
    assert len(buffer) == 0
    assert buffer.extend(torch.arange(3)).tolist() == [0, 1, 2]
    buffer.sample(3)
    before = buffer.set_sampler(ConsumingSampler(2))
    assert (len(buffer), before.max_sample_count) == (3, 1)
    buffer.sample(3)
    drawn = buffer.sample(3)[:1]
    buffer.mark_update(drawn)
    assert [buffer.sample(1).tolist() for _ in range(2)] == [drawn.tolist()] * 2
    buffer.mark_update(torch.arange(3))
    buffer.storage.set(slice(3, 6), torch.arange(3))  # past the buffer
    assert len(buffer) == 6


def test_reused_rows_hold_nothing_of_the_record_before():
    buffer: Any = TensorDictReplayBuffer(storage=LazyTensorStorage(4), consume_after_n_samples=1)
    buffer.extend(TensorDict({"a": torch.ones(3), "b": torch.ones(3)}, [3]))
    consumed = buffer.sample(2)["index"]
    with pytest.warns(UserWarning, match="without b"):
        buffer.extend(TensorDict({"a": torch.full((3,), 2.0)}, [3]))
    assert buffer[consumed]["b"].tolist() == [0, 0]
    assert buffer.writer.cursor == 0
    assert sorted(buffer.sample(9)["a"].tolist()) == [1, 2, 2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefetch": 1, "batch_size": 2}, "Prefetching is not supported"),
        ({"sampler": replay.SamplerWithoutReplacement()}, "only supports the default RandomSampler"),
        ({"sampler": ConsumingSampler(3)}, "max_sample_count=3"),
        ({"storage": LazyTensorStorage(8, ndim=2)}, "1-dimensional"),
        ({"writer": replay.TensorDictMaxValueWriter()}, "callable write_at"),
        ({"shared": True}, "shared or split"),
        ({"rank": 0, "world_size": 2, "seed": 0}, "shared or split"),
        ({"frame_stack": 2}, "leave out frame_stack"),
        ({"consume_after_n_samples": 0}, "not 0"),
        ({"consume_after_n_samples": True}, "not True"),
        ({"consume_after_n_samples": 1.5}, "not 1.5"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        ReplayBuffer(**{"storage": ListStorage(8), "consume_after_n_samples": 1, **options})


def test_exchanged_parts_are_checked_before_anything_changes():
    buffer = full()
    plain = ReplayBuffer(storage=LazyTensorStorage(8, ndim=2))
    for change in (
        lambda: buffer.set_storage(LazyTensorStorage(8, ndim=2)),
        lambda: buffer.set_writer(replay.TensorDictMaxValueWriter()),
        lambda: buffer.share(),
        lambda: buffer.split(0, 2),
        lambda: plain.set_sampler(ConsumingSampler()),
    ):
        with pytest.raises(UsageError):
            change()
    assert len(buffer.sample(3)) == 3
    assert isinstance(buffer.writer, RoundRobinWriter)
    assert type(plain.sampler) is replay.RandomSampler


@pytest.mark.parametrize(
    "change",
    [
        {"max_sample_count": 0},
        {"_sample_count": None},
        {"_sample_count": torch.tensor([-1] * 6)},
        {"_known_storage_len": 7},
        {"_free_indices": "nonsense"},
    ],
)
def test_states_that_cannot_be_are_refused(change: dict[str, Any]):
    buffer = full()
    buffer.sample(2)
    before = buffer.sampler.position()
    with pytest.raises(UsageError):
        buffer.sampler.load_state_dict({**buffer.sampler.state_dict(), **change})
    for position in (None, [1, 2], before.double(), before[:1], before[:4], -before):
        with pytest.raises(UsageError):
            buffer.sampler.set_position(position)
    assert torch.equal(buffer.sampler.position(), before)
    assert buffer.sampler.max_sample_count == 1


def test_free_rows_of_a_state_are_those_consumed():
    sampler = full().sampler
    state = {**sampler.state_dict(), "_sample_count": torch.tensor([1, 0, 1, 1, 0, 0])}
    sampler.load_state_dict({**state, "_free_indices": torch.tensor([3, 1, 3, 99, -1])})
    assert sampler.position()[8:].tolist() == [3, 0, 2]
    assert ConsumingSampler(np.int64(2)).max_sample_count == 2


def test_the_count_assigned_in_use():
    sampler = ConsumingSampler(1)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), sampler=sampler, batch_size=4, seed=0)
    buffer.extend(TensorDict({"a": torch.arange(8)}, [8]))
    buffer.sample()
    sampler.max_sample_count = 2
    drawn = 4
    while len(buffer):
        drawn += len(buffer.sample())
    assert drawn == 16
