"""Datasets as storages."""

from __future__ import annotations

import numpy as np
import pytest
import rbdata
from rbdata.errors import ReadOnlyError, UsageError
from rbdata.storage.replay import (
    DatasetStorage,
    ImmutableDatasetWriter,
    TensorDictReplayBuffer,
)
from rbdata.storage.replay.storages.episode_storage import EpisodeStorage
from storage_tools import contents, make_episodes, write_dataset


def made(root, scale):
    """A dataset of three episodes whose actions are their rows times ``scale``."""
    rows = {"observation": np.zeros((9, 1)), "action": np.arange(9) * scale, "reward": np.ones(9)}
    return rbdata.from_arrays({**rows, "done": np.arange(9) % 3 == 2}, "my/x", root=root, force=True)


def test_a_state_is_of_these_data(tmp_path):
    """Not of others of their name and size, which replaced them."""
    buffer = rbdata.load(made(tmp_path, 1.0), batch_size=2, seed=0)
    buffer.sample()
    state = buffer.state_dict()
    buffer.dumps(tmp_path / "state")
    again = rbdata.load(made(tmp_path, 1.0), batch_size=2, seed=0)
    again.load_state_dict(state)
    again.loads(tmp_path / "state")
    other = rbdata.load(made(tmp_path, 2.0), batch_size=2, seed=0)
    with pytest.raises(UsageError, match="a my/x with other contents"):
        other.load_state_dict(state)
    with pytest.raises(UsageError, match="a my/x with other contents"):
        other.loads(tmp_path / "state")


def test_a_state_counts_steps_also_where_records_are_episodes(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([5, 9]))
    state = EpisodeStorage(folder).state_dict()
    assert (state["steps"], state["episodes"]) == (14, 2)
    DatasetStorage(folder).load_state_dict(state)


def test_a_dataset_is_not_written(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([5, 9]))
    before = contents(folder)
    buffer = TensorDictReplayBuffer(storage=folder, batch_size=4)
    assert isinstance(buffer.writer, ImmutableDatasetWriter)
    row = buffer.storage.get(slice(0, 2))
    for write in (
        lambda: buffer.extend(row),
        lambda: buffer.add(row[0]),
        lambda: buffer.empty(),
        lambda: buffer.__setitem__(0, row[0]),
    ):
        with pytest.raises(ReadOnlyError, match="doesn't allow writing"):
            write()
    batch = buffer.sample()
    batch["observation"].zero_()
    buffer[:]["action"].zero_()
    assert contents(folder) == before
