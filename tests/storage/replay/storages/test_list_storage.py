"""Storages of lists."""

from __future__ import annotations

import torch
from rbdata.storage.replay import (
    LazyStackStorage,
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


def test_lazy_stacks():
    buffer = ReplayBuffer(storage=LazyStackStorage(5, stack_dim=-1), batch_size=6)
    for size in (10, 11):
        buffer.add(TensorDict({"a": torch.rand(size), "b": torch.full((4,), size), "c": f"{size} values"}))
    batch = buffer.sample()
    assert batch.batch_size == (6,)
    assert batch["c"] == [f"{int(row[0])} values" for row in batch["b"]]
    assert batch.densify(layout=torch.jagged)["a"].shape[0] == 6
    assert buffer.storage.get([0, 1]).batch_size == (2,)
