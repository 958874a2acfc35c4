"""Random crops."""

from __future__ import annotations

from typing import Any

import pytest
import rbdata
import torch
from rbdata.errors import SamplingError, SchemaError, UsageError
from rbdata.storage.replay import (
    MultiStep,
    RandomCropTensorDict,
    split_trajectories,
)
from replay_tools import chi_square, equal, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


def test_crops_reach_both_ends():
    """Every start comes, the last one too, and a sequence of exactly the length is itself (TorchRL's misses both)."""
    torch.manual_seed(0)
    crop = RandomCropTensorDict(3)
    batch: Any = torch.stack([rollout([7])] * 200)
    starts = crop(batch)["action"][:, 0]
    assert sorted(starts.unique().tolist()) == [0, 1, 2, 3, 4]
    assert chi_square(torch.bincount(starts).float(), torch.full((5,), 40.0)) < 5
    assert equal(RandomCropTensorDict(7)(batch), batch)
    with pytest.raises(SamplingError, match="no piece of 8"):
        RandomCropTensorDict(8)(batch)
    masked = batch.clone().set("mask", torch.arange(7).expand(200, 7) < 4)
    cropped = RandomCropTensorDict(3, mask_key="mask")(masked)
    assert sorted(cropped["action"][:, 0].unique().tolist()) == [0, 1]
    first = RandomCropTensorDict(3, sample_dim=0)(rollout([9]))
    assert first.batch_size == (3,)


def test_slices_split_and_cropped(folder):
    buffer = rbdata.load(folder, batch_size=60, slice_len=6, seed=0)
    split = split_trajectories(buffer.sample())
    assert split.batch_size == (10, 6) and split["mask"].all()
    buffer.append_transform(lambda batch: batch.view(10, 6)).append_transform(MultiStep(gamma=0.9, n_steps=3))
    buffer.append_transform(RandomCropTensorDict(2))
    batch = buffer.sample()
    assert batch.batch_size == (10, 2) and "steps_to_next_obs" in batch.keys()  # noqa: SIM118


def test_helpers_refuse():
    with pytest.raises(UsageError):
        MultiStep(0.9, 0)
    with pytest.raises(UsageError):
        MultiStep(0, 2)
    with pytest.raises(SchemaError, match="next/done"):
        MultiStep(0.9, 2)(TensorDict({"next": {"reward": torch.zeros(3, 1)}}, [3]))
    with pytest.raises(SchemaError, match="neither trajectory ids"):
        split_trajectories(TensorDict({"x": torch.zeros(3)}, [3]))
    with pytest.raises(UsageError):
        RandomCropTensorDict(0)
