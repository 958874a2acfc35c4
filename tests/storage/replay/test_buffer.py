"""The buffer as a whole: transforms, prefetching, iteration, processes, ensembles, helpers."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time

import pytest
import rbdata
import torch
from rbdata.errors import ReadOnlyError, SamplingError, SchemaError, UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    MultiStep,
    RandomCropTensorDict,
    RandomSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    split_trajectories,
)
from replay_tools import chi_square, equal, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


def numbers(n: int = 20, **more) -> ReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(n), batch_size=5, seed=0, **more)
    buffer.extend(rollout([n]))
    return buffer


# -- transforms --------------------------------------------------------------------------------------------------------


class Scale:
    """Forward times two, inverse half: stands for a transform with both directions."""

    def __call__(self, data):
        return data.set("action", data["action"] * 2)

    def inv(self, data):
        return data.set("action", data["action"] // 2)


def test_transforms_run_in_order():
    seen = []
    buffer = numbers()
    buffer.append_transform(lambda batch: seen.append("b") or batch)
    buffer.append_transform(lambda batch: seen.append("c"))  # returns nothing: changed in place
    buffer.insert_transform(0, lambda batch: seen.append("a") or batch)
    assert buffer.sample().batch_size == (5,)
    assert seen == ["a", "b", "c"]
    assert len(buffer.transform) == 3


def test_transforms_on_the_way_in():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), transform=Scale(), batch_size=8)
    buffer.extend(rollout([8]))
    assert buffer.storage.get(slice(None))["action"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert buffer["action"].tolist() == [0, 0, 2, 2, 4, 4, 6, 6]
    inverted = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=8)
    inverted.append_transform(Scale(), invert=True)
    inverted.extend(rollout([4]))
    inverted.add(rollout([5])[4])
    assert inverted.storage.get(slice(None))["action"].tolist() == [0, 2, 4, 6, 8]
    assert inverted["action"].tolist() == [0, 1, 2, 3, 4]


def test_modules_and_torchrl_transforms(folder):
    from tensordict.nn import TensorDictModule

    net = TensorDictModule(
        torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout(0.9)), ["observation"], ["value"]
    )
    buffer = rbdata.load(folder, batch_size=4, transform=net)
    batch = buffer.sample()
    assert not net.training
    assert torch.equal(batch["value"], net(batch.clone())["value"])
    transforms = pytest.importorskip("torchrl.envs.transforms")
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(5),
        batch_size=3,
        transform_factory=lambda: transforms.Compose(
            transforms.RenameTransform(["observation"], ["state"]), transforms.DoubleToFloat()
        ),
    )
    buffer.extend(rollout([5]))
    assert "state" in buffer.sample().keys()  # noqa: SIM118


def test_a_transform_may_keep_data_back():
    class Never:
        def __call__(self, batch):
            return batch

        def inv(self, data):
            return None

    buffer = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=3, transform=Never())
    assert buffer.extend(rollout([5])).shape == (0, 1)
    assert buffer.add(rollout([1])[0]) is None
    assert len(buffer) == 0


def test_bad_transforms():
    with pytest.raises(UsageError, match="called with a batch"):
        ReplayBuffer(transform=5)
    with pytest.raises(UsageError, match="not both"):
        ReplayBuffer(transform=Scale(), transform_factory=Scale)
    with pytest.raises(UsageError, match="no place 3"):
        ReplayBuffer().insert_transform(3, Scale())


# -- prefetching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("options", [{}, {"replacement": False}, {"slice_len": 4, "frame_stack": 2}], ids=str)
def test_prefetching_changes_nothing(folder, depth, options):
    plain = rbdata.load(folder, batch_size=8, seed=1, **options)
    with rbdata.load(folder, batch_size=8, seed=1, prefetch=depth, **options) as buffer:
        assert all(equal(plain.sample(), buffer.sample()) for _ in range(40))
    # Closed, it goes on where it stopped.
    assert all(equal(plain.sample(), buffer.sample()) for _ in range(5))
    buffer.close()


def test_prefetched_passes_end(folder):
    with rbdata.load(folder, batch_size=8, seed=1, prefetch=4, replacement=False) as buffer:
        for _ in range(3):
            batches = list(buffer)
            assert sorted(torch.cat([batch["index"] for batch in batches]).tolist()) == list(range(67))


def test_transforms_with_a_state_stay_in_order(folder):
    """Reading may overtake, what comes after it may not: a counter counts the batches as they are delivered."""

    class Counter:
        number = 0

        def __call__(self, batch):
            self.number += 1
            return batch.set("number", torch.full((8,), self.number))

    with rbdata.load(folder, batch_size=8, seed=1, prefetch=4, transform=Counter()) as buffer:
        inner = buffer._pipeline.read
        buffer._pipeline.read = lambda prepared: time.sleep(0.002 * (int(prepared.index[0]) % 3)) or inner(prepared)
        assert [int(buffer.sample()["number"][0]) for _ in range(30)] == list(range(1, 31))


def test_errors_in_threads_are_raised_here(folder):
    class Breaks:
        number = 0

        def __call__(self, batch):
            self.number += 1
            if self.number == 5:
                raise KeyError("broken")
            return batch

    with rbdata.load(folder, batch_size=8, seed=1, prefetch=3, transform=Breaks()) as buffer:
        for _ in range(4):
            buffer.sample()
        with pytest.raises(KeyError, match="broken"):
            buffer.sample()
        for _ in range(10):  # the rest goes on
            buffer.sample()


def test_reading_errors_do_not_block(folder):
    with rbdata.load(folder, batch_size=8, seed=1, prefetch=3) as buffer:
        inner, calls = buffer._pipeline.read, []

        def read(prepared):
            calls.append(1)
            if len(calls) == 4:
                raise OSError("gone")
            return inner(prepared)

        buffer._pipeline.read = read
        results = []
        for _ in range(12):
            try:
                results.append(len(buffer.sample()))
            except OSError:
                results.append("error")
        assert results.count("error") == 1 and len(results) == 12


def test_no_thread_outlives_its_buffer(folder):
    def mine():
        return {thread for thread in threading.enumerate() if thread.name.startswith("rbdata-prefetch")} - before

    before = set(threading.enumerate())
    for end in ("closed", "forgotten"):
        buffer = rbdata.load(folder, batch_size=8, prefetch=3)
        buffer.sample()
        assert mine()
        if end == "closed":
            buffer.close()
        del buffer
        for _ in range(200):
            if not mine():
                break
            time.sleep(0.01)
        assert not mine()


def test_a_process_ends_with_batches_on_their_way(folder):
    code = f"import rbdata; b = rbdata.load({str(folder)!r}, batch_size=8, prefetch=3); b.sample(); print('done')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "done\n" and not done.stderr


def test_writes_and_prefetching():
    """A ring that is written while batches are on their way: whole rows only."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(64), batch_size=32, prefetch=2)
    with buffer:
        buffer.extend(rollout([64]))
        for number in range(40):
            data = rollout([32], first=1000 * number)
            data["observation"][:, 1] = data["action"].float()
            buffer.extend(data)
            batch = buffer.sample()
            assert batch.batch_size == (32,)
        buffer.empty()
        with pytest.raises(SamplingError):
            buffer.sample()


# -- iteration, states -------------------------------------------------------------------------------------------------


def test_next_and_iteration():
    buffer = numbers(12, sampler=SamplerWithoutReplacement())
    assert [len(batch) for batch in buffer] == [5, 5, 2]
    taken = [buffer.next() for _ in range(4)]
    assert taken[3] is None and len(taken[2]) == 2
    assert len(next(buffer)) == 5
    endless = numbers()
    assert len([batch for batch, _ in zip(endless, range(50))]) == 50


@pytest.mark.parametrize("prefetch", [None, 3])
@pytest.mark.parametrize("options", [{}, {"replacement": False}, {"slice_len": 2, "replacement": False}], ids=str)
def test_a_state_is_a_place_in_the_order(folder, options, prefetch):
    with rbdata.load(folder, batch_size=4, seed=2, prefetch=prefetch, **options) as buffer:
        for _ in range(5):
            buffer.sample()
        state = buffer.state_dict()
        wanted = [buffer.sample() for _ in range(10)]
        buffer.load_state_dict(state)
        assert all(equal(buffer.sample(), batch) for batch in wanted)
    other = rbdata.load(folder, batch_size=4, seed=99, **options)
    other.load_state_dict(state)
    assert all(equal(other.sample(), batch) for batch in wanted)
    with pytest.raises(UsageError, match="lacks storage"):
        other.load_state_dict({})


def test_parts_can_be_exchanged():
    buffer = numbers()
    before = buffer.set_sampler(SamplerWithoutReplacement(shuffle=False))
    assert isinstance(before, RandomSampler)
    assert buffer.sample()["index"].tolist() == [0, 1, 2, 3, 4]
    assert isinstance(buffer.set_writer(RoundRobinWriter()), TensorDictRoundRobinWriter)
    old = buffer.set_storage(LazyTensorStorage(3))
    assert len(old) == 20 and len(buffer) == 0
    buffer.extend(rollout([3]))
    assert len(buffer) == 3
    buffer.set_rng(torch.Generator().manual_seed(4))
    buffer.set_seed(4)
    assert repr(buffer).startswith("TensorDictReplayBuffer(storage=LazyTensorStorage")


def test_samplers_by_hand():
    """What code written for TorchRL's samplers calls."""
    storage = LazyTensorStorage(10)
    storage.set(slice(0, 10), rollout([10]))
    index, info = RandomSampler().sample(storage, 4)
    assert index.shape == (4,) and info == {}
    index, info = SliceSampler(slice_len=2).sample(storage, 4)
    assert index[1] == index[0] + 1


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind,start",
    [("dataset", "fork"), ("memory", "fork"), ("memmap", "fork"), ("dataset", "spawn"), ("memory", "spawn")],
)
def test_data_loader_workers_share_a_pass(folder, kind, start):
    options = {"batch_size": 4, "sampler": SamplerWithoutReplacement(), "seed": 5}
    if kind == "dataset":
        buffer, size = TensorDictReplayBuffer(storage=folder, **options), 67
    else:
        storage = LazyTensorStorage(50) if kind == "memory" else LazyMemmapStorage(50)
        buffer, size = TensorDictReplayBuffer(storage=storage, **options), 50
        buffer.extend(rollout([50]))
    loader = buffer.as_iterable().loader(num_workers=2, multiprocessing_context=start)
    index = torch.cat([batch["index"] for batch in loader])
    assert sorted(index.tolist()) == list(range(size))


def test_workers_with_replacement_draw_differently(folder):
    buffer = rbdata.load(folder, batch_size=16, seed=5)
    loader = buffer.as_iterable(3).loader(num_workers=2, multiprocessing_context="fork")
    batches = [tuple(batch["index"].tolist()) for batch in loader]
    assert len(set(batches)) == 6
    again = rbdata.load(folder, batch_size=16, seed=5).as_iterable(3)
    loader = again.loader(num_workers=2, multiprocessing_context="fork")
    assert [tuple(batch["index"].tolist()) for batch in loader] == batches
    assert len(list(buffer.as_iterable(2).loader())) == 2


def test_a_fork_with_batches_on_their_way(folder):
    """The threads stay with the parent; the child goes on with the same batches."""
    with rbdata.load(folder, batch_size=8, seed=1, prefetch=2) as buffer:
        plain = rbdata.load(folder, batch_size=8, seed=1)
        buffer.sample(), plain.sample()
        wanted = plain.sample()["index"].sum()
        child = os.fork()
        if not child:
            os._exit(0 if buffer.sample()["index"].sum() == wanted else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert buffer.sample()["index"].sum() == wanted


def test_pickling_a_dataset_buffer_carries_no_data(folder):
    buffer = rbdata.load(folder, batch_size=8, seed=1, prefetch=2)
    buffer.sample()
    data = pickle.dumps(buffer)
    assert len(data) < 20_000
    with pickle.loads(data) as other:
        assert all(equal(buffer.sample(), other.sample()) for _ in range(5))
    buffer.close()


def test_shared_memory():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    buffer.extend(rollout([5]))
    buffer.share()
    child = os.fork()
    if not child:
        buffer.extend(rollout([3], first=40))
        os._exit(0)
    os.waitpid(child, 0)
    assert len(buffer) == 8
    assert buffer["action"].tolist() == [0, 1, 2, 3, 4, 40, 41, 42]
    with pytest.raises(UsageError, match="cannot be shared"):
        ReplayBuffer(storage=ListStorage(5), shared=True)


def test_devices(folder):
    batch = rbdata.load(folder, batch_size=4, device="cpu", pin_memory=True).sample()
    assert batch.device == torch.device("cpu")
    meta = rbdata.load(folder, batch_size=4, device="meta", prefetch=1)
    assert meta.sample()["observation"].device.type == "meta"
    meta.close()


# -- ensembles ---------------------------------------------------------------------------------------------------------


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
    for _ in range(500):
        batch = ensemble.sample()
        assert batch.batch_size == (10, 2)
        ids = batch["index", "buffer_ids"]
        assert bool((batch["action"] // 1000 == ids).all())
        assert bool((batch["action"] % 1000 == batch["index", "index"]).all())
        counts += torch.bincount(ids[:, 0], minlength=3)
    assert chi_square(counts, torch.tensor([0.1, 0.3, 0.6]) * 5000) < 5


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
    assert len(ensemble) == 2 and ensemble[1] is live and len(ensemble[:1]) == 1 and len(ensemble[0]) == 67


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
    pair[1].append_transform(lambda batch: batch.exclude("action"))
    with pytest.raises(SamplingError, match="not alike"):
        ReplayBufferEnsemble(*pair, batch_size=4, sample_from_all=True).sample()


# -- helpers -----------------------------------------------------------------------------------------------------------


def test_crops_reach_both_ends():
    """Every start comes, the last one too, and a sequence of exactly the length is itself (TorchRL's misses both)."""
    crop = RandomCropTensorDict(3, generator=torch.Generator().manual_seed(0))
    batch = torch.stack([rollout([7])] * 200)
    starts = crop(batch)["action"][:, 0]
    assert sorted(starts.unique().tolist()) == [0, 1, 2, 3, 4]
    assert chi_square(torch.bincount(starts).float(), torch.full((5,), 40.0)) < 5
    assert equal(RandomCropTensorDict(7)(batch), batch)
    with pytest.raises(SamplingError, match="no piece of 8"):
        RandomCropTensorDict(8)(batch)
    masked = batch.clone().set("mask", torch.arange(7).expand(200, 7) < 4)
    cropped = RandomCropTensorDict(3, mask_key="mask")(masked)
    assert sorted(cropped["action"][:, 0].unique().tolist()) == [0, 1]
    first = RandomCropTensorDict(3, sample_dim=0)(rollout([9]))
    assert first.batch_size == (3,)
    crop = pickle.loads(pickle.dumps(RandomCropTensorDict(3, generator=torch.Generator().manual_seed(5))))
    assert crop.generator.initial_seed() is not None


def test_slices_split_and_cropped(folder):
    buffer = rbdata.load(folder, batch_size=60, slice_len=6, seed=0)
    split = split_trajectories(buffer.sample())
    assert split.batch_size == (10, 6) and split["mask"].all()
    buffer.append_transform(lambda batch: batch.view(10, 6)).append_transform(MultiStep(gamma=0.9, n_steps=3))
    buffer.append_transform(RandomCropTensorDict(2))
    batch = buffer.sample()
    assert batch.batch_size == (10, 2) and "steps_to_next_obs" in batch.keys()  # noqa: SIM118


def test_helpers_refuse():
    with pytest.raises(UsageError):
        MultiStep(0.9, 0)
    with pytest.raises(UsageError):
        MultiStep(0, 2)
    with pytest.raises(SchemaError, match="next/done"):
        MultiStep(0.9, 2)(TensorDict({"next": {"reward": torch.zeros(3, 1)}}, [3]))
    with pytest.raises(SchemaError, match="neither trajectory ids"):
        split_trajectories(TensorDict({"x": torch.zeros(3)}, [3]))
    with pytest.raises(UsageError):
        RandomCropTensorDict(0)


def test_collate(folder):
    buffer = rbdata.load(folder, batch_size=4, collate_fn=lambda batch: batch["observation"])
    assert buffer.sample().shape == (4, 4)
