"""Storages of lists."""

from __future__ import annotations

import torch
from rbdata.storage.replay import (
    ListStorage,
    ReplayBuffer,
)
from tensordict import TensorDict


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
