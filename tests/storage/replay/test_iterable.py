"""Buffers as datasets of PyTorch's data loaders."""

from __future__ import annotations

import pytest
import rbdata
import torch
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from replay_tools import rollout
from storage_tools import make_episodes, write_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


@pytest.mark.parametrize(
    "kind,start",
    [("dataset", "fork"), ("memory", "fork"), ("memmap", "fork"), ("dataset", "spawn"), ("memory", "spawn")],
)
def test_data_loader_workers_share_a_pass(folder, kind, start):
    options = {"batch_size": 4, "sampler": SamplerWithoutReplacement(), "seed": 5}
    if kind == "dataset":
        buffer, size = TensorDictReplayBuffer(storage=folder, **options), 67
    else:
        storage = LazyTensorStorage(50) if kind == "memory" else LazyMemmapStorage(50)
        buffer, size = TensorDictReplayBuffer(storage=storage, **options), 50
        buffer.extend(rollout([50]))
    loader = buffer.as_iterable().loader(num_workers=2, multiprocessing_context=start)
    index = torch.cat([batch["index"] for batch in loader])
    assert sorted(index.tolist()) == list(range(size))


def test_workers_with_replacement_draw_differently(folder):
    buffer = rbdata.load(folder, batch_size=16, seed=5)
    loader = buffer.as_iterable(3).loader(num_workers=2, multiprocessing_context="fork")
    batches = [tuple(batch["index"].tolist()) for batch in loader]
    assert len(set(batches)) == 6
    again = rbdata.load(folder, batch_size=16, seed=5).as_iterable(3)
    loader = again.loader(num_workers=2, multiprocessing_context="fork")
    assert [tuple(batch["index"].tolist()) for batch in loader] == batches
    assert len(list(buffer.as_iterable(2).loader())) == 2
