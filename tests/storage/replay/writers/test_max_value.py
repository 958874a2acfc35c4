"""The writer that keeps the highest values."""

from __future__ import annotations

import torch
from rbdata.storage.replay import (
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictMaxValueWriter,
)
from replay_tools import rollout


def test_max_values_over_time():
    buffer = ReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter(), batch_size=2)
    batch = torch.stack([rollout([3], first=first) for first in (0, 100, 200)])
    batch["next", "reward"] = torch.tensor([1.0, 5.0, 3.0]).view(3, 1, 1).expand(3, 3, 1).clone()
    buffer.extend(batch)
    assert sorted(buffer["action"][:, 0].tolist()) == [100, 200]
    assert buffer.add(batch[0]) is None
