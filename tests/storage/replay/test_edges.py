"""Where episodes end: ids, flags, tensors."""

from __future__ import annotations

import pytest
import torch
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from replay_tools import rollout
from tensordict import TensorDict


def test_no_edges_to_be_found():
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=2), batch_size=4)
    buffer.extend(rollout([10]).select("action"))
    with pytest.raises(UsageError, match="does not say where episodes end"):
        buffer.sample()


@pytest.mark.parametrize(
    "where",
    [
        {"end_key": ("next", "done")},
        {"end_keys": [("next", "terminated"), ("next", "truncated")]},
        {"traj_key": ("collector", "traj_ids")},
        {"traj_key": "episode_id"},
        {"ends": torch.tensor([0, 0, 1, 0, 0, 0, 1, 0, 1, 1], dtype=torch.bool)},
        {"trajectories": torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 3])},
        {},
    ],
    ids=lambda where: "-".join(where) or "usual",
)
def test_edges_from_everywhere(where):
    data = rollout([3, 4, 2, 1])
    data["episode_id"] = data["collector", "traj_ids"] + 5
    if set(where) - {"traj_key"}:
        data = data.exclude("collector")
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10), sampler=SliceSampler(slice_len=3, **where), batch_size=30
    )
    buffer.extend(data)
    starts = {int(start) for _ in range(20) for start in buffer.sample()["index"][::3]}
    assert starts == {0, 3, 4}


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_a_leaf_named_as_the_group_of_ids(storage):
    """``collector`` is looked into for ``traj_ids``: here it is a leaf, and episodes end where they are done."""
    steps = torch.arange(30)
    done = (steps % 5 == 4)[:, None]
    data = TensorDict({"a": steps, "collector": steps, "next": {"done": done}}, [30])
    buffer = TensorDictReplayBuffer(storage=storage(30), sampler=SliceSampler(slice_len=5), batch_size=10)
    buffer.extend(data)
    assert bool((buffer.sample()["a"].view(2, 5)[:, 0] % 5 == 0).all())
