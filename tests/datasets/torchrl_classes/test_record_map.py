"""``preprocess`` of the dataset classes: the same records, whatever the chunks and processes."""

from __future__ import annotations

import pytest
import torch
from preprocess_tools import twice
from rbdata import LazyTensorStorage, ListStorage, TensorStorage
from rbdata.datasets.torchrl_classes.record_map import map_records
from rbdata.errors import UsageError
from tensordict import TensorDict


def data(rows: int = 11) -> TensorDict:
    return TensorDict({"a": torch.arange(rows), "next": {"b": torch.randn(rows, 3)}}, [rows])


@pytest.mark.parametrize("more", [{}, {"num_chunks": 4}, {"chunksize": 3}, {"chunksize": 0}, {"num_workers": 2}])
def test_chunks(more, tmp_path):
    source = data()
    mapped = map_records(
        TensorStorage(source), twice, tmp_path, **{"num_workers": 0, "mp_start_method": "forkserver", **more}
    )
    whole = mapped.get(slice(None))
    assert whole["twice"].tolist() == [2 * i for i in range(11)]
    assert "twice" not in source.keys()  # noqa: SIM118
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.memmap", "meta.json", "twice.memmap"]


def test_the_first_frames_changed_in_place(tmp_path):
    storage = LazyTensorStorage(20)
    storage.set(range(11), data())

    def change(batch):
        batch["next", "b"].zero_()

    mapped = map_records(storage, change, tmp_path, num_frames=4, num_workers=0)
    assert len(mapped) == 4
    assert not mapped.get(slice(None))["next", "b"].any()
    assert storage.get(slice(None))["next", "b"].all()


def test_what_cannot_be_mapped(tmp_path):
    for storage, fn, more, words in (
        (TensorStorage(data()), lambda batch: batch[:0], {}, "for \\[1\\] records"),
        (TensorStorage(data()), twice, {"dim": 1}, "dimension 0"),
        (ListStorage(3), twice, {}, "has none that are mapped"),
        (TensorStorage(torch.zeros(3)), twice, {}, "has none that are mapped"),
    ):
        with pytest.raises(UsageError, match=words):
            map_records(storage, fn, tmp_path / "out", **more)
