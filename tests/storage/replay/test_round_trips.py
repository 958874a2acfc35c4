"""What is dumped can be loaded, with every key and dtype that a TensorDict allows; else `dumps` refuses it."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
)
from tensordict import TensorDict

STORAGES = [LazyTensorStorage, LazyMemmapStorage, ListStorage, LazyStackStorage, CompressedListStorage]
FILES = STORAGES[:2]
KEYS = [
    "a/b",
    "a.b",
    "",
    ".",
    "..",
    "meta.json",
    "_x",
    "next",
    "data",
    "é",
    "日本",
    "A",
    "a%2Fb",
    "a\nb",
    "%",
    "\x00",
    "kinds",
]
KEYS += ["batch_size", "0", "0.memmap", "a\\b", "newest", "records", "rbdata:type", "x.memmap", "x" * 120]
#: Those that folders of tensors cannot have: tensordict itself loses the first three.
REFUSED = ["shape", "device", "_type", "x" * 300, "\ud800"]
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
    # A folder of tensors has a file of the first name.
    deep = [key for key in KEYS if key != "meta.json" or storage not in FILES]
    check(storage, TensorDict({key: {"z": leaf(), key: leaf()} for key in deep}, [3]), tmp_path / "nested")


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("key", REFUSED, ids=ascii)
def test_keys_that_folders_of_tensors_cannot_have(storage, key, tmp_path):
    for data in (
        TensorDict({key: torch.ones(3), "y": torch.ones(3)}, [3]),
        TensorDict({"n": {key: torch.ones(3)}}, [3]),
    ):
        if storage not in FILES:
            check(storage, data, tmp_path / "checkpoint")
        else:
            with pytest.raises(UsageError, match="the key "):
                check(storage, data, tmp_path / "checkpoint")


@pytest.mark.parametrize("storage", FILES)
def test_keys_that_would_take_the_place_of_other_files(storage, tmp_path):
    taken = ["meta.json", "storage_metadata.json"]
    taken += ["rbdata_storage.json", "rbdata_counters.memmap"] if storage is LazyMemmapStorage else []
    for data in [{name: {"z": torch.ones(3)}} for name in taken] + [
        {"a": torch.ones(3), "a.memmap": {"z": torch.ones(3)}}
    ]:
        with pytest.raises(UsageError, match="would take the place of another file"):
            check(storage, TensorDict(data, [3]), tmp_path / "checkpoint")
    if storage is LazyMemmapStorage:
        with pytest.raises(UsageError, match="would take the place"):
            check(storage, TensorDict({"rbdata_counters": torch.ones(3)}, [3]), tmp_path / "checkpoint")


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
        check(storage, data, tmp_path / str(dtype))
        tried += 1
    assert tried >= 17


@pytest.mark.parametrize("value", [torch.ones(3).to_sparse(), torch.ones(3, device="meta")])
def test_tensors_that_no_file_holds(value, tmp_path):
    buffer = ReplayBuffer(storage=ListStorage(9), batch_size=4)
    buffer.extend([TensorDict({"x": value}, [])])
    with pytest.raises(UsageError, match=r"storage/records/0/x is a tensor .* no file can hold"):
        buffer.dumps(tmp_path / "checkpoint")


def test_lazily_conjugated_and_negated_tensors(tmp_path):
    value = torch.randn(3, dtype=torch.complex64)
    data = TensorDict({"conj": value.conj(), "imag": value.conj().imag}, [3])
    for storage in STORAGES:
        for found, _, _ in read(storage, data, tmp_path / storage.__name__):
            assert torch.equal(found["conj"], value.conj().resolve_conj())
            assert torch.equal(found["imag"], -value.imag)


def test_a_list_that_an_older_version_wrote(tmp_path):
    from rbdata.storage.replay.saving import write_state

    kinds = [{"batch": [2], "keys": ["a/b", "c"]}, "tensor", {"value": "text"}]
    tensors = {"0/a/b": torch.arange(2), "0/c": torch.ones(2, 3), "1": torch.zeros(4)}
    write_state(tmp_path, {"kinds": kinds, "newest": 2, **tensors})
    storage = ListStorage(5)
    storage.loads(tmp_path)
    first, second, third = storage.get(slice(0, 3))
    assert torch.equal(first["a", "b"], torch.arange(2)) and torch.equal(first["c"], torch.ones(2, 3))
    assert torch.equal(second, torch.zeros(4)) and third == "text"


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("storage", STORAGES)
def test_copies_have_the_same_bits(storage, device):
    """TensorDict.clone adds zero, which changes -0.0, and which some dtypes do not have."""
    zeros, depth = torch.full((4,), -0.0), torch.arange(4).to(torch.uint16)
    data = TensorDict({"zero": zeros, "below": {"depth": depth, "zero": zeros}}, [4], device=device)
    sampler = SamplerWithoutReplacement(shuffle=False)
    buffer = ReplayBuffer(storage=storage(4), sampler=sampler, batch_size=4, transform=lambda batch: batch, prefetch=2)
    buffer.extend(data)
    buffer.extend(buffer[:])
    for batch in (buffer[:], deepcopy(buffer)[:], buffer.sample()):
        for key in ("zero", ("below", "zero"), ("below", "depth")):
            assert same(batch[key], data[key])
