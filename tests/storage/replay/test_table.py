"""The same calls in both libraries, with the same outcome.

Each function makes its calls with one library and returns what can be seen of them, in terms that no random number
changes. What needs more than a few lines is in test_torchrl.py.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch
from replay_tools import rollout
from tensordict import TensorDict

import rbdata.storage.replay as ours  # isort: skip

theirs = pytest.importorskip("torchrl.data")
logging.getLogger("torchrl").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")


def tensors(**more):
    return lambda lib: lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(10), batch_size=4, **more)


def keys(data) -> list[str]:
    return sorted(str(key) for key in data.keys(True, True))


def parts_as_factories(lib):
    buffer = lib.ReplayBuffer(
        storage=lambda: lib.LazyTensorStorage(10), sampler=lib.RandomSampler, writer=lib.RoundRobinWriter, batch_size=3
    )
    return buffer.extend(torch.arange(6)).tolist(), buffer.sample().shape


def defaults(lib):
    buffer = lib.ReplayBuffer(batch_size=2)
    names = [type(part).__name__ for part in (buffer.storage, buffer.sampler, buffer.writer)]
    return names, buffer.storage.max_size, buffer.add(torch.ones(3)), buffer.add(torch.ones(3)), buffer.sample().shape


def default_writer(lib):
    return type(tensors()(lib).writer).__name__


def batch_size_of_the_call_wins(lib):
    buffer = tensors()(lib)
    buffer.extend(rollout([9]))
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        return len(buffer.sample()), len(buffer.sample(7)), len(buffer.sample())


def more_than_fits(lib):
    buffer = tensors()(lib)
    rows = buffer.extend(rollout([23])).tolist()
    return rows, buffer[:]["action"].tolist(), len(buffer), buffer.extend(rollout([1])).tolist()


def info(lib):
    plain = lib.ReplayBuffer(storage=lib.LazyTensorStorage(10), batch_size=4)
    plain.extend(rollout([9]))
    batch, told = plain.sample(return_info=True)
    marked = tensors()(lib)
    marked.extend(rollout([9]))
    return keys(batch), sorted(map(str, told)), keys(marked.sample()), marked.sample()["index"].shape


def indexing(lib):
    buffer = tensors()(lib)
    buffer.extend(rollout([6]))
    buffer[2:4] = buffer[4:6]
    picked = [buffer[i]["action"].tolist() for i in (1, slice(2, 5), [0, 3], torch.tensor([5, 5]))]
    return picked, buffer["action"].tolist(), buffer["next", "reward"].shape, len(buffer)


def through_transforms(lib):
    buffer = tensors()(lib)
    buffer.extend(rollout([6]))
    buffer.append_transform(lambda data: data.set("twice", data["action"] * 2))
    buffer.append_transform(torch.nn.Identity())
    return buffer[1:3]["twice"].tolist(), bool((buffer.sample()["twice"] % 2 == 0).all())


def iteration(lib):
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyTensorStorage(10), sampler=lib.SamplerWithoutReplacement(), batch_size=4
    )
    buffer.extend(rollout([10]))
    passes = [[len(batch) for batch in buffer] for _ in range(2)]
    seen = sorted(torch.cat([batch["index"] for batch in buffer]).tolist())
    endless = tensors()(lib)
    endless.extend(rollout([10]))
    return passes, seen, len([batch for batch, _ in zip(endless, range(20))]), len(endless.next())


def dropped_last(lib):
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyTensorStorage(10), sampler=lib.SamplerWithoutReplacement(drop_last=True), batch_size=4
    )
    buffer.extend(rollout([10]))
    return [len(batch) for batch in buffer]


def in_order(lib):
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyTensorStorage(10), sampler=lib.SamplerWithoutReplacement(shuffle=False), batch_size=4
    )
    buffer.extend(rollout([10]))
    return [batch["action"].tolist() for batch in buffer]


def emptied(lib):
    buffer = tensors()(lib)
    buffer.extend(rollout([7]))
    buffer.empty()
    return len(buffer), buffer.extend(rollout([3])).tolist(), len(buffer), buffer.write_count


def read_only(lib):
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.TensorStorage(rollout([7])), writer=lib.ImmutableDatasetWriter(), batch_size=4
    )
    with pytest.raises(RuntimeError, match="doesn't allow writing"):
        buffer.extend(rollout([2]))
    with pytest.raises(RuntimeError, match="doesn't allow writing"):
        buffer.add(rollout([2])[0])
    return len(buffer), len(buffer.sample())


def states(lib):
    buffer, other = tensors()(lib), tensors()(lib)
    buffer.extend(rollout([7]))
    other.extend(rollout([3], first=70))
    other.load_state_dict(buffer.state_dict())
    return other[:]["action"].tolist(), other.extend(rollout([2])).tolist()


def slices_in_the_batch(lib):
    buffer = tensors(sampler=lib.SliceSampler(num_slices=2))(lib)
    buffer.extend(rollout([5, 4]))
    batch = buffer.sample(8)
    steps = batch["step_count"].view(2, 4)
    ends = batch["next", "truncated"].view(2, 4).tolist()
    return (
        batch.shape,
        keys(batch),
        bool((steps.diff() == 1).all()),
        ends,
        batch["next", "done"].view(2, 4)[:, -1].tolist(),
    )


def no_truncated_key(lib):
    buffer = tensors(sampler=lib.SliceSampler(slice_len=2, truncated_key=None))(lib)
    buffer.extend(rollout([5]))
    return bool(buffer.sample()["next", "truncated"].any())


def slices_without_replacement(lib):
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyTensorStorage(40), sampler=lib.SliceSamplerWithoutReplacement(slice_len=5), batch_size=15
    )
    buffer.extend(rollout([5, 6, 7, 8, 9, 5]))
    batches = list(buffer)
    ids = torch.cat([batch["collector", "traj_ids"][::5] for batch in batches])
    return [len(batch) for batch in batches], sorted(ids.tolist())


def slices_that_do_not_fit(lib):
    buffer = tensors(sampler=lib.SliceSampler(slice_len=8))(lib)
    buffer.extend(rollout([5, 4]))
    with pytest.raises(Exception):  # noqa: B017  RuntimeError there, SamplingError here
        buffer.sample(8)
    with pytest.raises(Exception):  # noqa: B017
        buffer.sample(9)
    return True


def padded(lib):
    sampler = lib.SliceSampler(slice_len=4, strict_length=False, pad_output=True)
    buffer = tensors(sampler=sampler)(lib)
    buffer.extend(rollout([2]))
    batch = buffer.sample(8)
    return batch.shape, batch["collector", "mask"].view(2, 4).tolist(), batch["action"].view(2, 4)[:, :2].tolist()


def possible_slices(lib, **sampler):
    """All slices of 2 that come in many batches of two episodes of 4 and 6 records."""
    sampler = lib.SliceSampler(slice_len=2, cache_values=True, **sampler)
    buffer = tensors()(lib)
    buffer.extend(TensorDict({"x": torch.arange(10), "run": (torch.arange(10) >= 4).long()}, [10]))
    buffer.set_sampler(sampler)  # now, as TorchRL forgets what was given at every write
    return sorted({tuple(pair) for _ in range(200) for pair in buffer.sample()["x"].view(2, 2).tolist()})


def given_ends(lib):
    return possible_slices(lib, ends=(torch.arange(10) % 6 == 3))


def given_trajectories(lib):
    return possible_slices(lib, trajectories=(torch.arange(10) >= 4).long())


def key_of_trajectories(lib):
    return possible_slices(lib, traj_key="run")


def a_sampler_of_ones_own(lib):
    base: Any = lib.RandomSampler.__mro__[1]

    class Last(base):
        def sample(self, storage, batch_size):
            return torch.arange(len(storage) - batch_size, len(storage)), {}

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

        def dumps(self, path):
            pass

        def loads(self, path):
            pass

        def _empty(self):
            pass

    buffer = tensors(sampler=Last())(lib)
    buffer.extend(rollout([7]))
    return buffer.sample()["action"].tolist()


def pinned_without_a_gpu(lib):
    buffer = tensors(pin_memory=torch.cuda.is_available())(lib)
    buffer.extend(rollout([7]))
    return buffer.sample()["action"].is_pinned() if torch.cuda.is_available() else buffer.sample().shape


def memmap(lib, folder=None):
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyMemmapStorage(10, scratch_dir=folder), batch_size=4)
    buffer.extend(rollout([7]))
    batch = buffer.sample()
    batch["action"].zero_()  # a copy
    return len(buffer), buffer["action"].tolist()


def ragged(lib):
    buffer = lib.ReplayBuffer(storage=lib.ListStorage(5), sampler=lib.SamplerWithoutReplacement(), batch_size=2)
    for size in (2, 3):
        buffer.add(TensorDict({"x": torch.ones(size)}, []))
    return type(buffer.sample()).__name__, buffer.sample().batch_size


def index_of_the_writer(lib):
    buffer = tensors()(lib)
    data = rollout([4])
    buffer.extend(data)
    data = rollout([3])
    buffer.extend(data)
    return keys(data), buffer["index"].tolist()


ROWS = [value for name, value in list(globals().items()) if getattr(value, "__module__", None) == __name__]
ROWS = [row for row in ROWS if callable(row) and row.__name__ not in ("tensors", "keys", "possible_slices")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_row(row):
    assert row(ours) == row(theirs)
