"""Ensembles: which members are drawn, states, datasets beside memory, and what is refused."""

from __future__ import annotations

import pytest
import rbdata
import torch
from rbdata.errors import ReadOnlyError, SamplingError, UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SliceSampler,
    TensorDictReplayBuffer,
)
from replay_tools import chi_square, equal, priorities, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


def members(*sizes):
    buffers = []
    for number, size in enumerate(sizes):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(size), batch_size=4, seed=number)
        buffer.extend(rollout([size], first=1000 * number))
        buffers.append(buffer)
    return buffers


def test_members_are_drawn_by_p():
    ensemble = ReplayBufferEnsemble(*members(10, 20, 30), p=[1, 3, 6], batch_size=20, num_buffer_sampled=10, seed=0)
    counts = torch.zeros(3)
    for _ in range(80):
        batch = ensemble.sample()
        assert batch.batch_size == (10, 2)
        ids = batch["index", "buffer_ids"]
        assert bool((batch["action"] // 1000 == ids).all())
        assert bool((batch["action"] % 1000 == batch["index", "index"]).all())
        counts += torch.bincount(ids[:, 0], minlength=3)
    assert chi_square(counts, torch.tensor([0.1, 0.3, 0.6]) * 800) < 5


def test_ensembles_repeat_and_restore(tmp_path):
    make = lambda seed: ReplayBufferEnsemble(*members(10, 20), batch_size=8, seed=seed)  # noqa: E731
    first, second, third = make(3), make(3), make(4)
    assert all(equal(first.sample(), second.sample()) for _ in range(10))
    third.load_state_dict(first.state_dict())
    first.dumps(tmp_path / "ensemble")
    fourth = make(9)
    fourth.loads(tmp_path / "ensemble")
    for _ in range(5):
        batch = first.sample()
        assert equal(batch, third.sample()) and equal(batch, fourth.sample())
    with pytest.raises(UsageError, match="2 members, the ensemble 1"):
        ReplayBufferEnsemble(*members(10), batch_size=4).loads(tmp_path / "ensemble")


def test_ensembles_of_datasets_and_memory(folder):
    dataset = rbdata.load(folder, seed=1).append_transform(lambda batch: batch.select("observation", "action"))
    live = TensorDictReplayBuffer(storage=LazyTensorStorage(30), seed=2)
    live.extend(TensorDict({"observation": torch.zeros(30, 4), "action": torch.full((30,), -1)}, [30]))
    ensemble = ReplayBufferEnsemble(dataset, live, sample_from_all=True, batch_size=32, collate_fn=torch.cat)
    with pytest.raises(Exception):  # noqa: B017  the members' indices differ in what they keep
        ReplayBufferEnsemble(dataset, live, sample_from_all=True, batch_size=31).sample()
    live.append_transform(lambda batch: batch.select("observation", "action"))
    assert ensemble.sample().batch_size == (32,)
    assert len(ensemble) == 2 and ensemble[1] is live and len(ensemble[0]) == 67


def test_ensemble_errors():
    pair = members(10, 20)
    for options in ({"p": [1]}, {"p": [0, 0]}, {"p": [-1, 2]}, {"p": [1, 1], "sample_from_all": True}):
        with pytest.raises(UsageError):
            ReplayBufferEnsemble(*pair, **options)
    with pytest.raises(UsageError, match="needs buffers"):
        ReplayBufferEnsemble()
    ensemble = ReplayBufferEnsemble(*pair, batch_size=5)
    with pytest.raises(SamplingError, match="divided"):
        ensemble.sample()
    with pytest.raises(ReadOnlyError):
        ensemble.extend(rollout([3]))
    with pytest.raises(UsageError) as caught:
        ReplayBufferEnsemble(ensemble, pair[0])
    assert "ensemble.buffers" in str(caught.value.hint)
    with pytest.raises(TypeError, match="colour"):
        ReplayBufferEnsemble(*pair, colour="red")  # type: ignore[call-arg]


def test_members_of_unlike_keys_give_a_lazy_stack():
    """As in TorchRL: what all members have can be read of the whole, what only some have of their parts."""
    pair = members(10, 20)
    pair[1].append_transform(lambda batch: batch.exclude("action"))
    batch = ReplayBufferEnsemble(*pair, batch_size=4, sample_from_all=True).sample()
    assert batch.batch_size == (2, 2) and batch["index", "buffer_ids"].tolist() == [[0, 0], [1, 1]]
    assert "observation" in batch and "action" not in batch and "action" in batch[0]
    with pytest.raises(KeyError):
        batch["action"]


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_members_rows_and_priorities(kind):
    """Batches say which member's row each record is, also those of plain buffers; priorities go back to the members."""
    buffers = [
        kind(storage=LazyTensorStorage(20), sampler=PrioritizedSampler(20, 1, 1, eps=0), seed=number)
        for number in range(3)
    ]
    for number, buffer in enumerate(buffers):
        buffer.extend(TensorDict({"x": torch.arange(20) + 100 * number}, [20]))
    ensemble = ReplayBufferEnsemble(*buffers, batch_size=12, seed=0)
    batch = ensemble.sample()
    assert torch.equal(batch["index", "buffer_ids"] * 100 + batch["index", "index"], batch["x"])
    ensemble.update_priority(batch["index"], (batch["x"] + 2).float())
    batch["td_error"] = (batch["x"] + 5).float()
    ensemble.update_tensordict_priority(batch)
    for value in batch["x"].flatten().tolist():
        assert float(priorities(buffers[value // 100])[value % 100]) == value + 5


def test_what_samplers_say_is_in_the_batch():
    """Also that of plain members, as in TorchRL; and in the info."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=5))
    buffer.extend(TensorDict({"x": torch.arange(20), "episode": torch.arange(20) // 10}, [20]))
    batch, info = ReplayBufferEnsemble(buffer, num_buffer_sampled=2).sample(20, return_info=True)
    assert batch["next", "truncated"].squeeze(-1).nonzero()[:, 1].tolist() == [4, 9, 4, 9]
    assert torch.equal(info["next", "truncated"], batch["next", "truncated"])


@pytest.mark.parametrize("kind", ["ReplayBuffer", "TensorDictReplayBuffer"])
@pytest.mark.parametrize("sampler", ["RandomSampler", "SamplerWithoutReplacement", "SliceSampler"])
def test_batches_look_like_torchrls(kind, sampler):
    """Keys and shapes, also of the info; slices without the last dimension of 1 that they have there."""
    looks = []
    for library in (pytest.importorskip("torchrl.data"), rbdata):
        buffers = []
        for size in (20, 30):
            options = {"slice_len": 5} if sampler == "SliceSampler" else {}
            storage = library.LazyTensorStorage(size)
            buffers.append(getattr(library, kind)(storage=storage, sampler=getattr(library, sampler)(**options)))
            buffers[-1].extend(rollout([10] * (size // 10)))
        ensemble = library.ReplayBufferEnsemble(*buffers, num_buffer_sampled=3)
        batch, info = ensemble.sample(30, return_info=True)
        assert torch.equal(info["index", "buffer_ids"].reshape(-1), batch["index", "buffer_ids"].reshape(-1))
        looks.append(
            (batch.shape[:2], {key: leaf.shape[:2] for key, leaf in batch.items(True, True)}, set(info.keys()))
        )
    assert looks[0] == looks[1]


def test_one_generator_for_all():
    first, second = (
        ReplayBufferEnsemble(*members(10, 20), generator=torch.Generator().manual_seed(1)) for _ in range(2)
    )
    assert all(equal(first.sample(6), second.sample(6)) for _ in range(3))
