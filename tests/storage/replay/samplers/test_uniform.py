"""Uniform samplers: distributions, passes, shares of processes."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections import Counter
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import rbdata
import torch
import torchrl.data as torchrl
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import PassRestartedWarning, SamplingError, UsageError
from rbdata.storage.replay import (
    ConsumingSampler,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from rbdata.storage.replay.samplers.uniform import BlockOrder, Passes, Permutation
from replay_tools import chi_square, equal, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict

LENGTHS = [10, 100, 3, 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("samplers"), make_episodes(LENGTHS))


def counted(buffer, batches: int, size: int) -> torch.Tensor:
    counts = torch.zeros(size)
    for _ in range(batches):
        index = buffer.sample()["index"]
        counts.index_add_(0, index, torch.ones(len(index)))
    return counts


def test_random_is_uniform(folder):
    counts = counted(rbdata.load(folder, batch_size=512, seed=0), 100, 153)
    assert chi_square(counts, torch.full((153,), 512 * 100 / 153)) < 5


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 60),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    world=st.integers(1, 4),
)
def test_a_pass_has_every_step_once(size, batch, shuffle, drop_last, world):
    data = rollout([size])
    taken, lengths = [], []
    for rank in range(world):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(size),
            sampler=SamplerWithoutReplacement(drop_last=drop_last, shuffle=shuffle),
            batch_size=batch,
            seed=1,
            rank=rank,
            world_size=world,
        )
        buffer.extend(data.clone())
        if (drop_last and batch > size // world) or rank >= size:
            with pytest.raises(SamplingError):
                buffer.sample()
                if rank >= size:
                    raise SamplingError("nothing for this rank")
            return
        batches = [batch["action"] for batch in buffer]
        again = [batch["action"] for batch in buffer]
        lengths.append(len(batches))
        assert sorted(torch.cat(batches).tolist()) == sorted(torch.cat(again).tolist()) or drop_last or world > 1
        taken += torch.cat(batches).tolist()
        assert all(len(part) == batch for part in batches[:-1])
        assert len(batches[-1]) == batch or not drop_last
    assert len(set(taken)) == len(taken)
    if drop_last:
        assert len(set(lengths)) == 1
    else:
        assert sorted(taken) == list(range(size))
    if not shuffle and world == 1:
        assert taken == list(range(len(taken)))


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 60),
    before=st.integers(1, 4),
    after=st.integers(1, 5),
    drawn=st.integers(0, 20),
    order=st.sampled_from([Permutation, partial(BlockOrder, group=3, pool=2)]),
)
def test_another_number_of_processes_takes_the_rest_of_a_pass(size, before, after, drawn, order):
    drawn, taken, generator = min(drawn, (size - 1) // before), [], torch.Generator()

    def passes(state=None):
        one = Passes(shuffle=True, drop_last=False, order=order)
        one.seed(3) if state is None else one.load_state(state)
        return one

    for rank in reversed(range(before)):  # that of rank 0 goes on: the others may have fewer places
        one = passes()
        taken += one.take(size, drawn, generator, (rank, before)).tolist()
    for rank in range(after):
        again = passes(one.state())
        left = len([place for place in range(drawn * before, size) if place % after == rank])
        if left:
            taken += again.take(size, left, generator, (rank, after)).tolist()
            assert again.ran_out
        elif size > rank:
            again.take(size, 1, generator, (rank, after))
            assert again.position()[1] > 0  # the next pass
    assert sorted(taken) == list(range(size))


def test_a_position_without_a_number_of_processes_is_of_as_many_as_now():
    one = SamplerWithoutReplacement()
    one.share = (1, 2)
    one.set_position((3, 0, 4, 20, False))
    assert one.draw(list(range(20)), 1, torch.Generator()) and one.position()[2:] == (5, 20, False, 2)


def test_ten_in_fours():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=SamplerWithoutReplacement(), batch_size=4)
    buffer.extend(rollout([10]))
    assert [len(batch) for batch in buffer] == [4, 4, 2]


def test_processes_draw_differently_with_replacement(folder):
    batches = [rbdata.load(folder, batch_size=50, seed=3, rank=rank, world_size=2).sample() for rank in range(2)]
    assert not equal(*batches)


def test_a_growing_storage_starts_the_pass_anew():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=SamplerWithoutReplacement(), batch_size=5, seed=0
    )
    buffer.extend(rollout([10]))
    buffer.sample()
    buffer.extend(rollout([10], first=100))
    assert len({int(step) for batch in buffer for step in batch["index"]}) == 20


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_pass_goes_on_after_loading(tmp_path, shuffle):
    """From a state, a folder, and the state of TorchRL, which holds the list of rows that are left."""
    storage = LazyTensorStorage(10)
    storage.set(range(10), rollout([10]))
    generator = torch.Generator().manual_seed(0)
    sampler = SamplerWithoutReplacement(shuffle=shuffle)
    first = sampler.draw(storage, 4, generator).start
    sampler.dumps(tmp_path)
    other, there = SamplerWithoutReplacement(shuffle=shuffle), torchrl.SamplerWithoutReplacement(shuffle=shuffle)
    other.loads(tmp_path)
    rest = other.draw(storage, 6, generator).start
    assert sorted([*first.tolist(), *rest.tolist()]) == list(range(10)) and other.ran_out

    data = torchrl.LazyTensorStorage(10)
    data.set(range(10), rollout([10]))
    first, _ = there.sample(data, 3)
    theirs = there.state_dict()
    left = theirs["_sample_list"].tolist()
    there.dumps(tmp_path / "theirs")
    for number in range(3):
        other = SamplerWithoutReplacement(shuffle=shuffle)
        if number == 1:
            other.loads(tmp_path / "theirs")
        else:
            other.load_state_dict(theirs)
        if number == 2:  # by way of a state of our own
            theirs["_sample_list"].fill_(-1)  # nobody else's tensor is kept
            state, other = other.state_dict(), SamplerWithoutReplacement(shuffle=shuffle)
            other.load_state_dict(state)
            state["rest"].fill_(0)
        drawn = [other.draw(storage, 5, generator) for _ in range(3)]
        assert torch.cat([drawn[0].start, drawn[1].start]).tolist() == left
        assert sorted(drawn[2].start.tolist()) != [-1] * 5 and len(drawn[2].start) == 5
    position = other.position()
    for bad in ([0, 1, 12], list(range(11))):
        with pytest.raises(UsageError):
            other.load_state_dict({**theirs, "_sample_list": torch.tensor(bad), "_ran_out": True, "drop_last": True})
        assert other.position() == position and not other.drop_last


def test_without_replacement_by_argument():
    kind: Any = RandomSampler
    made = kind(replacement=False, drop_last=True)
    assert type(made) is SamplerWithoutReplacement and made.drop_last
    kind = SliceSampler
    sliced = kind(slice_len=2, replacement=False, shuffle=False)
    assert type(sliced) is SliceSamplerWithoutReplacement and isinstance(sliced, SamplerWithoutReplacement)
    assert type(SamplerWithoutReplacement(replacement=False)) is SamplerWithoutReplacement  # type: ignore[call-arg]
    kind = RandomSampler
    assert type(kind(replacement=True)) is RandomSampler
    options: dict[str, Any] = {"replacement": False}
    for make in (
        lambda: PrioritizedSampler(10, 1, 1, **options),
        lambda: PrioritizedSliceSampler(10, 1, 1, slice_len=2, **options),
        lambda: type("Own", (RandomSampler,), {})(**options),
    ):
        with pytest.raises(UsageError, match="no without-replacement variant"):
            make()


def standard_scores(counts: np.ndarray, expected: float) -> float:
    """How many standard deviations chi-square lies above what it should be."""
    free = len(counts) - 1
    return float((((counts - expected) ** 2).sum() / expected - free) / np.sqrt(2 * free))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_all_orders_of_a_few_come_alike(size):
    count = 40 * math.factorial(size)
    orders = Counter(tuple(Permutation(size, seed)(np.arange(size)).tolist()) for seed in range(count))
    found = np.array([orders[order] for order in permutations(range(size))])
    assert abs(standard_scores(found, 40)) < 4


@pytest.mark.parametrize("size", [8, 16, 64])
def test_orders_of_some_are_random(size):
    """Pairs of places, elements that stay where they are, and neighbours that stay neighbours."""
    count = 8000
    orders = np.stack([Permutation(size, seed)(np.arange(size)) for seed in range(count)])
    assert (np.sort(orders) == np.arange(size)).all()
    for first, second in ((0, 1), (0, size // 2), (size - 2, size - 1)):
        pairs = np.bincount(orders[:, first] * size + orders[:, second], minlength=size**2).reshape(size, size)
        found = pairs[~np.eye(size, dtype=bool)]
        assert abs(standard_scores(found, count / len(found))) < 4
    fixed, followed = (orders == np.arange(size)).sum(1), (np.diff(orders) == 1).sum(1)
    assert abs(fixed.mean() - 1) < 4 / np.sqrt(count)
    assert abs(followed.mean() - (size - 1) / size) < 4 / np.sqrt(count)


def test_passes_over_a_few_episodes_come_in_all_orders(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([4] * 4))
    options: dict[str, Any] = {"batch_size": 4, "slice_len": 4, "replacement": False}
    buffer = rbdata.load(folder, seed=0, **options)
    orders = Counter(tuple(int(batch["index"][0]) // 4 for batch in buffer) for _ in range(1200))
    found = np.array([orders[order] for order in permutations(range(4))])
    assert abs(standard_scores(found, 50)) < 4


@pytest.mark.parametrize("options", [{}, {"prefetch": 2}], ids=str)
def test_a_pass_that_is_restarted_by_a_write_says_so(options):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40), sampler=SamplerWithoutReplacement(), batch_size=5, seed=0, **options
    )
    buffer.extend(rollout([20]))
    with warnings.catch_warnings(), buffer:
        warnings.simplefilter("error")
        assert len(list(buffer)) == 4
        for _ in buffer:
            break
        buffer.extend(rollout([5]))  # between two iterations it surprises nobody
        for _ in buffer:
            break
        with pytest.warns(PassRestartedWarning, match="started the pass again") as caught:
            for _ in buffer:
                buffer.extend(rollout([5]))
        assert len(caught) == 1 and caught[0].filename == __file__
        for _ in buffer:  # once is enough; a full ring is written without a restart
            buffer.extend(rollout([5]))


def test_arguments_assigned_in_use():
    sampler = SamplerWithoutReplacement()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(64), sampler=sampler, batch_size=10, seed=0)
    buffer.extend(TensorDict({"a": torch.arange(64)}, [64]))
    buffer.sample()
    sampler.shuffle, sampler.drop_last = False, True
    assert torch.cat([batch["a"] for batch in buffer]).tolist() == list(range(60))


def numbered(first: int, sampler, **options) -> ReplayBuffer:
    """A buffer of ten numbers from ``first`` on."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler, batch_size=4, **options)
    buffer.extend(torch.arange(first, first + 10))
    return buffer


@pytest.mark.parametrize("drop_last", [False, True])
def test_two_buffers_do_not_take_each_others_records(drop_last):
    sampler = SamplerWithoutReplacement(drop_last=drop_last)
    one, other = numbered(0, sampler), numbered(100, sampler)
    first = one.sample()
    with pytest.raises(SamplingError, match="in use by a buffer with other records") as caught:
        other.sample()
    assert "empty()" in str(caught.value)
    if not drop_last:
        assert sorted([*first.tolist(), *one.sample().tolist(), *one.sample().tolist()]) == [*range(10)]
        other.sample()  # the pass of the first has ended
    else:
        sampler.empty()
        other.sample()


def test_a_sampler_goes_on_with_other_buffers():
    """One after another, by copies, through `set_storage`, over one storage; and where nobody has the first one any more."""
    sampler = SamplerWithoutReplacement()
    one = numbered(0, sampler)
    one.sample()
    again = ReplayBuffer(storage=one.storage, sampler=sampler, batch_size=4)
    assert len(again.sample()) == 4
    copied = copy.deepcopy(one)
    assert len(copied.sample()) == 2 and len(pickle.loads(pickle.dumps(one)).sample()) == 2
    kept = one.set_storage(numbered(100, RandomSampler()).storage)
    assert len(kept) == 10 and one.sample().min() >= 100
    moved = numbered(200, one.set_sampler(RandomSampler()))
    moved.sample()
    del moved
    assert numbered(300, sampler).sample().min() >= 300


@pytest.mark.parametrize("make", [lambda: PrioritizedSampler(10, 1.0, 1.0), lambda: ConsumingSampler(2)])
def test_what_is_kept_of_rows_is_not_shared(make):
    """Priorities and counts belong to the rows of one buffer."""
    sampler = make()
    one, other = numbered(0, sampler), numbered(100, sampler)
    one.sample()
    assert one.can_sample(4) and not other.can_sample(4)
    with pytest.raises(SamplingError, match="in use by a buffer with other records"):
        other.sample()
    sampler.empty()
    other.empty()
    other.extend(torch.arange(100, 110))
    assert other.sample().min() >= 100
    with pytest.raises(SamplingError, match="in use by a buffer with other records"):
        one.sample()


def test_slices_of_two_buffers():
    sampler = SliceSamplerWithoutReplacement(slice_len=2, end_key="done")
    buffers = []
    for first in (0, 100):
        buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=4)
        done = torch.arange(20) % 4 == 3
        buffer.extend(TensorDict({"done": done[:, None], "number": torch.arange(first, first + 20)}, [20]))
        buffers.append(buffer)
    buffers[0].sample()
    with pytest.raises(SamplingError, match="a buffer with other records"):
        buffers[1].sample()


def test_a_pass_resumed_by_more_processes_than_steps_left():
    """A process without a share of the rest gets no batch; it does not begin the next pass before the others."""
    storage = LazyTensorStorage(14)
    storage.set(range(14), torch.arange(14))
    first = ReplayBuffer(storage=storage, sampler=SamplerWithoutReplacement(), batch_size=2, seed=0)
    drawn = [number for _ in range(6) for number in first.sample(return_info=True)[1]["index"].tolist()]
    for rank in range(3):
        resumed = ReplayBuffer(
            storage=storage, sampler=SamplerWithoutReplacement(), batch_size=2, seed=0, rank=rank, world_size=3
        )
        resumed.sampler.load_state_dict(first.sampler.state_dict())
        drawn += resumed.sample(return_info=True)[1]["index"].tolist()
    assert sorted(drawn) == list(range(14))
