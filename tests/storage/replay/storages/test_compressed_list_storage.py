"""Compressed records in memory."""

from __future__ import annotations

import pickle

import pytest
import torch
import torchrl.data as torchrl
from rbdata.errors import DamagedDatasetError, SchemaError, UsageError
from rbdata.storage.replay import (
    CompressedListStorage,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
)
from replay_tools import equal, rollout
from tensordict import TensorDict, tensorclass


def frames(count: int) -> TensorDict:
    data = rollout([count - 3, 3])
    data["pixels"] = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1).expand(-1, 20, 20).contiguous()
    data["next", "pixels"] = data["pixels"] + 1
    return data


def filled(count: int = 12, **options) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=CompressedListStorage(8), batch_size=5, **options)
    buffer.extend(frames(count))
    return buffer


def test_batches_are_what_was_stored():
    """A ring of TensorDicts, read leaf by leaf: random batches, slices, n-step returns, records, columns."""
    data = frames(12)
    buffer = filled(seed=0)
    batch, info = buffer.sample(return_info=True)
    rows = torch.where(info["index"] < 4, info["index"] + 8, info["index"])
    assert equal(batch.exclude("index"), data[rows])
    assert equal(buffer[2].exclude("index"), data[10])
    assert isinstance(buffer.storage, CompressedListStorage)
    assert buffer.storage.bytes() < 8 * 2 * 400
    slices = filled(sampler=SliceSampler(slice_len=3)).sample(6)
    assert bool((slices["pixels"][:, 0, 0].view(2, 3).diff(dim=1) == 1).all())
    assert filled(n_step=2, gamma=0.5).sample()["next", "pixels"].shape == (5, 20, 20)
    buffer[1] = data[:1][0]
    assert equal(buffer[1].exclude("index"), data[0])
    copy = pickle.loads(pickle.dumps(buffer))
    assert equal(copy.sample(), buffer.sample())


@tensorclass
class Step:
    pixels: torch.Tensor
    name: str


RECORDS = [
    torch.rand(3),
    torch.tensor(2.5),
    torch.arange(400).view(20, 20),
    TensorDict({"a": torch.arange(100), "b": {"c": torch.zeros(2, 0)}, "text": "one"}, []),
    TensorDict({"a": torch.rand(2, 50).bfloat16()}, [2]),
]


def test_records_of_any_kind(tmp_path):
    storage = CompressedListStorage(9, compression_level=9)
    for place, record in enumerate(RECORDS):
        storage.set(place, record)
    storage.dumps(tmp_path)
    loaded, state = CompressedListStorage(9), CompressedListStorage(9)
    loaded.loads(tmp_path)
    state.load_state_dict(storage.state_dict())
    for one in (storage, loaded, state):
        assert len(one) == len(RECORDS)
        for got, record in zip(one.get([*range(5)]), RECORDS):
            assert type(got) is type(record)
            assert got.shape == record.shape
            assert bool((got == record).all())
        assert one.get(3)["text"] == "one"
    storage.set(5, Step(pixels=torch.ones(80), name="x"))  # type: ignore[call-arg]
    storage.set(6, "text")
    assert isinstance(storage.get(5), Step) and storage.get(6) == "text"
    with pytest.raises(UsageError, match="pickle"):
        storage.dumps(tmp_path)
    with pytest.raises(IndexError):
        storage.get(7)
    with pytest.raises(SchemaError):
        storage.set(12, RECORDS[0])
    storage.empty()
    assert not len(storage) and not storage.contains(0)


@pytest.mark.parametrize("alone", [False, True])
def test_nested_batch_sizes_are_those_written(tmp_path, alone):
    """As the groups of agents of a multi-agent environment have, also in checkpoints."""
    agents = TensorDict({"pixels": torch.arange(4 * 3 * 100).view(4, 3, 100), "one": torch.ones(4, 3, 2, 5)}, [4, 3])
    agents["deeper"] = TensorDict({"x": torch.ones(4, 3, 2)}, [4, 3, 2])
    data = TensorDict({"agents": agents, "none": {}, "x": torch.arange(4.0), "same": {"y": torch.arange(4)}}, [4])
    buffer, again = (ReplayBuffer(storage=CompressedListStorage(4), batch_size=4) for _ in range(2))
    buffer.extend(list(data) if alone else data)
    buffer.dumps(tmp_path / "checkpoint")
    again.loads(tmp_path / "checkpoint")
    for one in (buffer, again):
        for got, wanted in ((one[:], data), (one[2], data[2]), (one.sample(), data)):
            for path in ("agents", ("agents", "deeper"), "none", "same"):
                assert got[path].batch_size == wanted[path].batch_size
        assert equal(one[:].exclude("none"), data.exclude("none"))
    assert isinstance(buffer.storage, CompressedListStorage)
    assert buffer.storage.bytes() < 4 * agents[0].bytes()


def test_stacks_and_returns_of_groups_of_agents():
    """n-step returns have the nested batch size; stacks and windows come before the dimensions of a group."""
    agents = TensorDict({"observation": torch.arange(4 * 3.0).view(4, 3)}, [4, 3])
    following = TensorDict({"observation": torch.arange(4 * 3.0).view(4, 3) + 3}, [4, 3])
    flags = {"done": torch.zeros(4, 1, dtype=torch.bool), "reward": torch.ones(4, 1)}
    data = TensorDict({"agents": agents, "next": TensorDict({"agents": following, **flags}, [4])}, [4])
    key = ("agents", "observation")
    batches = []
    for options in ({"n_step": 2}, {"frame_stack": 2, "stack_keys": [key]}, {"windows": {key: (-1, 0)}}):
        buffer = TensorDictReplayBuffer(storage=CompressedListStorage(4), batch_size=4, **options)
        buffer.extend(data)
        batches.append(buffer.sample_at(torch.arange(4)))
    returns, stacks, windows = batches
    assert returns["agents"].batch_size == returns["next", "agents"].batch_size == (4, 3)
    assert returns["next", "agents", "observation"][:, 0].tolist() == [6, 9, 12, 12]
    assert stacks["agents"].batch_size == windows["agents"].batch_size == (4,)
    assert stacks[key].shape == windows[key].shape == (4, 2, 3)
    assert torch.equal(stacks[key][1:], windows[key][1:])
    assert windows[key][2].tolist() == [[3, 4, 5], [6, 7, 8]]


@tensorclass
class Pair:
    first: Step
    second: torch.Tensor


@pytest.mark.parametrize("alone", [False, True])
def test_tensorclasses_within_records_stay(alone):
    step = Step(pixels=torch.arange(400).view(4, 100), name="x", batch_size=[4])  # type: ignore[call-arg]
    for data in (
        TensorDict({"step": step, "x": torch.arange(4)}, [4]),
        Pair(first=step, second=torch.arange(4), batch_size=[4]),  # type: ignore[call-arg]
    ):
        buffer = ReplayBuffer(storage=CompressedListStorage(4), batch_size=4)
        buffer.extend(list(data) if alone else data)
        for got in (buffer[:], buffer.sample(), buffer[2]):
            assert type(got) is type(data)
            found = got["step"] if isinstance(got, TensorDict) else got.first
            assert isinstance(found, Step)
        found = buffer[2]["step"] if isinstance(data, TensorDict) else buffer[2].first
        assert torch.equal(found.pixels, step.pixels[2])


def test_functions_of_ones_own():
    storage = CompressedListStorage(
        4,
        compression_fn=lambda tensor: tensor.to(torch.uint8),
        decompression_fn=lambda tensor, metadata: tensor.to(metadata["dtype"]).reshape(metadata["shape"]),
    )
    buffer = ReplayBuffer(storage=storage, batch_size=3)
    buffer.extend(TensorDict({"x": torch.arange(4.0)}, [4]))
    assert buffer.sample()["x"].dtype == torch.float32
    assert storage.bytes() == 4
    with pytest.raises(UsageError):
        storage.state_dict()


def test_states_of_torchrl():
    theirs = torchrl.CompressedListStorage(4)
    theirs.set(0, RECORDS[2])
    theirs.set(1, TensorDict({"a": torch.arange(100)}, []))
    ours = CompressedListStorage(4)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.get(0), RECORDS[2])
    assert torch.equal(ours.get(1)["a"], torch.arange(100))


@pytest.mark.parametrize("damage", ["lengths", "kind", "data", "dtype", "shape"])
def test_damaged_states(damage, tmp_path):
    from rbdata.storage.replay.saving import read_state, write_state

    storage = CompressedListStorage(4)
    storage.set(slice(0, 2), torch.arange(800).view(2, 400))
    storage.dumps(tmp_path)
    state = read_state(tmp_path)
    if damage in ("lengths", "kind"):
        state[damage][0] += 1
    elif damage == "data":
        state["data"][:9] = 255
    else:
        state["kinds"][0]["leaves"][0][1 if damage == "dtype" else 2] = "load" if damage == "dtype" else [3]
    write_state(tmp_path, state)
    other = CompressedListStorage(4)
    with pytest.raises(DamagedDatasetError):
        other.loads(tmp_path)
        other.get(0)


@pytest.mark.parametrize("options", [{"n_step": 3}, {"frame_stack": 3}, {"n_step": 2, "frame_stack": 2}], ids=str)
def test_windows_before_the_ring_is_full_and_after(options):
    plain, packed = (
        TensorDictReplayBuffer(storage=kind(30), batch_size=16, seed=1, **options)
        for kind in (LazyTensorStorage, CompressedListStorage)
    )
    for number, lengths in enumerate(([2], [1, 6], [9, 4], [10, 12], [3])):
        for buffer in (plain, packed):
            buffer.extend(rollout(lengths, first=100 * number))
        assert all(equal(plain.sample(), packed.sample()) for _ in range(3))


def test_what_a_compression_fn_returns_is_copied():
    """It may be a view of the record, whose memory the loop uses again."""
    functions = {
        "compression_fn": lambda leaf: leaf.to(torch.uint8),
        "decompression_fn": lambda blob, about: blob.to(about["dtype"]),
    }
    buffer = ReplayBuffer(storage=CompressedListStorage(8, **functions), batch_size=4)
    frame = torch.zeros(2, dtype=torch.uint8)
    for number in range(4):
        buffer.add(TensorDict({"pixels": frame.fill_(number)}))
    assert [buffer[number]["pixels"][0].item() for number in range(4)] == [0, 1, 2, 3]


def test_records_of_the_codec_are_not_given_to_functions_of_the_users():
    """Their function would be called with other bytes than it wrote."""
    packed = CompressedListStorage(4)
    packed.set(slice(0, 2), torch.arange(800).view(2, 400))
    own = CompressedListStorage(4, compression_fn=lambda t: t + 1, decompression_fn=lambda blob, _: torch.zeros(400))
    with pytest.raises(UsageError, match="functions of one's own cannot read"):
        own.load_state_dict(packed.state_dict())


def test_a_single_record_with_strides_of_its_batch_is_written():
    """Torch calls it contiguous, and views no other dtype."""
    buffer = ReplayBuffer(storage=CompressedListStorage(4), batch_size=2)
    batch = TensorDict({"pixels": torch.arange(4), "wide": torch.arange(4).view(4, 1)}, [4])
    buffer.extend(batch[1:3:2])
    buffer.extend(batch[::2][1:])
    assert buffer[:]["pixels"].tolist() == [1, 2]
    assert buffer[:]["wide"].tolist() == [[1], [2]]
