"""What is dumped can be loaded, with unusual keys and every dtype; else `dumps` refuses it."""

from __future__ import annotations

import pytest
import torch
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
)
from rbdata.storage.tensordict_folder import READ_BACK
from tensordict import TensorDict

STORAGES = [LazyTensorStorage, LazyMemmapStorage, ListStorage]
KEYS = ["a.b", "_x", "next", "data", "é", "日本", "A", "0", "newest", "records", "x.memmap", "x" * 120]
DTYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def read(storage, data, folder):
    """The data and a batch with its rows, after a checkpoint, and after a state in memory."""
    buffer = ReplayBuffer(storage=storage(9), batch_size=4)
    buffer.extend(data)
    buffer.dumps(folder)
    other, third = (ReplayBuffer(storage=storage(9), batch_size=4) for _ in range(2))
    other.loads(folder)
    third.load_state_dict(buffer.state_dict())
    for each in (buffer, other, third):
        batch, info = each.sample(return_info=True)
        yield each[:], batch, info["index"]


def same(tensor, other):
    """To the bit: not every dtype can be compared."""
    views = [each.contiguous().view(-1).view(torch.uint8) for each in (tensor, other)]
    return tensor.dtype == other.dtype and tensor.shape == other.shape and torch.equal(*views)


def check(storage, data, folder):
    names = set(data.keys(True, True))
    for found, batch, index in read(storage, data, folder):
        assert set(found.keys(True, True)) == set(batch.keys(True, True)) == names
        for name in names:
            assert same(found[name], data[name])
            assert all(same(batch[name][place], data[name][row]) for place, row in enumerate(index.tolist()))


@pytest.mark.parametrize("storage", STORAGES)
def test_keys(storage, tmp_path):
    values = iter(range(1000))
    leaf = lambda: torch.full((3, 2), float(next(values)))  # noqa: E731
    check(storage, TensorDict({"a": {"b": leaf()}, **{key: leaf() for key in KEYS}}, [3]), tmp_path / "flat")
    check(storage, TensorDict({key: {"z": leaf(), key: leaf()} for key in KEYS}, [3]), tmp_path / "nested")


@pytest.mark.parametrize("storage", STORAGES)
def test_dtypes(storage, tmp_path):
    tried = 0
    for dtype in DTYPES:
        try:
            torch.zeros(2, 8, dtype=torch.uint8).view(dtype)[0]
        except (RuntimeError, NotImplementedError):  # torch itself cannot view or index it
            continue
        bits = torch.randint(0, 2 if dtype == torch.bool else 60, (4, 48), dtype=torch.uint8)
        data = TensorDict({"x": bits.view(dtype), "y": torch.arange(4)}, [4])
        try:
            data[0].expand(2).contiguous()
        except (RuntimeError, NotImplementedError):
            continue
        if str(dtype) in READ_BACK:
            check(storage, data, tmp_path / str(dtype))
            tried += 1
            continue
        buffer = ReplayBuffer(storage=LazyTensorStorage(9), batch_size=4)
        buffer.extend(data)
        with pytest.raises(UsageError, match="cannot read back"):  # tensordict writes it, and cannot read it
            buffer.dumps(tmp_path / str(dtype))
    assert tried >= 15


@pytest.mark.parametrize("value", [torch.ones(3).to_sparse(), torch.ones(3, device="meta")])
def test_tensors_that_no_file_holds(value, tmp_path):
    buffer = ReplayBuffer(storage=ListStorage(9), batch_size=4)
    buffer.extend([TensorDict({"x": value}, [])])
    with pytest.raises(UsageError, match="x is a tensor"):
        buffer.dumps(tmp_path / "checkpoint")
