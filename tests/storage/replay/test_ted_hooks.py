"""Flattened TED in checkpoints."""

from __future__ import annotations

import pytest
import torch
from rbdata.errors import SchemaError, UsageError
from rbdata.storage.replay import (
    Flat2TED,
    LazyTensorStorage,
    ReplayBuffer,
    TED2Flat,
)
from replay_tools import equal, rollout
from tensordict import TensorDict


@pytest.mark.parametrize("ndim", [1, 2])
def test_flattened(tmp_path, ndim):
    make = lambda: ReplayBuffer(storage=LazyTensorStorage(14 * ndim, ndim=ndim), batch_size=4)  # noqa: E731
    for batches in ([[3, 4]], [[3, 4], [5, 6]]):
        buffer = make()
        for number, lengths in enumerate(batches):
            open_end = number == len(batches) - 1
            data = [rollout(lengths, first=100 * number + 1000 * env, open_end=open_end) for env in range(ndim)]
            buffer.extend(data[0] if ndim == 1 else torch.stack(data))
        buffer.register_save_hook(TED2Flat())
        buffer.dumps(tmp_path / "checkpoint")
        stored = TensorDict.load_memmap(tmp_path / "checkpoint" / "storage")
        assert "next" not in stored.keys()  # noqa: SIM118
        other = make()
        with pytest.raises(UsageError, match="save hook"):
            other.loads(tmp_path / "checkpoint")
        other.register_load_hook(Flat2TED())
        other.loads(tmp_path / "checkpoint")
        assert equal(other[:], buffer[:])


def test_what_cannot_be_flattened(tmp_path):
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
    buffer.extend(rollout([5], open_end=True))
    buffer.extend(rollout([5], first=100))  # the step before it is not done, and not followed by its successor
    buffer.register_save_hook(TED2Flat())
    with pytest.raises(SchemaError, match="not the following observation"):
        buffer.dumps(tmp_path / "checkpoint")
    assert not list(tmp_path.iterdir())
