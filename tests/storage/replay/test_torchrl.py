"""Beside TorchRL: same data in, same things out, wherever both should agree."""

from __future__ import annotations

import logging

import pytest
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_tools import equal, priorities, rollout
from tensordict import TensorDict

import rbdata.storage.replay as ours  # isort: skip

theirs = pytest.importorskip("torchrl.data")
logging.getLogger("torchrl").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")


def both(make):
    """The same buffer made of each library's parts."""
    return make(ours), make(theirs)


def fill(buffers, *batches):
    for batch in batches:
        indices = [buffer.extend(batch.clone()) for buffer in buffers]
        assert torch.equal(*indices)


def contents(buffer) -> TensorDict:
    return buffer[:]


@settings(max_examples=examples(40), deadline=None)
@given(capacity=st.integers(1, 12), sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_rings_hold_the_same(capacity, sizes):
    buffers = both(lambda lib: lib.TensorDictReplayBuffer(storage=lib.LazyTensorStorage(capacity), batch_size=1))
    fill(buffers, *(rollout([size], first=100 * number, extra=False) for number, size in enumerate(sizes)))
    assert equal(*map(contents, buffers))
    assert len(buffers[0]) == len(buffers[1])
    fill(buffers, rollout([1]))  # at the same row


@settings(max_examples=examples(30), deadline=None)
@given(capacity=st.integers(4, 30), width=st.integers(1, 3), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_rings_of_two_dimensions_hold_the_same(capacity, width, sizes):
    make = lambda lib: lib.ReplayBuffer(storage=lib.LazyTensorStorage(capacity, ndim=2), batch_size=1)  # noqa: E731
    buffers = both(make)
    for number, size in enumerate(sizes):
        batch = torch.stack([rollout([size], first=1000 * number + 100 * env, extra=False) for env in range(width)])
        fill(buffers, batch)
    assert buffers[0].storage.shape == buffers[1].storage.shape
    assert equal(*map(contents, buffers))


def slices_seen(buffer, keys, length, batches=25) -> set[tuple]:
    seen = set()
    for _ in range(batches):
        batch = buffer.sample()
        for number in range(0, len(batch), length):
            piece = batch[number : number + length]
            seen.add((tuple(piece["action"].tolist()), *(tuple(piece.get(key).flatten().tolist()) for key in keys)))
    return seen


FLAGS = [("next", "done"), ("next", "terminated"), ("next", "truncated")]


@pytest.mark.parametrize(
    "batches, key",
    [
        ([[5, 9, 3]], {"end_key": ("next", "done")}),
        ([[7, 7], [4, 9]], {"traj_key": ("collector", "traj_ids")}),
        ([[20, 3], [11]], {"end_key": ("next", "done")}),
    ],
    ids=str,
)
def test_the_same_slices_are_possible(batches, key):
    """All valid slices come, from both, also when the ring has wrapped; with the same flags."""
    make = lambda lib: lib.TensorDictReplayBuffer(  # noqa: E731
        storage=lib.LazyTensorStorage(20), sampler=lib.SliceSampler(slice_len=3, **key), batch_size=60
    )
    buffers = both(make)
    fill(buffers, *(rollout(lengths, first=100 * number, open_end=True) for number, lengths in enumerate(batches)))
    left, right = (slices_seen(buffer, FLAGS, 3) for buffer in buffers)
    assert left == right


def test_the_same_slices_of_several_environments():
    make = lambda lib: lib.TensorDictReplayBuffer(  # noqa: E731
        storage=lib.LazyTensorStorage(24, ndim=2), sampler=lib.SliceSampler(slice_len=3), batch_size=60
    )
    buffers = both(make)
    for number in range(3):
        fill(buffers, torch.stack([rollout([3, 4], first=1000 * number + 100 * env) for env in range(2)]))
    left, right = (slices_seen(buffer, FLAGS, 3, 30) for buffer in buffers)
    assert left == right
    assert buffers[0].sample()["index"].shape == buffers[1].sample()["index"].shape == (60, 2)


def test_short_slices():
    make = lambda lib: lib.TensorDictReplayBuffer(  # noqa: E731
        storage=lib.LazyTensorStorage(20), sampler=lib.SliceSampler(slice_len=5, strict_length=False), batch_size=5
    )
    buffers = both(make)
    fill(buffers, rollout([3, 8, 2]))
    left, right = (slices_seen(buffer, FLAGS, 5, 100) for buffer in buffers)
    assert left == right


def test_the_same_priorities_and_weights():
    """Where TorchRL's extension loads (0.14.1: torch 2.14): the same values in the tree, the same importance weights."""
    try:
        theirs.PrioritizedSampler(4, 1.0, 1.0)
    except RuntimeError as error:
        pytest.skip(f"TorchRL's prioritized sampler does not work with this torch: {error}")
    left, right = both(
        lambda lib: lib.TensorDictPrioritizedReplayBuffer(
            alpha=0.7, beta=0.6, eps=1e-3, storage=lib.LazyTensorStorage(30), batch_size=64
        )
    )
    generator = torch.Generator().manual_seed(0)
    for number in range(6):  # the ring wraps; new records get the largest priority there was
        fill((left, right), rollout([7, 4], first=100 * number))
        size = len(left)
        index = torch.randint(size, (20,), generator=generator).unique()
        priority = torch.rand(len(index), generator=generator) * (number + 1)
        left.update_priority(index, priority)
        right.update_priority(index, priority)
        stored = torch.as_tensor([right.sampler._sum_tree[row] for row in range(size)])
        assert torch.allclose((priorities(left)[:size].float() + 1e-3) ** 0.7, stored, rtol=1e-4)
        batch = right.sample()
        kept = (priorities(left)[:size] + 1e-3) ** 0.7
        wanted = (kept[batch["index"]] / kept.min()) ** -0.6
        assert torch.allclose(wanted.float(), batch["priority_weight"], rtol=1e-4)


def test_plain_buffers_give_flags_in_the_info_only():
    make = lambda lib: lib.ReplayBuffer(  # noqa: E731
        storage=lib.LazyTensorStorage(20), sampler=lib.SliceSampler(slice_len=3), batch_size=6
    )
    for buffer in both(make):
        buffer.extend(rollout([9, 9]))
        batch, info = buffer.sample(return_info=True)
        assert "index" not in batch.keys()  # noqa: SIM118
        assert not batch["next", "truncated"].any()
        assert info["next", "truncated"].view(2, 3).tolist() == [[False, False, True]] * 2
        assert bool((info["next", "done"] | ~info["next", "truncated"]).all())


@settings(max_examples=examples(40), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    n=st.integers(1, 6),
    gamma=st.sampled_from([1.0, 0.9, 0.5]),
    envs=st.integers(1, 3),
)
def test_multi_step(lengths, n, gamma, envs):
    from torchrl.data import MultiStep

    batch = torch.stack([rollout(lengths, first=100 * env, open_end=True) for env in range(envs)])
    left, right = ours.MultiStep(gamma, n)(batch.clone()), MultiStep(gamma, n)(batch.clone())
    assert set(left.keys(True, True)) == set(right.keys(True, True))
    for key in left.keys(True, True):
        assert torch.allclose(left.get(key).double(), right.get(key).double(), atol=1e-5), key
        assert left.get(key).dtype == right.get(key).dtype, key


@settings(max_examples=examples(25), deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), ids=st.booleans(), envs=st.integers(1, 2))
def test_split_trajectories(lengths, ids, envs):
    from torchrl.collectors.utils import split_trajectories

    batch = rollout(lengths, extra=ids)
    if envs > 1:
        batch = torch.stack([rollout(lengths, first=100 * env, extra=ids) for env in range(envs)])
    left, right = ours.split_trajectories(batch), split_trajectories(batch)
    assert left.batch_size == right.batch_size
    assert equal(left, right)
    nested = [split(batch, as_nested=True) for split in (ours.split_trajectories, split_trajectories)]
    if nested[0].batch_size[-1] == -1:
        assert nested[0].batch_size == nested[1].batch_size
        padded = [each.to_padded_tensor(mask_key="filled") for each in nested]
        assert equal(*padded)
        jagged = ours.split_trajectories(batch, as_nested=torch.jagged)["action"]
        assert jagged.layout == torch.jagged


def ted(lengths, capacity, ndim):
    """A ring that may have wrapped, in both libraries."""
    make = lambda lib: lib.ReplayBuffer(storage=lib.LazyTensorStorage(capacity, ndim=ndim), batch_size=2)  # noqa: E731
    buffers = both(make)
    for number, batch in enumerate(lengths):
        data = rollout(batch, first=100 * number)
        if ndim == 2:
            data = torch.stack([data, rollout(batch, first=100 * number + 5000)])
        fill(buffers, data)
    return buffers


@pytest.mark.parametrize(
    "ndim, lengths", [(1, [[4, 3]]), (2, [[4, 3], [5, 2]]), (2, [[9], [9, 2], [1, 1, 3]])], ids=str
)
@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_each_reads_what_the_others_hook_wrote(tmp_path, ndim, lengths, writer):
    """Checkpoints are each library's own; what the hooks make of the rows is one format."""
    left, right = ted(lengths, 12 * ndim, ndim)
    (tmp_path / "flat").mkdir()
    for buffer, hook in ((left, ours.TED2Flat()), (right, theirs.TED2Flat())):
        data = buffer._storage._storage
        hook.is_full, hook.shift = left.storage.is_full, left.storage.cursor
        if (hook.__module__.startswith("rbdata")) == (writer == "ours"):
            hook(data, path=tmp_path / "flat")
    reader = theirs.Flat2TED() if writer == "ours" else ours.Flat2TED()
    found = reader(TensorDict.load_memmap(tmp_path / "flat"))
    filled = left.storage.filled
    assert equal(found[:filled], left.storage[:].exclude("index"))


@pytest.mark.parametrize("ndim", [1, 2])
def test_flattened_files_are_the_same(tmp_path, ndim):
    """Those of a full ring: of another one TorchRL also writes the rows that were never written."""
    rings = ted([[9], [9, 2], [1, 1, 3]], 12 * ndim, ndim)
    for name, lib, buffer in zip(("ours", "theirs"), (ours, theirs), rings):
        buffer.register_save_hook(lib.TED2Flat())
        buffer.dumps(tmp_path / name)
    left, right = (TensorDict.load_memmap(tmp_path / name / "storage") for name in ("ours", "theirs"))
    assert set(left.keys(True, True)) == set(right.keys(True, True))
    for key in left.keys(True, True):
        mine, other = left.get(key), right.get(key)
        same = torch.equal(mine, other) if isinstance(mine, torch.Tensor) else mine == other
        assert same, key


def test_a_torchrl_buffer_on_our_folder(tmp_path):
    """The documented way: TorchRL reads the folder as a storage, and gives the same rows."""
    from storage_tools import make_episodes, write_dataset

    folder = write_dataset(tmp_path, make_episodes([5, 8, 3]))
    storage = theirs.TensorStorage(TensorDict.load_memmap(folder))
    buffer = theirs.TensorDictReplayBuffer(
        storage=storage, sampler=theirs.SliceSampler(slice_len=3, end_key=("next", "done")), batch_size=6
    )
    batch = buffer.sample()
    mine = ours.DatasetStorage(folder).get(batch["index"].squeeze(-1))
    for key in ("observation", "action", ("next", "observation"), ("next", "reward")):
        assert torch.equal(mine[key], batch[key])


@pytest.mark.parametrize("envs", [1, 3])
def test_a_collector_on_cartpole(envs):
    """A collector's batches through extend, and whole slices of them back."""
    pytest.importorskip("gymnasium")
    import torchrl.collectors
    from torchrl.envs import GymEnv, SerialEnv

    env = GymEnv("CartPole-v1") if envs == 1 else SerialEnv(envs, lambda: GymEnv("CartPole-v1"))
    env.set_seed(0)
    # Its name up to 0.13, and since.
    collector_class = getattr(torchrl.collectors, "SyncDataCollector", None) or torchrl.collectors.Collector
    collector = collector_class(env, env.rand_step, frames_per_batch=30, total_frames=120)
    buffer = ours.TensorDictReplayBuffer(
        storage=ours.LazyTensorStorage(80, ndim=1 if envs == 1 else 2),
        sampler=ours.SliceSampler(slice_len=4),
        batch_size=64,
        seed=0,
    )
    try:
        for data in collector:
            buffer.extend(data)
            batch = buffer.sample().view(16, 4)
            ids = batch["collector", "traj_ids"]
            assert bool((ids == ids[:, :1]).all())
            assert torch.equal(batch["next", "observation"][:, :-1], batch["observation"][:, 1:])
            assert not batch["next", "done"][:, :-1].any()
            assert batch["next", "done"][:, -1].all()
    finally:
        collector.shutdown()
    assert len(buffer) >= 80
    stacked = ours.TensorDictReplayBuffer(
        storage=buffer.storage, batch_size=32, around=ours.Around(frame_stack=3, n_step=2, gamma=0.9)
    )
    batch = stacked.sample()
    assert batch["observation"].shape == (32, 3, 4)
    assert torch.equal(
        batch["observation"][:, -1],
        buffer[batch["index"] if envs == 1 else batch["index"].flip(1).unbind(1)]["observation"],
    )


def test_what_the_sampler_knows_may_be_left_out():
    buffer = ours.TensorDictPrioritizedReplayBuffer(alpha=1, beta=1, storage=ours.LazyTensorStorage(10), batch_size=3)
    buffer.extend(TensorDict({"a": torch.arange(5)}, [5]))
    assert set(buffer.sample(include_info=False).keys()) == {"a"}
    batch, info = buffer.sample(return_info=True, include_info=True)
    assert {"index", "priority_weight"} <= set(batch.keys()) and len(info["index"]) == 3


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("kind", ["ListStorage", "LazyTensorStorage"])
def test_batches_have_the_device_of_their_storage(kind, device):
    buffers = both(lambda lib: lib.TensorDictReplayBuffer(storage=getattr(lib, kind)(10), batch_size=4))
    fill(buffers, TensorDict({"a": torch.arange(6), "b": {"c": torch.zeros(6)}}, [6], device=device))
    ours_, theirs_ = (buffer.sample() for buffer in buffers)
    assert ours_.device == theirs_.device and ours_["b"].device == theirs_["b"].device
    assert buffers[0][:].device == buffers[1][:].device
