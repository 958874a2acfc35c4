"""Buffers of TensorDicts: priorities in the data."""

from __future__ import annotations

import pytest
import torch
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from replay_tools import priorities, rollout
from tensordict import TensorDict


def test_priorities_in_the_data():
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1, beta=1, eps=0, storage=LazyTensorStorage(8), batch_size=4)
    data = rollout([6])
    data["td_error"] = torch.arange(1.0, 7).unsqueeze(1)
    buffer.extend(data)
    assert priorities(buffer)[:6].tolist() == [1, 2, 3, 4, 5, 6]
    batch = buffer.sample()
    batch["td_error"] = torch.full((4, 1), 0.5)
    buffer.update_tensordict_priority(batch)
    assert set(priorities(buffer)[batch["index"]].tolist()) == {0.5}
    several = TensorDictPrioritizedReplayBuffer(
        alpha=1, beta=1, eps=0, storage=LazyTensorStorage(8), batch_size=4, priority_key="error", reduction="mean"
    )
    several.extend(rollout([6]))
    batch = several.sample()
    batch["error"] = torch.tensor([[1.0, 3.0]] * 4)
    several.update_tensordict_priority(batch)
    assert set(priorities(several)[batch["index"]].tolist()) == {2.0}
    with pytest.raises(UsageError, match="no error"):
        several.update_tensordict_priority(several.sample())


def test_records_that_were_not_kept():
    """A writer that drops records tells so with -1, and no priority is set for them."""
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1, beta=1, storage=LazyTensorStorage(4), writer=TensorDictMaxValueWriter(), batch_size=3
    )
    data = rollout([9])
    data["td_error"] = torch.arange(1.0, 10)
    index = buffer.extend(data)
    assert (index == -1).sum() == 5
    assert sorted(priorities(buffer).tolist()) == [6, 7, 8, 9]


def test_plain_prioritized_buffer():
    buffer = PrioritizedReplayBuffer(alpha=1, beta=0.5, storage=LazyTensorStorage(10), batch_size=4)
    buffer.extend(torch.arange(10))
    batch, info = buffer.sample(return_info=True)
    assert torch.equal(batch, info["index"]) and info["priority_weight"].shape == (4,)


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_single_records(storage):
    """`add` of a TensorDict without batch dimensions, and of whole trajectories."""
    buffer = TensorDictReplayBuffer(storage=storage(10), batch_size=4)
    assert [buffer.add(TensorDict({"x": torch.tensor(float(number))}, [])) for number in range(12)] == [
        *range(10),
        0,
        1,
    ]
    batch = buffer.sample()
    assert batch.batch_size == (4,) and torch.equal(batch["index"], batch["x"].long() % 10)
