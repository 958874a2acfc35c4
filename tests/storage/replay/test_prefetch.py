"""Prefetching: the same batches as without, errors, threads and writes in between."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import UserDict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import rbdata
import torch
from rbdata.errors import SamplingError, UsageError
from rbdata.storage.replay import (
    CompressedListStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from rbdata.storage.replay.prefetch import Prefetcher
from rbdata.storage.replay.storages.trees import stack_records
from replay_tools import equal, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


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


def test_a_job_never_waits_for_one_that_was_taken_back():
    """Closing empties the pool's queue while its threads take jobs out of it: a later job may be taken, an earlier one not."""
    queue = Prefetcher(1)
    held, freed = threading.Event(), threading.Event()

    def collate(value):
        held.set()
        freed.wait()
        return value

    queue.submit(0, lambda: 0, collate, lambda value: value)
    for item in (1, 2):
        queue.submit(item, lambda: 0, lambda value: value, lambda value: value)
    first, _, last = queue._queue
    held.wait()
    assert queue.withdraw() == [first]
    freed.set()
    taken = threading.Thread(target=last.run, daemon=True)
    taken.start()
    taken.join(30)
    assert not taken.is_alive()
    queue.close()


def test_a_job_does_not_wait_for_one_that_nobody_asks_for():
    """Where the way of making batches changed and the process ends before the next batch, its thread would never end."""
    done: list[str] = []
    queue: Prefetcher[str] = Prefetcher(2)
    for name, in_thread in (("for the caller", False), ("in a thread", True)):
        queue.submit(name, partial(str, name), None, done.append, in_thread=in_thread)
    last = queue._queue[-1]
    waiting = threading.Thread(target=last.wait, daemon=True)
    waiting.start()
    waiting.join(20)
    assert last.has_ended
    assert done == ["for the caller", "in a thread"]
    assert queue.pop().result() is None
    queue.close()


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


def test_quick_batches_are_made_by_the_caller():
    """Where handing a batch to a thread takes longer than making it, no thread is used; slow ones go to threads again."""
    slow, threads = [False], []

    def transform(batch):
        threads.append(threading.current_thread().name)
        time.sleep(0.002 if slow[0] else 0)
        return batch

    with TensorDictReplayBuffer(storage=LazyTensorStorage(64), batch_size=4, prefetch=2, transform=transform) as buffer:
        buffer.extend(rollout([64]))
        for state in (False, True):
            slow[0] = state
            for _ in range(1000):
                buffer.sample()
                in_threads = any(name.startswith("rbdata-prefetch") for name in threads[-10:])
                if len(threads) > 40 and in_threads == state:
                    break
            assert in_threads == state
            threads.clear()


@pytest.mark.parametrize("kind", ["LazyTensorStorage", "LazyMemmapStorage", "ListStorage"])
@pytest.mark.parametrize("sampler", ["random", "a pass", "priorities"])
def test_one_seed_repeats_whatever_way_is_quicker(kind, sampler, monkeypatch):
    """Data and priorities change between batches: which rows a batch has must not follow from measured time."""

    def run(ways):
        class Forced:
            ahead = property(lambda self: ways.choice((True, False)))

            def __init__(self, depth):
                pass

            def note(self, ahead, now):
                pass

        monkeypatch.setattr("rbdata.storage.replay.pipeline.Pace", Forced)
        made = {
            "random": RandomSampler,
            "a pass": SamplerWithoutReplacement,
            "priorities": lambda: PrioritizedSampler(64, 1.0, 1.0),
        }[sampler]()
        storage = getattr(rbdata, kind)(64)
        with TensorDictReplayBuffer(storage=storage, sampler=made, batch_size=8, prefetch=3, seed=0) as buffer:
            buffer.extend(rollout([20]))
            for number in range(40):
                batch = buffer.sample()
                drawn.append(batch["action"].tolist())
                buffer.update_tensordict_priority(batch.set("td_error", batch["action"].float() % 7))
                if number % 3 == 0:
                    buffer.extend(rollout([3], first=100 * number))
                if number % 7 == 0:
                    drawn.append(buffer.sample(5)["action"].tolist())

    runs = []
    for seed in (None, 1, 2):
        drawn: list[list[int]] = []
        run(SimpleNamespace(choice=lambda ways: False) if seed is None else random.Random(seed))
        runs.append(drawn)
    assert runs[0] == runs[1] == runs[2]


def test_a_transform_that_samples_from_its_own_buffer():
    def mixed(batch):
        return batch.set("other", buffer.sample()["action"])

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4, prefetch=2, transform=mixed)
    buffer.extend(rollout([20]))
    with buffer, pytest.raises(UsageError, match="samples from its own buffer"):
        buffer.sample()


def doubling(room=None):
    """A function of a batch or of its records that returns a view of memory that it uses for every batch."""
    room = torch.zeros(64, 3) if room is None else room

    def double(batch):
        batch = stack_records(batch) if isinstance(batch, list) else batch
        view = room[: len(batch)]
        for row, value in enumerate(batch["observation"]):  # slowly, so that two threads would meet in it
            view[row] = value * 2
        return batch.set("double", view)

    return double


class ReusingStorage(LazyTensorStorage):
    """A storage whose records lie in memory that the next call uses again."""

    room = torch.zeros(64, 3)

    def get(self, index):
        records = super().get(index)
        self.room[: len(records)] = records["observation"]
        time.sleep(0.001)
        return records.set("observation", self.room[: len(records)])


class ReusingSampler(RandomSampler):
    """A sampler whose index and info lie in memory that the next call uses again."""

    index, weight = torch.zeros(64, dtype=torch.int64), torch.zeros(64)

    def sample(self, storage, batch_size):
        index, _ = super().sample(storage, batch_size)
        self.index[:batch_size], self.weight[:batch_size] = index, index.float()
        return self.index[:batch_size], {"weight": self.weight[:batch_size]}


@pytest.mark.parametrize("part", ["transform", "collate_fn", "storage", "sampler", "list"])
def test_parts_that_use_their_memory_again(part):
    """What waits to be delivered does not change, and no two batches meet in the memory of the user's code."""
    storage = (
        ListStorage(100) if part == "list" else ReusingStorage(100) if part == "storage" else LazyTensorStorage(100)
    )
    options = {"collate_fn": doubling()} if part in ("collate_fn", "list") else {}
    if part == "sampler":
        options["sampler"] = ReusingSampler()
    if part == "transform":
        options["transform"] = doubling()
    with TensorDictReplayBuffer(storage=storage, batch_size=16, prefetch=4, **options) as buffer:
        observation = torch.arange(300.0).reshape(100, 3)
        buffer.extend(TensorDict({"observation": observation}, [100]))
        batches = []
        for _ in range(20):
            batches.append(buffer.sample())
            time.sleep(0.002)  # meanwhile the next ones are made
    for batch in batches:
        assert torch.equal(batch["observation"], observation[batch["index"]])
        assert torch.equal(batch.get("double", 2 * batch["observation"]), 2 * batch["observation"])
        assert torch.equal(batch.get("weight", batch["index"]).long(), batch["index"])


class Filled(dict):
    """As the batches of tianshou, which pytree does not know."""


class Attributes(dict):
    """A common idiom, with which copy.deepcopy fails."""

    __getattr__ = dict.__getitem__


class Plain:
    obs: torch.Tensor


def filled(kind):
    """An object whose memory is filled again for every batch, and how it is read."""
    if kind == "bytes":
        return bytearray(8), bytes
    memory = torch.zeros(8, dtype=torch.int64)
    if kind == "object":
        made = Plain()
        made.obs = memory
        return made, lambda found: found.obs
    if kind == "array":
        made = np.empty(1, dtype=object)
        made[0] = memory
        return made, lambda found: found[0]
    made = {"UserDict": UserDict, "dict": Filled, "attributes": Attributes}[kind](obs=memory)
    return made, lambda found: found["obs"]


@pytest.mark.parametrize("kind", ["object", "array", "UserDict", "dict", "attributes", "bytes"])
@pytest.mark.parametrize("part", ["transform", "collate_fn"])
def test_batches_of_other_classes_that_use_their_memory_again(kind, part):
    made, read = filled(kind)

    def fill(batch):
        memory = made if kind == "bytes" else read(made)
        for row, value in enumerate(batch["observation"].tolist()):
            memory[row] = value
        return made

    with rbdata.ReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=SamplerWithoutReplacement(shuffle=False),
        batch_size=8,
        prefetch=4,
        **{part: fill},
    ) as buffer:
        buffer.extend(TensorDict({"observation": torch.arange(100)}, [100]))
        for first in range(0, 80, 8):
            assert list(read(buffer.sample())) == list(range(first, first + 8))
            time.sleep(0.002)  # meanwhile the next ones are made


@pytest.mark.parametrize("kind", ["object", "bytes", "list"])
def test_values_beside_tensors_that_use_their_memory_again(kind):
    made, read = ([0] * 8, list) if kind == "list" else filled(kind)

    def fill(batch):
        memory = read(made) if kind == "object" else made
        for row, value in enumerate(batch["observation"].tolist()):
            memory[row] = value
        return batch.set("below", TensorDict({}, [8])).set_non_tensor(("below", "made"), made)

    with TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=8, prefetch=4, transform=fill) as buffer:
        buffer.extend(TensorDict({"observation": torch.arange(100)}, [100]))
        for _ in range(10):
            batch = buffer.sample()
            assert list(read(batch.get(("below", "made")).data)) == batch["observation"].tolist()
            time.sleep(0.002)  # meanwhile the next ones are made


def test_a_write_between_reading_and_collating(monkeypatch):
    """It makes records alike that were not: leaves can be read now, and the batch that was read before still gets its index."""
    written, calls = threading.Event(), []

    def slowly(records):
        calls.append(records)
        assert len(calls) != 2 or written.wait(30)
        return stack_records(records)

    monkeypatch.setattr("rbdata.storage.replay.pipeline.stack_records", slowly)
    records = [TensorDict({"a": torch.ones(2 + number // 3)}) for number in range(4)]
    parts = {"storage": CompressedListStorage(4), "writer": RoundRobinWriter()}
    buffer = TensorDictReplayBuffer(**parts, batch_size=4, prefetch=1, seed=0)
    for record in records:
        buffer.add(record)
    buffer.sample()
    buffer[3] = records[0]
    written.set()
    assert [sorted(buffer.sample().keys()) for _ in range(3)] == [["a", "index"]] * 3
