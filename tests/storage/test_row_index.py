"""What an index means: the same as to NumPy, for datasets and for every storage of a buffer, read and written."""

from typing import Any

import numpy as np
import pytest
import torch
from rbdata import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
    errors,
    from_arrays,
    load,
    open_dataset,
)
from tensordict import TensorDict

COUNT = 6
STORAGES = [ListStorage, LazyTensorStorage, LazyMemmapStorage]
MASK = [True, False, True, False, False, True]
INDICES: list[Any] = [
    0,
    -1,
    np.int64(2),
    np.int32(-6),
    np.uint8(5),
    torch.tensor(3),
    np.array(4),
    [],
    torch.tensor([]),
    np.array([], np.int64),
    [1, 2],
    [-1, 0, 0],
    [np.int64(1), torch.tensor(2)],
    range(5, 2, -1),
    torch.tensor([1, 5], dtype=torch.uint8),
    np.array([1, 2], np.uint64),
    MASK,
    torch.tensor(MASK),
    np.array(MASK),
    [False] * COUNT,
    ...,
    slice(0, 0),
    slice(np.int64(1), np.int64(3)),
    slice(None, None, -1),
    slice(-2, None),
    slice(-1, -4, -2),
    slice(None, -1),
    slice(1, None, 2),
    (2,),
    ([1, 2],),
    (slice(1, 3),),
]
WRONG: list[Any] = [
    COUNT + 5,
    -COUNT - 1,
    np.int64(99),
    [1, 99],
    [1, -7],
    torch.tensor([0, 99]),
    [True, False],
    torch.ones(COUNT + 1, dtype=torch.bool),
    torch.ones(COUNT, 1, dtype=torch.bool),
    True,
    np.bool_(False),
    1.0,
    np.float64(1),
    [1.0, 2.0],
    torch.tensor([1.0]),
    slice(1.0, 2.0),
    slice(0, 3, 0),
    object(),
    [[1], [2, 3]],
]


def numbers(index):
    """The rows that NumPy takes for an index."""
    index = index[0] if isinstance(index, tuple) else index
    if not isinstance(index, (int, slice, type(...))):
        index = np.asarray(index)
        index = index if index.size else index.astype(np.int64)
    return np.arange(COUNT)[index]


def has_batch(index):
    """Whether `sample_at` takes it: like the indices of batches, its numbers are not negative."""
    return not isinstance(index, tuple) and (
        isinstance(index, (slice, type(...))) or bool((np.asarray(index) >= 0).all())
    )


def records(values):
    values = torch.as_tensor(np.asarray(values))
    return TensorDict({"a": values, ("b", "c"): values.float().unsqueeze(-1) / 2}, values.shape)


def filled(storage, room):
    if storage is TensorStorage:
        return TensorDictReplayBuffer(storage=TensorStorage(records(range(COUNT))))
    buffer = ReplayBuffer(storage=storage(COUNT + room))
    buffer.extend(records(range(COUNT)))
    return buffer


def read(found, key="a"):
    """A leaf of records, also of a list without any."""
    return found.get(key).numpy() if not isinstance(found, list) else np.zeros(0, int)


@pytest.mark.parametrize("room", [0, 4])
@pytest.mark.parametrize("storage", [*STORAGES, TensorStorage])
def test_records_are_read_and_written_as_by_numpy(storage, room):
    buffer = filled(storage, room)
    for index in INDICES:
        wanted = numbers(index)
        for found in (buffer[index], buffer.storage[index], buffer.storage.get(index)):
            if buffer.storage is not None and isinstance(found, list) and found:
                found = torch.stack(found)
            assert np.array_equal(read(found), wanted), index
            assert read(found).shape == wanted.shape, index
        if has_batch(index):
            assert np.array_equal(read(buffer.sample_at(index)), wanted.reshape(-1)), index
        truth = np.arange(COUNT)
        truth[wanted] = 100 + np.arange(wanted.size).reshape(wanted.shape)
        other = filled(storage, room)
        other[index] = records(100 + np.arange(wanted.size).reshape(wanted.shape))
        assert np.array_equal(read(other[:]), truth), index


@pytest.mark.parametrize("room", [0, 4])
@pytest.mark.parametrize("storage", [*STORAGES, TensorStorage])
def test_what_is_no_index_is_refused_and_nothing_is_written(storage, room):
    buffer = filled(storage, room)
    for index in WRONG:
        for container in (buffer, buffer.storage):
            with pytest.raises(errors.UnknownKeyError) as caught:
                container[index]
            assert isinstance(caught.value, IndexError)
            assert caught.value.code == "unknown_key"
        with pytest.raises(errors.SamplingError):
            buffer.sample_at(index)
        with pytest.raises((errors.SchemaError, errors.UsageError)):
            buffer[index] = records([-1, -2]) if isinstance(index, (list, slice)) else records(-1)
        assert np.array_equal(read(buffer[:]), np.arange(COUNT)), index


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, TensorStorage])
def test_indices_of_more_dimensions(storage):
    buffer = filled(storage, 0)
    index = torch.tensor([[1, 2], [-1, 4]])
    assert buffer[index]["a"].tolist() == [[1, 2], [5, 4]]
    buffer[index] = records([[11, 12], [15, 14]])
    assert buffer[:]["a"].tolist() == [0, 11, 12, 3, 14, 15]
    with pytest.raises(errors.SchemaError):
        buffer[index] = records([1, 2])
    with pytest.raises(errors.UnknownKeyError):
        buffer[1, 2]


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, TensorStorage, ListStorage])
def test_a_record_beyond_a_full_storage_is_not_lost_silently(storage):
    buffer = filled(storage, 0)
    with pytest.raises(errors.SchemaError):
        buffer[COUNT] = records(-1)
    with pytest.raises(errors.SchemaError):
        buffer[COUNT : COUNT + 1] = records([-1])


def test_storages_of_more_dimensions():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2), batch_size=2)
    buffer.extend(records(np.arange(8).reshape(2, 4)))
    assert buffer[:].batch_size == (2, 4)
    assert buffer[1, 2]["a"] == 6
    assert buffer[:, [0, -1]]["a"].tolist() == [[0, 3], [4, 7]]
    assert buffer.sample_at(torch.tensor([[1, 1]]))["a"].tolist() == buffer.storage[[1], [1]]["a"].tolist()
    for index in (5, [0, 9], (0, 9), 1.5, (0, 0, 0), [True, False, True, True, True]):
        with pytest.raises(errors.UnknownKeyError):
            buffer[index]


def test_datasets_and_their_episodes(tmp_path):
    ends = np.isin(np.arange(COUNT), [2, COUNT - 1])
    leaves = {"observation": np.arange(COUNT)[:, None], "action": np.arange(COUNT), "reward": np.zeros(COUNT)}
    from_arrays({**leaves, "terminated": ends}, "my/six", root=tmp_path)
    dataset = open_dataset("my/six", root=tmp_path)
    buffer = load("my/six", root=tmp_path, batch_size=2)
    for index in INDICES:
        wanted = numbers(index)
        assert np.array_equal(read(buffer[index], "action").reshape(wanted.shape), wanted), index
        if not isinstance(index, tuple):
            assert np.array_equal(read(dataset[index], "action").reshape(wanted.shape), wanted), index
        if has_batch(index):
            assert np.array_equal(read(buffer.sample_at(index), "action").reshape(-1), wanted.reshape(-1)), index
    for index in WRONG:
        with pytest.raises(errors.UnknownKeyError):
            dataset[index]
        with pytest.raises(errors.UnknownKeyError):
            buffer[index]
        with pytest.raises(errors.SamplingError):
            buffer.sample_at(index)
    assert [row.length for row in dataset.episodes[::-1]] == [3, 3]
    last: Any = np.int64(-1)
    assert dataset.episodes[last].start == 3
    odd: tuple[Any, ...] = (2, -3, [0, 2], [True], 1.0, True)
    for index in odd:
        with pytest.raises(errors.UnknownKeyError):
            dataset.episodes[index]
