"""Datasets as storages."""

from __future__ import annotations

import pytest
from rbdata.errors import ReadOnlyError
from rbdata.storage.replay import (
    DatasetStorage,
    ImmutableDatasetWriter,
    TensorDictReplayBuffer,
)
from rbdata.storage.replay.timeline import Edges, Timeline
from storage_tools import contents, make_episodes, write_dataset


def test_a_dataset_needs_no_looking(tmp_path, monkeypatch):
    """Slices of a folder come from its episode table, and opening one reads no rows."""
    folder = write_dataset(tmp_path, make_episodes([5, 9]))
    monkeypatch.setattr(Edges, "timeline", lambda *_: pytest.fail("edges were searched for"))
    storage = DatasetStorage(folder)
    assert isinstance(storage.timeline(Edges()), Timeline)
    assert isinstance(storage.timeline(Edges(end_keys=(("next", "done"),))), Timeline)


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
