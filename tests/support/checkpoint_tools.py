"""Buffers of every sampler, as the tests of checkpoints save and load them."""

from __future__ import annotations

from typing import Any

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
    for _ in range(3):
        buffer.sample()
    return buffer
