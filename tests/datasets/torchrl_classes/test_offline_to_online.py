"""Offline to online: shares of a batch, annealing, datasets by path and by prefix, copies of datasets."""

from __future__ import annotations

import types

import pytest
import rbdata
import torch
from rbdata.datasets.torchrl_classes import dataset_classes
from rbdata.errors import SamplingError, UsageError
from rbdata.storage.replay import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from replay_tools import equal
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("offline"), make_episodes([10, 30, 7, 20]), "raw")


def records(count, source):
    return TensorDict({"x": torch.arange(count), "source": torch.full((count,), source)}, [count])


def filled(count, source=0, kind=ReplayBuffer):
    buffer = kind(storage=LazyTensorStorage(count))
    buffer.extend(records(count, source))
    return buffer


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75])
def test_shares_are_exact(fraction):
    both = rbdata.OfflineToOnlineReplayBuffer(filled(50), online_capacity=20, offline_fraction=fraction, batch_size=20)
    assert bool((both.sample()["source"] == 0).all()) and len(both) == 50
    both.extend(records(8, 1))
    both.add(records(1, 1)[0])
    assert len(both) == 59 and len(both.offline_buffer) == 50
    for size in (20, 7):
        offline = round(fraction * size)
        assert both.sample(size)["source"].tolist() == [0] * offline + [1] * (size - offline)
    both.anneal(5, 10)
    assert both.offline_fraction == fraction / 2
    other = rbdata.OfflineToOnlineReplayBuffer(filled(50), online_storage=LazyTensorStorage(20))
    other.load_state_dict(both.state_dict())
    assert other.offline_fraction == fraction / 2 and len(other.online_buffer) == 9
    for step in (10, 99):
        both.anneal(step, 10)
        assert bool((both.sample()["source"] == 1).all()) and both.sample().batch_size == (20,)


@pytest.mark.parametrize(("dataset", "online"), [("uint8", "float32"), ("float32", "int64"), ("bool", "uint8")])
def test_whole_numbers_do_not_become_fractions(dataset, online):
    """Frames as bytes beside frames from 0 to 1 would be taken for one another."""
    parts = [TensorDict({"x": torch.ones(8, 2, dtype=getattr(torch, dtype))}, [8]) for dtype in (dataset, online)]
    offline = TensorDictReplayBuffer(storage=LazyTensorStorage(8))
    offline.extend(parts[0])
    both = rbdata.OfflineToOnlineReplayBuffer(offline, online_capacity=8, batch_size=4)
    assert both.sample()["x"].dtype == parts[0]["x"].dtype
    both.extend(parts[1])
    with pytest.raises(SamplingError, match="x is torch"):
        both.sample()


def test_a_dataset_below_another_root(tmp_path):
    steps = {"observation": torch.zeros(4, 1), "action": torch.zeros(3), "reward": torch.ones(3), "terminated": True}
    rbdata.from_episodes([steps], "my/small", root=tmp_path)
    options = {"online_capacity": 4, "batch_size": 6, "n_step": 2, "gamma": 0.5}
    both = rbdata.OfflineToOnlineReplayBuffer("my/small", root=tmp_path, **options)
    assert set(both.sample()["next", "reward"].flatten().tolist()) <= {1.0, 1.5}
    with pytest.raises(UsageError):
        rbdata.OfflineToOnlineReplayBuffer("my/small", root=tmp_path / "other", **options)


@pytest.mark.filterwarnings("ignore:sample")
def test_a_dataset_and_what_is_collected(folder, monkeypatch):
    """Keys of one part only, such as the dataset's rows, are left out; a seed repeats everything."""
    collected = rbdata.open_dataset(folder)[:30].exclude("truncated").set("extra", torch.zeros(30))
    monkeypatch.setattr(dataset_classes, "_REGISTRY", {"mine": lambda path, **options: rbdata.load(path, **options)})
    ways = (folder, str(folder), rbdata.open_dataset(folder), f"mine:{folder}", rbdata.load(folder))
    batches = []
    for way in ways:
        both = rbdata.OfflineToOnlineReplayBuffer(
            way,
            online_capacity=30,
            batch_size=16,
            seed=3,
            transform=lambda batch: batch.set("seen", batch["action"] * 0),
        )
        both.extend(collected)
        batches.append(both.sample())
    assert all(equal(batch, batches[0]) for batch in batches)
    keys = set(batches[0].keys())
    assert keys == {"observation", "action", "next", "done", "terminated", "seen"} and batches[0].batch_size == (16,)


def test_what_is_refused(folder):
    make = rbdata.OfflineToOnlineReplayBuffer
    for bad in ({}, {"online_capacity": 5, "online_storage": LazyTensorStorage(5)}):
        with pytest.raises(UsageError, match=r"one of|not both"):
            make(filled(5), **bad)
    for bad in ({"offline_fraction": 1.0}, {"offline_fraction": 0}, {"split_trajs": True}):
        with pytest.raises(UsageError):
            make(filled(5), online_capacity=5, **bad)
    for lacking in (lambda: make("d4rl:x", online_capacity=5), make(filled(5), online_capacity=5).sample):
        with pytest.raises(UsageError, match="batch_size"):
            lacking()
    for records_of_another_kind in ({"y": torch.zeros(5)}, {"x": torch.zeros(5, 3)}):
        both = make(filled(5), online_capacity=5, batch_size=4)
        both.extend(TensorDict(records_of_another_kind, [5]))
        with pytest.raises(SamplingError):
            both.sample()


def sources(folder):
    """A buffer with windows, named in two ways: by options, and as it is."""
    windows = {"n_step": 3, "gamma": 0.5, "frame_stack": 2}
    return (folder, windows), (rbdata.load(folder, **windows), {})


def test_windows_are_made_of_both_parts(folder):
    """n-step returns and stacks of the online records, those of the dataset's are checked elsewhere."""
    data = rbdata.open_dataset(folder)[:20]
    for source, options in sources(folder):
        both = rbdata.OfflineToOnlineReplayBuffer(source, online_capacity=30, batch_size=8, seed=0, **options)
        both.extend(data)
        batch = both.sample()
        assert batch["observation"].shape[:2] == (8, 2) and (batch["steps_to_next_obs"] > 1).any()
        first = range(18)  # what follows ends with the records there are
        online, alike = (
            both.online_buffer.sample_at(first),
            rbdata.load(folder, **sources(folder)[0][1]).sample_at(first),
        )
        assert equal(online, alike.exclude("index"))


@pytest.mark.parametrize("options", [{"slice_len": 4}, {"num_slices": 2}, {"sample_unit": rbdata.Sequence(3)}])
def test_slices_are_of_no_use_beside_single_records(folder, options):
    with pytest.raises(UsageError, match="single records"):
        rbdata.OfflineToOnlineReplayBuffer(folder, online_capacity=30, batch_size=8, **options)
    with pytest.raises(UsageError, match="single records"):
        rbdata.OfflineToOnlineReplayBuffer(rbdata.load(folder, batch_size=8, **options), online_capacity=30)


def test_copies_hold_what_batches_hold(folder):
    """However many are copied."""
    source = rbdata.load(folder, batch_size=32, n_step=3, gamma=0.5, frame_stack=2, alpha=1.0, beta=1.0, seed=0)
    every = source.sample_at(range(len(source)))
    for count in (None, len(source), len(source) - 1):
        target = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
        rbdata.prefill_replay_buffer(target, source, count, chunk_size=20)
        copied = target[:].exclude("index")
        assert set(copied.keys(True, True)) == set(every.exclude("index").keys(True, True))
        if count != len(source) - 1:
            assert equal(copied, every.exclude("index"))
        rows = [int((every["observation"] == each).flatten(1).all(1).nonzero()[0]) for each in copied["observation"]]
        assert torch.equal(copied["next", "reward"], every["next", "reward"][rows])


def test_copies_of_several_environments_are_in_order():
    time = torch.arange(7)
    source = TensorDictReplayBuffer(storage=LazyTensorStorage(8, ndim=2))
    for chunk in (time[:4], time[4:]):
        source.extend(TensorDict({"x": torch.stack([chunk, chunk + 100])}, [2, len(chunk)]))
    target = TensorDictReplayBuffer(storage=LazyTensorStorage(20))
    rbdata.prefill_replay_buffer(target, source, chunk_size=3)
    assert target["x"].tolist() == [3, 4, 5, 6, 103, 104, 105, 106]
    with pytest.raises(UsageError, match="members"):
        rbdata.prefill_replay_buffer(target, rbdata.ReplayBufferEnsemble(filled(5), filled(5), batch_size=4))


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_copies_of_datasets(folder, kind):
    for count, chunk, expected in ((None, 7, 30), (12, 5, 12), (99, 1000, 30)):
        target = kind(storage=LazyTensorStorage(100))
        assert rbdata.prefill_replay_buffer(target, filled(30, kind=kind), count, chunk) is target
        assert len(target) == expected
        if expected == 30:  # all of it: each record once, in order
            assert target["x"].tolist() == list(range(30))
    target = kind(storage=LazyTensorStorage(100))
    rbdata.prefill_replay_buffer(target, folder, chunk_size=20)
    assert equal(target[:].exclude("index"), rbdata.open_dataset(folder).to_tensordict())


class Doubled(TensorDictReplayBuffer):
    def sample(self, *args, **options):
        batch = super().sample(*args, **options)
        return batch.set("x", batch["x"] * 2)


class Last(rbdata.RandomSampler):
    def sample(self, storage, batch_size):
        return torch.full((batch_size,), len(storage) - 1), {}


@pytest.mark.parametrize("part", [Doubled, Last])
def test_an_own_sample_makes_the_copies_or_there_are_none(part):
    source = filled(30, kind=Doubled) if part is Doubled else filled(30)
    if part is Last:
        source.set_sampler(Last())
    target = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    with pytest.raises(UsageError, match=rf"would not call {part.__name__}.sample\(\)"):
        rbdata.prefill_replay_buffer(target, source)
    rbdata.prefill_replay_buffer(target, source, 20)
    assert len(target) == 20
    assert (target["x"] == 29).all() if part is Last else (target["x"] % 2 == 0).all()


@pytest.mark.filterwarnings("ignore:sample")
def test_what_the_trainer_of_torchrl_does_with_it():
    """The check of its class, and its hooks: torchrl.md has the class of both."""
    import torchrl.data
    from torchrl.trainers.algorithms.offline_to_online import OfflineToOnlineAnnealHook, OfflineToOnlineReplayBufferHook

    class Both(rbdata.OfflineToOnlineReplayBuffer, torchrl.data.OfflineToOnlineReplayBuffer):
        pass

    for kind in (Both, rbdata.OfflineToOnlineReplayBuffer):
        both = kind(filled(50), online_capacity=20, batch_size=10, seed=0)
        assert isinstance(both, torchrl.data.OfflineToOnlineReplayBuffer) == (kind is Both)
        hook = OfflineToOnlineReplayBufferHook(both, batch_size=10)
        hook.extend(records(12, 1).set("loc", torch.zeros(12)))
        assert hook.sample(None)["source"].tolist() == [0] * 5 + [1] * 5
        state = hook.state_dict()
        trainer = types.SimpleNamespace(collected_frames=30)
        OfflineToOnlineAnnealHook(trainer, both, 40)()
        assert both.offline_fraction == 0.125
        hook.load_state_dict(state)
        assert both.offline_fraction == 0.5 and len(both.online_buffer) == 12 and len(both) == 62


def test_a_ring_that_has_wrapped_is_copied_in_order():
    steps = torch.arange(30)
    ring = TensorDictReplayBuffer(storage=LazyTensorStorage(20))
    ring.extend(TensorDict({"a": steps, "next": {"done": (steps % 8 == 7)[:, None]}}, [30]))
    target = TensorDictReplayBuffer(storage=LazyTensorStorage(64))
    rbdata.prefill_replay_buffer(target, ring, chunk_size=7)
    assert target[:]["a"].tolist() == list(range(10, 30))


@pytest.mark.parametrize(
    "options",
    [{"normalize": "observation"}, {"reward_scale": 0.1}, {"goals": rbdata.Goals()}],
    ids=lambda one: next(iter(one)),
)
def test_what_changes_the_values_of_one_part_is_refused(folder, options):
    """Half of a batch would be normalised observations, and half as they are collected."""
    for dataset, more in ((rbdata.load(folder, **options), {}), (folder, options)):
        with pytest.raises(UsageError, match=next(iter(options))):
            rbdata.OfflineToOnlineReplayBuffer(dataset, online_capacity=20, batch_size=8, **more)
    plain = rbdata.load(folder, extra=["step"])  # adds a leaf, which the online part has not
    both = rbdata.OfflineToOnlineReplayBuffer(plain, online_capacity=20, batch_size=8)
    both.extend(rbdata.open_dataset(folder)[:10])
    assert both.sample().get("step", None) is None


def test_goals_are_not_lost_on_the_way_into_a_buffer(folder):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    with pytest.raises(UsageError, match="goals"):
        rbdata.prefill_replay_buffer(buffer, rbdata.load(folder, goals=rbdata.Goals()))


@pytest.mark.parametrize("options", [{}, {"replacement": False}, {"n_step": 3}], ids=str)
def test_a_state_goes_on_with_both_parts(folder, options):
    def made(seed):
        both = rbdata.OfflineToOnlineReplayBuffer(folder, online_capacity=30, batch_size=8, seed=seed, **options)
        both.extend(rbdata.open_dataset(folder)[:25])
        return both

    both, other = made(1), made(2)
    for _ in range(5):
        both.sample()
    other.load_state_dict(both.state_dict())
    assert all(equal(both.sample(), other.sample()) for _ in range(20))
    older = {key: value for key, value in both.state_dict().items() if key != "offline_buffer"}
    other.load_state_dict(older)
    assert other.sample().batch_size == (8,)


def test_shares_are_exact_where_a_pass_ends(folder):
    """67 steps in parts of 5: the last one of a pass has 2, and 3 of the next pass."""
    both = rbdata.OfflineToOnlineReplayBuffer(folder, online_capacity=30, batch_size=10, replacement=False, seed=0)
    both.extend(rbdata.open_dataset(folder)[:25].apply(lambda leaf: torch.zeros_like(leaf)))
    drawn = []
    for _ in range(27):
        batch = both.sample()
        assert batch.batch_size == (10,)
        drawn += batch["observation"][:5].flatten(1).tolist()
    rows = rbdata.open_dataset(folder)[:]["observation"].flatten(1).tolist()
    assert sorted(drawn[:67]) == sorted(rows) == sorted(drawn[67:134])


def test_the_dataset_is_read_ahead(folder):
    """Its buffer did not get the batch size, without which it refuses to prefetch."""
    options = {"online_capacity": 10, "batch_size": 8, "seed": 0}
    one, ahead = (rbdata.OfflineToOnlineReplayBuffer(folder, **options, **more) for more in ({}, {"prefetch": 2}))
    for _ in range(5):
        assert equal(one.sample(), ahead.sample())
        for buffer in (one, ahead):
            buffer.extend(buffer.offline_buffer[:2].exclude("index"))
