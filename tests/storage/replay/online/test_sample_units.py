"""Sample units, against TorchRL's and against windows worked out one by one."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import rbdata
import torch
import torchrl.data as peer
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata import (
    Dataset,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SampleUnit,
    Sequence,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    Transition,
)
from rbdata.errors import SamplingError, UsageError
from rbdata.storage.replay.loading import load_buffer
from replay_tools import priorities, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict

UNITS = st.fixed_dictionaries(
    {
        "length": st.integers(1, 4),
        "burn_in": st.integers(0, 3),
        "bootstrap": st.integers(0, 2),
        "dilation": st.integers(1, 3),
        "episode_boundary": st.sampled_from(["pad", "stop", "include_reset"]),
        "done_key": st.sampled_from([("next", "done"), None]),
    }
)


def filled(made, writes):
    """A buffer after these writes; ``made`` is rbdata or torchrl.data."""
    storage = made.LazyTensorStorage(12 * writes[0].shape[1:].numel(), ndim=writes[0].ndim)
    buffer = made.TensorDictReplayBuffer(storage=storage, batch_size=2, dim_extend=0)
    for data in writes:
        buffer.extend(data)
    return buffer


@settings(max_examples=25, deadline=None)
@given(options=UNITS, writes=st.lists(st.integers(1, 12), min_size=1, max_size=3), lanes=st.sampled_from([1, 2]))
def test_like_torchrl(options, writes, lanes):
    """Rings that are partly filled, full, and written over, with one and two environments."""
    import rbdata

    torch.manual_seed(sum(writes))
    shape = [lanes] if lanes > 1 else []
    batches = [
        TensorDict({"x": torch.rand(n, *shape), ("next", "done"): torch.rand(n, *shape, 1) < 0.3}, [n, *shape])
        for n in writes
    ]
    ours, theirs = filled(rbdata, batches), filled(peer, batches)
    rows = torch.arange(len(ours))
    given = ours.storage.coordinates(rows)
    weight = torch.rand(len(rows))
    index, info = Sequence(**options).expand(given, {"weight": weight, "scalar": 3.0}, ours.storage)
    other, expected = peer.Sequence(**options).expand(given, {"weight": weight, "scalar": 3.0}, theirs.storage)
    assert set(info) == set(expected) and info.pop("scalar") == expected.pop("scalar")
    for name, value in {**info, "index": index}.items():
        wanted = {**expected, "index": other}[name]
        found, wanted = (torch.stack(one) if isinstance(one, tuple) else one for one in (value, wanted))
        assert torch.equal(found, wanted), name


def by_hand(starts, anchor, unit):
    """The window of one anchor, record by record; ``starts`` are the first steps of all episodes and the number of steps."""
    episode = max(number for number, start in enumerate(starts[:-1]) if start <= anchor)
    first, last = starts[episode], starts[episode + 1] - 1
    if unit.episode_boundary == "stop":
        beyond = anchor + unit.dilation * (unit.length + unit.bootstrap - 1) - last
        anchor = max(first, anchor - max(0, beyond))
    wanted = [anchor + (place - unit.burn_in) * unit.dilation for place in range(unit.records)]
    return [min(max(step, first), last) for step in wanted], [first <= step <= last for step in wanted]


@pytest.fixture(scope="module", params=["flat", "zstd"])
def dataset(request, tmp_path_factory) -> Dataset:
    episodes = make_episodes([3, 9, 1, 6], shape=(5, 4), dtype="uint8")
    return Dataset(write_dataset(tmp_path_factory.mktemp("units"), episodes, request.param))


@pytest.mark.parametrize("boundary", ["pad", "stop"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_datasets(dataset, boundary, prefetch):
    """The episode table decides, compressed rows are read as they are, and no window leaves its episode."""
    unit = Sequence(4, boundary, burn_in=2, bootstrap=1, dilation=2)
    buffer = load_buffer(dataset, sample_unit=unit, batch_size=6, seed=0, prefetch=prefetch)
    starts, truth = dataset.episode_starts.tolist(), dataset.to_tensordict()
    for _ in range(5):
        batch, info = buffer.sample(return_info=True)
        assert batch.batch_size == (6 * 7,)
        assert torch.equal(batch["observation"], truth["observation"][batch["index"]])
        assert torch.equal(batch["next", "observation"], truth["next", "observation"][batch["index"]])
        assert torch.equal(batch["action"], truth["action"][batch["index"]])
        anchors = batch["anchor_index"].view(6, 7)[:, 0].tolist()
        expected = [by_hand(starts, anchor, unit) for anchor in anchors]
        assert batch["index"].view(6, 7).tolist() == [rows for rows, _ in expected]
        assert batch["validity_mask"].view(6, 7).tolist() == [valid for _, valid in expected]
        for name in ("sequence_id", "step_in_sequence", "learning_mask", "validity_mask", "anchor_index"):
            assert torch.equal(info[name], batch[name])


def test_windows_of_stacks(dataset):
    """Every record of a window has its own frame stack."""
    if not dataset.schema.states:
        pytest.skip("observations of few bytes")
    unit, options = Sequence(5, burn_in=1), {"frame_stack": 3, "n_step": 2, "gamma": 0.5}
    batch = load_buffer(dataset, sample_unit=unit, batch_size=4, seed=1, **options).sample()
    expected = load_buffer(dataset, **options).sample_at(batch["index"])
    for key in expected.keys(True, True):
        assert torch.equal(batch[key], expected[key]), key


def test_the_same_by_seed(dataset):
    """With and without prefetching, after copies, and whatever was read ahead."""
    options = {"sample_unit": Sequence(3, bootstrap=1), "batch_size": 4, "seed": 3}
    plain = load_buffer(dataset, **options)
    ahead = load_buffer(dataset, **options, prefetch=2)
    batches = [plain.sample() for _ in range(4)]
    assert all((batch == ahead.sample()).all() for batch in batches)
    copied = pickle.loads(pickle.dumps(plain))
    assert (copied.sample() == plain.sample()).all() and repr(copied._sample_unit) == repr(options["sample_unit"])


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_live_buffers(storage):
    """A write moves the edges: the next batch has the new ones."""
    buffer = TensorDictReplayBuffer(storage=storage(10), sample_unit=Sequence(4, burn_in=1), batch_size=8, seed=0)
    buffer.extend(rollout([4, 3]))
    for data in (None, rollout([5], first=50)):
        if data is not None:
            buffer.extend(data)
        batch = buffer.sample()
        number = batch["observation"][:, 0].view(8, 5)
        valid = batch["validity_mask"].view(8, 5)
        anchor = number[:, 1]
        assert valid[:, 1].all() and (number[valid] == (anchor[:, None] + torch.arange(-1, 4))[valid]).all()
        assert torch.equal(buffer[batch["index"]]["observation"], batch["observation"])
    assert (batch["observation"][:, 0] >= 50).any()


def test_priorities_of_anchors(tmp_path):
    """Weights come for every record, and priorities go to the anchors, by the largest of their valid records."""
    dataset = Dataset(write_dataset(tmp_path, make_episodes([6, 5])))
    unit = Sequence(3, bootstrap=1)
    live = TensorDictPrioritizedReplayBuffer(
        alpha=1, beta=1, eps=0, storage=LazyTensorStorage(11), sample_unit=unit, batch_size=5
    )
    live.extend(rollout([6, 5]))
    for buffer in (live, load_buffer(dataset, alpha=1, beta=1, sample_unit=unit, batch_size=5, seed=0)):
        batch = buffer.sample()
        assert batch["priority_weight"].shape == (20,)
        batch["td_error"] = torch.where(batch["validity_mask"], 2.0 + batch["index"], 1000.0).unsqueeze(1)
        buffer.update_tensordict_priority(batch.reshape(5, 4) if buffer is live else batch)
        anchors = batch["anchor_index"].unique()
        largest = torch.minimum(anchors + 3, torch.where(anchors < 6, 5, 10)) + 2.0
        found = priorities(buffer)[:11]
        assert torch.allclose(found[anchors], largest.double(), atol=1e-6)
        assert found.max() < 100
        others = torch.ones(11, dtype=torch.bool).index_fill_(0, anchors, False)
        assert torch.allclose(found[others], torch.ones((), dtype=torch.float64), atol=1e-6)


def test_priorities_of_anchors_in_ensembles():
    members = [
        TensorDictPrioritizedReplayBuffer(
            alpha=1, beta=1, eps=0, storage=LazyTensorStorage(11), sample_unit=Sequence(3), batch_size=2
        )
        for _ in range(2)
    ]
    for member in members:
        member.extend(rollout([6, 5]))
    ensemble = ReplayBufferEnsemble(*members, batch_size=4, sample_from_all=True)
    batch = ensemble.sample()
    batch["td_error"] = torch.where(batch["validity_mask"], 5.0, 1000.0)
    ensemble.update_tensordict_priority(batch)
    for number, member in enumerate(members):
        anchors = batch["anchor_index"][batch["index", "buffer_ids"] == number].unique()
        found = priorities(member)[:11]
        assert len(anchors) and found.sum() == 11 + 4 * len(anchors) and set(found[anchors].tolist()) == {5.0}


class Twice(SampleUnit):
    def expand(self, index, info, storage):
        again = {name: value.repeat_interleave(2, 0) for name, value in info.items()}
        return index.repeat_interleave(2), {**again, "copy": torch.arange(2).repeat(len(index)), "unit": "twice"}


def test_units_of_ones_own():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(9), sampler=PrioritizedSampler(9, 1, 1), sample_unit=Twice(), batch_size=3
    )
    buffer.extend(rollout([4, 5]))
    batch, info = buffer.sample(return_info=True)
    assert batch.batch_size == (6,) and batch["copy"].tolist() == [0, 1] * 3
    assert info["unit"] == "twice" and "unit" not in batch and info["_weight"].shape == (6,)
    assert torch.equal(batch["action"][::2], batch["action"][1::2])


def test_transition_changes_nothing():
    batches = []
    for unit in (None, Transition()):
        buffer = ReplayBuffer(storage=LazyTensorStorage(9), batch_size=4, sample_unit=unit, seed=0)
        buffer.extend(torch.arange(9))
        batches.append(buffer.sample(return_info=True))
    (first, info), (second, other) = batches
    assert torch.equal(first, second) and set(info) == set(other)


def test_what_cannot_be():
    for wrong in ({"length": 0}, {"length": 2.5}, {"length": 2, "burn_in": -1}, {"length": 2, "bootstrap": -1}):
        with pytest.raises(UsageError):
            Sequence(**wrong)
    with pytest.raises(UsageError, match="dilation"):
        Sequence(2, dilation=0)
    with pytest.raises(UsageError, match="episode_boundary"):
        Sequence(2, "teleport")
    for unit in (object(), peer.Transition(), Sequence):
        with pytest.raises(TypeError, match="sample_unit"):
            ReplayBuffer(storage=LazyTensorStorage(9), sample_unit=unit)
    unit = Sequence(2)
    sliced = ReplayBuffer(
        storage=LazyTensorStorage(9), sampler=SliceSampler(slice_len=2), sample_unit=unit, batch_size=4
    )
    sliced.extend(rollout([9]))
    with pytest.raises(UsageError, match="the sampler draws slices"):
        sliced.sample()
    with pytest.raises(SamplingError, match="outside"):
        unit.expand(torch.tensor([9]), {}, sliced.storage)
    plain = ReplayBuffer(storage=LazyTensorStorage(9), sample_unit=unit, batch_size=4)
    with pytest.raises(SamplingError):
        plain.sample()
    plain.extend(torch.arange(9))
    with pytest.raises(UsageError, match="TensorDicts"):
        plain.sample()
    nameless = copy.deepcopy(plain)
    nameless.empty()
    with pytest.raises(SamplingError):
        nameless.sample()


class OneByOne(Sequence):
    """Windows of each draw by themselves: those of a class of one's own are not joined."""


@pytest.mark.parametrize("boundary", ["pad", "stop", "include_reset"])
@pytest.mark.parametrize("options", [{}, {"replacement": False}, {"alpha": 0.6}, {"prefetch": 2}], ids=str)
def test_windows_of_many_batches_are_those_of_each(tmp_path, boundary, options):
    rng, n = np.random.default_rng(0), 50
    states = rng.normal(size=(n + 1, 3)).astype(np.float32)
    arrays = {"observations": states[:-1], "next_observations": states[1:], "actions": rng.normal(size=(n, 2))}
    arrays |= {"rewards": rng.normal(size=n), "terminals": np.arange(n) % 10 == 9}
    dataset = rbdata.open_dataset(rbdata.from_arrays(arrays, "my/data", root=tmp_path))
    together, apart = (
        rbdata.load(dataset, batch_size=7, sample_unit=unit(4, boundary, burn_in=2, bootstrap=1), seed=3, **options)
        for unit in (Sequence, OneByOne)
    )
    for _ in range(40):  # passes of 8 batches, the last of them smaller
        one, other = together.sample(), apart.sample()
        assert set(one.keys(True, True)) == set(other.keys(True, True))
        for key in other.keys(True, True):
            assert one[key].dtype == other[key].dtype
            assert torch.equal(one[key], other[key]), key
        for key in one.keys(True, True):  # no batch shares memory with one that is to come
            one[key].zero_()
