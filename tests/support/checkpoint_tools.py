"""Buffers of every sampler, as the tests of checkpoints save and load them."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import torch
from rbdata.storage.replay import (
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from replay_tools import rollout
from tensordict import TensorDict

SAMPLERS: dict[str, Any] = {
    "random": RandomSampler,
    "passes": SamplerWithoutReplacement,
    "slices": lambda: SliceSampler(slice_len=2),
    "slice-passes": lambda: SliceSamplerWithoutReplacement(slice_len=2),
    "priorities": lambda: PrioritizedSampler(20, 0.7, 0.5),
}


def make(
    sampler: str = "random", storage: Any = LazyTensorStorage, seed: int = 0, **more: Any
) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=storage(20), sampler=SAMPLERS[sampler](), batch_size=4, seed=seed, **more)


def filled(**more: Any) -> TensorDictReplayBuffer:
    buffer = make(**more)
    buffer.extend(rollout([5, 6, 3]))
    buffer.extend(rollout([4, 5], first=100))
    for _ in range(4):  # further batches are drawn ahead then
        buffer.sample()
    return buffer


ROWS_OF_LARGE = 200_000


def large() -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS_OF_LARGE), batch_size=4, seed=0)


def dump_for_ever(path: str, numbers: Connection) -> None:
    """Write one checkpoint after the other; every value in the n-th is n, which is sent when it is finished."""
    buffer = large()
    number = 0
    while True:
        number += 1
        buffer.extend(TensorDict({"x": torch.full((ROWS_OF_LARGE, 8), float(number))}, [ROWS_OF_LARGE]))
        buffer.dumps(path)
        numbers.send(number)
