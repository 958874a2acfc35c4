"""Tensors whose negation or conjugation torch puts off until they are read are stored as what they show."""

from __future__ import annotations

import pytest
import torch
from rbdata import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)
from tensordict import TensorDict


def records(kind: str, width: int) -> TensorDict:
    numbers = torch.arange(8.0 * width).reshape(8, width)
    x = torch.complex(numbers, numbers + 1).conj() if kind == "conjugated" else torch._neg_view(numbers.clone())
    assert x.is_conj() or x.is_neg()
    return TensorDict({"x": x, "i": torch.arange(8)}, [8])


@pytest.mark.parametrize("kind", ["negated", "conjugated"])
@pytest.mark.parametrize("width", [1, 64])  # rows that are read as they are, and as wide words
@pytest.mark.parametrize("storage", [ListStorage, LazyTensorStorage, LazyMemmapStorage, CompressedListStorage, None])
def test_records(storage, width, kind, tmp_path):
    data = records(kind, width)
    wanted = data["x"].resolve_conj().resolve_neg()

    def make():
        held = TensorStorage(data) if storage is None else storage(8)
        return TensorDictReplayBuffer(storage=held, batch_size=4)

    buffer = make()
    if storage is not None:
        buffer.extend(data)
    buffer.dumps(tmp_path / "checkpoint")
    loaded = make()
    loaded.loads(tmp_path / "checkpoint")
    for one in (buffer, loaded):
        batch = one.sample()
        assert torch.equal(batch["x"], wanted[batch["i"]])
        assert torch.equal(one[:]["x"], wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_priorities(dtype):
    """Those of a model in bfloat16 as well, which NumPy has not."""
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(8), batch_size=8)
    buffer.extend(records("negated", 1))
    for given in (torch.arange(1, 9, dtype=dtype), torch._neg_view(-torch.arange(1, 9, dtype=dtype))):
        buffer.update_priority(torch.arange(8), given)
        batch = buffer.sample()
        weight = (batch["index"] + 1).double() ** -1
        assert torch.allclose(batch["priority_weight"].double() / weight, batch["priority_weight"][0] / weight[0])
        buffer.update_priority(torch.arange(8), 1.0)
