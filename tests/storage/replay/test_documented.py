"""The examples of TorchRL's reference pages on buffers, one function each: the same calls in both libraries, the same outcome.

An example returns what can be seen of its calls, in terms that no random number changes. Examples with collectors are in
test_documented_collectors.py, those of the dataset classes in test_documented_datasets.py. `ALONE` cannot run with TorchRL
here (its trees are an extension that this torch does not load): they state the outcome themselves.
"""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import pytest
import rbdata as ours
import torch
from tensordict import TensorDict, tensorclass

theirs = pytest.importorskip("torchrl.data")
logging.getLogger("torchrl").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")


def numbers(n: int, first: int = 0) -> TensorDict:
    return TensorDict({"obs": torch.arange(first, first + n), "key": torch.arange(first, first + n).float()}, [n])


def four_episodes(lengths: tuple[int, ...] = (300, 250, 150, 300)) -> TensorDict:
    ids = torch.cat([torch.full((n,), number, dtype=torch.int) for number, n in enumerate(lengths, start=1)])
    steps = torch.cat([torch.arange(n) for n in lengths])
    n = len(steps)
    return TensorDict({"episode": ids, "steps": steps, "act": torch.randn(20).expand(n, 20)}, [n])


def consecutive(batch: TensorDict, slices: int, key: str = "steps") -> bool:
    """Whether every slice is consecutive steps of one episode."""
    steps, ids = batch[key].reshape(slices, -1), batch["episode"].reshape(slices, -1)
    return bool((steps.diff() == 1).all() and (ids.diff() == 0).all())


class Record:
    images: torch.Tensor
    labels: torch.Tensor


Labelled: Any = tensorclass(Record)


# --- buffers ---------------------------------------------------------------------------------------------------------


def prioritized_memmap(lib):
    sampler = lib.PrioritizedSampler(max_capacity=100_000, alpha=0.7, beta=0.5)
    buffer = lib.ReplayBuffer(storage=lib.LazyMemmapStorage(max_size=100_000), sampler=sampler, batch_size=256)
    buffer.extend(TensorDict({"observation": torch.randn(32, 4), "reward": torch.randn(32, 1)}, [32]))
    assert buffer.sample()["observation"].shape == (256, 4)


def priorities_where_the_data_is_not(lib):
    buffer = lib.TensorDictPrioritizedReplayBuffer(
        alpha=0.7,
        beta=0.5,
        storage=lib.LazyTensorStorage(1000, device="cpu"),
        sampler_device="cpu",
        batch_size=512,
        priority_key="td_error",
    )
    buffer.extend(TensorDict({"obs": torch.arange(100), "td_error": torch.ones(100)}, [100]))
    batch = buffer.sample()
    batch["td_error"] = (batch["obs"] == 7).float()
    buffer.update_tensordict_priority(batch)
    seen = buffer.sample()
    assert (seen["obs"] == 7).sum() > 20
    assert len(seen) == 512


def list_of_numbers(lib):
    """TorchRL's own page says this; its release cannot collate Python numbers."""
    buffer = lib.ReplayBuffer(storage=lib.ListStorage(max_size=1000), batch_size=5)
    assert buffer.extend(range(10)).tolist() == list(range(10))
    shapes = [buffer.sample().shape, buffer.sample(batch_size=3).shape]
    assert shapes == [(5,), (3,)]
    assert len([batch for batch, _ in zip(buffer, range(4))]) == 4


def anything_in_a_list(lib):
    buffer = lib.ReplayBuffer(storage=lib.ListStorage(100), collate_fn=lambda records: records)
    rows = buffer.extend(["a", 1, None]).tolist()
    seen = set()
    for _ in range(60):
        seen |= set(buffer.sample(3))
    return rows, seen == {"a", 1, None}


def columns_of_two_dimensions(lib):
    data = torch.arange(12).view(3, 4)
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(10, ndim=2), dim_extend=1)
    for column in data.unbind(1):
        buffer.add(column)
    first = buffer[:].tolist()
    buffer.extend(data)
    return first, len(buffer), tuple(buffer[:].shape)


def several_batches(lib):
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(10), batch_size=5)
    buffer.extend(TensorDict({"a": torch.ones(10, 3), ("b", "c"): torch.zeros(10, 1, 1)}, [10]))
    batches = [buffer.sample(3), *(batch for batch, _ in zip(buffer, range(3)))]
    return [sorted(map(str, batch.keys(True, True))) for batch in batches], [batch.shape for batch in batches]


def inverse_transform(lib):
    buffer = lib.ReplayBuffer(storage=lib.LazyMemmapStorage(10), batch_size=4)
    data = TensorDict({"a": torch.zeros(10)}, [10])

    def plus_one(batch):
        batch += 1
        return batch

    buffer.append_transform(plus_one, invert=True)
    buffer.extend(data)
    return data["a"].tolist(), buffer.sample()["a"].tolist(), buffer[:]["a"].tolist()


def saved_with_priorities(lib):
    def make():
        return lib.TensorDictReplayBuffer(
            storage=lib.LazyMemmapStorage(5000), sampler=lib.PrioritizedSampler(5000, 1.1, 1.0)
        )

    buffer, other = make(), make()
    for _ in range(10):
        buffer.extend(TensorDict({"obs": torch.randn(100, 3), "td_error": torch.rand(100)}, [100]))
        buffer.update_tensordict_priority(buffer.sample(32))
    with tempfile.TemporaryDirectory() as folder:
        buffer.dumps(folder)
        other.loads(folder)
    assert len(other) == len(buffer) == 1000
    assert (other[:]["obs"] == buffer[:]["obs"]).all()
    sampled, again = (part.sample(8, return_info=True)[1]["priority_weight"] for part in (buffer, other))
    assert sampled.shape == again.shape == (8,)


def priorities_of_a_list(lib):
    buffer = lib.PrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=lib.ListStorage(10))
    buffer.extend(range(10))
    assert buffer.sample(3).shape == (3,)
    _, info = buffer.sample(5, return_info=True)
    buffer.update_priority(info["index"], torch.ones(5) * 5)
    _, info = buffer.sample(200, return_info=True)
    assert sorted(set(info["priority_weight"].tolist())) == pytest.approx([5**-0.63, 1], abs=1e-3)


def priorities_in_tensordicts(lib):
    buffer = lib.TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=1.1, storage=lib.LazyTensorStorage(10), batch_size=5)
    buffer.extend(TensorDict({"a": torch.ones(10, 3), ("b", "c"): torch.zeros(10, 3, 1)}, [10]))
    batch = buffer.sample(5)
    batch.set("td_error", 100 * torch.ones(batch.shape))
    buffer.update_tensordict_priority(batch)
    chosen = set(batch["index"].tolist())
    again = buffer.sample(400)["index"]
    share = sum(int(index) in chosen for index in again) / 400
    assert share > 0.8


def one_is_a_thousand_times_likelier(lib):
    first = TensorDict({"obs": torch.tensor([0]), "priority": torch.tensor(0)}, [])
    second = TensorDict({"obs": torch.tensor([1]), "priority": torch.tensor(1000)}, [])
    plain = lib.ReplayBuffer(
        storage=lib.LazyTensorStorage(10), sampler=lib.PrioritizedSampler(max_capacity=10, alpha=1.0, beta=1.0)
    )
    plain.add(first)
    plain.add(second)
    plain.update_priority(torch.tensor([0, 1]), priority=torch.tensor([0, 1000]))
    batch, info = plain.sample(10, return_info=True)
    assert batch["obs"].flatten().tolist() == info["index"].tolist() == [1] * 10


def mixed_priorities(lib):
    size = 100
    buffer = lib.ReplayBuffer(
        storage=lib.ListStorage(size),
        sampler=lib.PrioritizedSampler(max_capacity=size, alpha=0.8, beta=1.1),
        collate_fn=lambda records: records,
    )
    rows = buffer.extend([1, "foo", None])
    buffer.update_priority(index=rows, priority=torch.tensor([0, 1_000, 0.1]))
    batch, info = buffer.sample(10, return_info=True)
    assert batch.count("foo") >= 8
    assert set(info) >= {"index", "priority_weight"}


def priorities_follow_an_error(lib):
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.ListStorage(100),
        sampler=lib.PrioritizedSampler(100, alpha=0.8, beta=1.1),
        priority_key="td_error",
        batch_size=1024,
    )
    data = TensorDict({"a": torch.arange(64).view(16, 4), "td_error": torch.arange(16)}, [16])
    buffer.extend(data)
    batch = buffer.sample()
    assert batch["index"].float().mean() > 8.5
    batch["td_error"] = 16 - batch["index"]
    buffer.update_tensordict_priority(batch)
    assert buffer.sample()["index"].float().mean() < 7.5


def prefetched_tensorclass(lib):
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(100), batch_size=16, prefetch=3)
    images = torch.arange(200).view(200, 1).expand(200, 4)
    buffer.extend(Labelled(images=images, labels=torch.arange(200), batch_size=[200]))
    batches = [buffer.sample(), *(batch for batch, _ in zip(buffer, range(4)))]
    whole = all((batch.images[:, 0] == batch.labels).all() and (batch.labels >= 100).all() for batch in batches)
    return [type(batch).__name__ for batch in batches], [batch.shape for batch in batches], bool(whole), len(buffer)


def ensemble_of_unlike_members(lib):
    from torchrl.envs import Compose, RenameTransform, UnsqueezeTransform

    members = [
        lib.TensorDictReplayBuffer(
            storage=lib.LazyMemmapStorage(10),
            transform=Compose(UnsqueezeTransform(-1, in_keys=["pixels"]), RenameTransform([key], ["renamed"])),
        )
        for key in (("some", "key"), "another_key")
    ]
    mixed = lib.ReplayBufferEnsemble(
        *members, p=[0.5, 0.5], transform=UnsqueezeTransform(-1, in_keys=["pixels"], out_keys=["twice"])
    )
    mixed[0].extend(TensorDict({"pixels": torch.zeros(10, 4), ("some", "key"): torch.randn(10)}, [10]))
    mixed[1].extend(TensorDict({"pixels": torch.zeros(10, 4), "another_key": torch.randn(10)}, [10]))
    batch = mixed.sample(10)
    return batch["pixels"].shape, batch["twice"].shape, batch["renamed"].shape, repr(mixed).count("LazyMemmapStorage")


# --- storages --------------------------------------------------------------------------------------------------------


def rows_of_a_storage(lib):
    def check(storage, data):
        return len(storage), storage.get(0).batch_size, type(storage.get(0)).__name__

    nested = TensorDict(
        {"some data": torch.randn(10, 11), ("some", "nested", "data"): torch.randn(10, 11, 12)}, [10, 11]
    )
    classed = Labelled(images=torch.randn(10, 11, 12), labels=torch.randn(10, 11), batch_size=[10, 11])
    seen = []
    for data in (nested, classed):
        given = lib.TensorStorage(data)
        seen.append(check(given, data))
        given.set(0, given.get(0).clone().zero_())
        for storage in (lib.LazyTensorStorage(100), lib.LazyMemmapStorage(100)):
            storage.set(range(10), data)
            seen.append(check(storage, data))
            storage.set(0, storage.get(0).clone().zero_())
            seen.append(bool((storage.get(0) == 0).all()))
    return seen


# --- samplers and writers ---------------------------------------------------------------------------------------------


def short_slices_are_split(lib):
    sampler = lib.SliceSampler(slice_len=5, traj_key="episode", strict_length=False)
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(max_size=1000), sampler=sampler)
    for number, length in enumerate((100, 4)):
        buffer.extend(TensorDict({"obs": torch.arange(length), "episode": torch.full((length,), number)}, [length]))
    split = (
        lib.split_trajectories if lib is ours else pytest.importorskip("torchrl.collectors.utils").split_trajectories
    )
    for _ in range(20):
        batch = buffer.sample(50)
        if len(batch) < 50:
            break
    padded = split(batch, done_key="truncated")
    short = padded["episode"][:, 0] == 1
    return padded["obs"].shape[1], padded["obs"][short][:, :4].unique(dim=0).tolist(), len(batch) < 50


def every_episode_once(lib):
    sampler = lib.SliceSamplerWithoutReplacement(slice_len=5, traj_key="episode", strict_length=False)
    buffer = lib.ReplayBuffer(storage=lib.LazyTensorStorage(max_size=1000), sampler=sampler)
    for number, length in enumerate((100, 51)):
        buffer.extend(TensorDict({"obs": torch.arange(length), "episode": torch.full((length,), number)}, [length]))
    batches = [buffer.sample(50) for _ in range(2)]
    return [(len(batch), sorted(batch["episode"].unique().tolist())) for batch in batches]


def slices_by_number(lib):
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyMemmapStorage(1000), sampler=lib.SliceSampler(cache_values=True, num_slices=10), batch_size=320
    )
    buffer.extend(four_episodes())
    batch = buffer.sample()
    return batch.shape, consecutive(batch, 10)


def slices_of_all_episodes(lib):
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyMemmapStorage(1000),
        sampler=lib.SliceSamplerWithoutReplacement(num_slices=4, traj_key="episode"),
        batch_size=128,
    )
    buffer.extend(four_episodes())
    batch = buffer.sample()
    return batch.shape, sorted(batch["episode"].unique().tolist()), consecutive(batch, 4)


def tiny_episodes(lib):
    sampler = lib.SliceSampler(traj_key="episode", num_slices=4)
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(100), sampler=sampler, batch_size=8)
    buffer.extend(four_episodes((3, 2, 2, 3)))
    batch = buffer.sample()
    return batch.shape, consecutive(batch, 4)


def prioritized_slices(lib):
    sampler = lib.PrioritizedSliceSampler(max_capacity=9, num_slices=3, alpha=0.7, beta=0.9)
    buffer = lib.TensorDictReplayBuffer(storage=lib.LazyMemmapStorage(9), sampler=sampler, batch_size=6)
    data = four_episodes((3, 3, 3))
    data["next", "done"] = (data["steps"] == 2)[:, None]
    buffer.extend(data)
    batch, info = buffer.sample(return_info=True)
    assert consecutive(batch, 3)
    assert (info["priority_weight"] == 1).all()
    buffer.update_priority(torch.arange(9), priority=torch.tensor([0, 3, 3, 0, 0, 0, 1, 1, 1]))
    for _ in range(20):
        batch = buffer.sample()
        assert consecutive(batch, 3)
        assert not (batch["episode"] == 2).any()


def best_of_all(lib):
    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyTensorStorage(1),
        sampler=lib.SamplerWithoutReplacement(),
        batch_size=1,
        writer=lib.TensorDictMaxValueWriter(rank_key="key"),
    )
    seen = []
    for first in (0, 10, 0):
        buffer.extend(numbers(10, first))
        seen.append(buffer.sample()["obs"].item())
    return seen


def best_trajectories(lib):
    """A record may be a whole trajectory; TorchRL 0.14 raises on two of them."""
    rewards = TensorDict({"obs": torch.zeros(2, 10, 3), "reward": torch.arange(20.0).view(2, 10, 1)}, [2, 10])
    for data, shape in ((rewards, (5, 10)), (rewards.reshape(-1), (5,))):
        buffer = lib.TensorDictReplayBuffer(
            storage=lib.LazyTensorStorage(max_size=100), writer=lib.TensorDictMaxValueWriter(rank_key="reward")
        )
        buffer.extend(data)
        assert buffer.sample(5).shape == shape
        assert len(buffer) == len(data)


ALONE = {
    prioritized_memmap,
    priorities_where_the_data_is_not,
    list_of_numbers,
    saved_with_priorities,
    priorities_of_a_list,
    priorities_in_tensordicts,
    one_is_a_thousand_times_likelier,
    mixed_priorities,
    priorities_follow_an_error,
    prioritized_slices,
    best_trajectories,
}
HELPERS = {"numbers", "four_episodes", "consecutive", "Record"}
EXAMPLES = [value for value in list(globals().values()) if getattr(value, "__module__", None) == __name__]
EXAMPLES = [example for example in EXAMPLES if example.__name__ not in HELPERS]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_example(example):
    torch.manual_seed(0)
    outcome = example(ours)
    assert example in ALONE or outcome == example(theirs)
