"""Buffers as datasets of PyTorch's data loaders."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import rbdata
import torch
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
)
from replay_tools import rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict
from torch.utils.data import DataLoader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("buffer"), make_episodes([10, 30, 7, 20]))


@pytest.mark.parametrize("kind,start", [("memmap", "fork"), ("dataset", "forkserver"), ("memory", "forkserver")])
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


@pytest.mark.parametrize("workers, shuffle", [((2, 0), "blocks"), ((1, 2, 0), True)])
def test_processes_with_unlike_numbers_of_workers_share_a_pass(folder, workers, shuffle):
    options = {"batch_size": 4, "replacement": False, "shuffle": shuffle, "world_size": len(workers), "seed": 5}
    drawn, shares = [], []
    for rank, number in enumerate(workers):
        alone = rbdata.load(folder, rank=rank, **options)
        shares.append({step for batch in alone for step in batch["index"].tolist()})
        # Importing torchrl.envs makes spawn the default, and each worker would import torch for itself.
        how = {"multiprocessing_context": "fork"} if number else {}
        loader = rbdata.load(folder, rank=rank, **options).as_iterable().loader(num_workers=number, **how)
        drawn.append([step for batch in loader for step in batch["index"].tolist()])
    assert sorted(step for steps in drawn for step in steps) == list(range(67))
    assert [set(steps) for steps in drawn] == shares


@pytest.mark.parametrize("workers", [0, 2])
def test_records_by_number(workers):
    """The map-style view, which reads a batch at once."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=6)
    buffer.extend(rollout([20]))
    buffer.append_transform(twice)
    options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    batches = list(DataLoader(buffer.as_map(), batch_size=6, **options))
    assert [batch.batch_size for batch in batches] == [(6,), (6,), (6,), (2,)]
    together = torch.cat(batches)
    assert sorted(together["action"].tolist()) == list(range(20))
    assert torch.equal(together["twice"], 2 * together["action"])
    assert len(list(DataLoader(buffer.as_map(), batch_size=10))) == 2
    assert buffer.as_map()[3]["action"] == 3


@pytest.mark.parametrize(
    "options, workers",
    [
        ({"n_step": 3, "gamma": 0.5}, 0),
        ({"frame_stack": 2}, 2),
        ({"windows": {"action": (0, 2), "observation": (-1, 0)}}, 0),
    ],
)
def test_records_by_number_with_what_is_around_them(folder, options, workers):
    """As in the buffer's own batches; they were single steps."""
    buffer = rbdata.load(folder, batch_size=16, seed=5, **options)
    own = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    batches = list(DataLoader(buffer.as_map(), batch_size=16, **own))
    rows = torch.cat([batch["index"] for batch in batches])
    assert rows.tolist() == list(range(len(buffer)))
    assert (torch.cat(batches) == buffer.sample_at(rows)).all()
    one = buffer.as_map()[3]
    assert one.batch_size == () and (one == batches[0][3]).all()
    several = DataLoader(buffer.as_map(), batch_size=None, sampler=[[4, 2], [1]], collate_fn=lambda batch: batch)
    assert [batch["index"].tolist() for batch in several] == [[4, 2], [1]]


@pytest.mark.parametrize("options", [{}, {"frame_stack": 2}, {"n_step": 2}])
def test_numbers_of_records_are_those_of_a_sequence(folder, options):
    """From the end, as NumPy's integers, and with an end: the same for records as stored and those with others around them."""
    records: Any = rbdata.load(folder, batch_size=4, **options).as_map()
    assert len(list(records)) == len(records) == 67
    assert torch.equal(records[-1]["action"], records[66]["action"])
    assert records[np.int64(3)].batch_size == torch.Size([])
    for number in (67, -68):
        with pytest.raises(IndexError, match="there are 67"):
            records[number]


@pytest.mark.parametrize("options", [{}, {"n_step": 3}, {"output": "numpy"}])
def test_a_loader_of_single_records_is_told_what_to_write(folder, options):
    """They would be steps without what is around them."""
    with pytest.raises(UsageError, match="single records") as refused:
        next(iter(DataLoader(rbdata.load(folder, **options), batch_size=4)))  # type: ignore[arg-type]
    assert "as_map()" in str(refused.value.hint)


def test_records_by_number_have_no_goals(folder):
    buffer = rbdata.load(folder, batch_size=16, goals=rbdata.Goals(trajectory=1.0, current=0.0, random=0.0))
    with pytest.raises(UsageError, match="goals are drawn with the batches"):
        buffer.as_map()


def test_records_without_a_number():
    with pytest.raises(UsageError, match="no single number"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(20, ndim=2)).as_map()


def twice(batch):
    return batch.set("twice", batch["action"] * 2)


@pytest.mark.parametrize("sampler, by", [(RandomSampler, "DataLoader"), (SamplerWithoutReplacement, "loader")])
def test_every_iterator_of_a_loader_is_another_pass(folder, sampler, by):
    def passes():
        torch.manual_seed(0)
        dataset = TensorDictReplayBuffer(storage=folder, batch_size=8, sampler=sampler(), seed=5).as_iterable(3)
        options = {"num_workers": 2, "multiprocessing_context": "fork"}
        if by == "loader":
            loader = dataset.loader(**options)
        else:
            loader = DataLoader(dataset, batch_size=None, collate_fn=lambda batch: batch, **options)
        return [[tuple(batch["index"].tolist()) for batch in loader] for _ in range(2)]

    first = passes()
    assert len({batch for epoch in first for batch in epoch}) == 12
    assert passes() == first


@pytest.mark.parametrize("persistent, prefetch", [(False, None), (True, 2)])
def test_every_iterator_without_replacement_is_whole(folder, persistent, prefetch):
    sampler = SamplerWithoutReplacement()
    buffer = TensorDictReplayBuffer(storage=folder, batch_size=8, sampler=sampler, seed=5, prefetch=prefetch)
    options = {"multiprocessing_context": "fork", "persistent_workers": persistent}
    loader = buffer.as_iterable().loader(num_workers=2, **options)
    epochs = [torch.cat([batch["index"] for batch in loader]).tolist() for _ in range(2)]
    assert all(sorted(epoch) == list(range(67)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    for _ in loader:
        break  # which ends its workers, unless they are persistent
    assert sorted(torch.cat([batch["index"] for batch in loader]).tolist()) == list(range(67))


def test_a_loader_for_every_epoch(folder):
    buffer = TensorDictReplayBuffer(storage=folder, batch_size=8, sampler=SamplerWithoutReplacement(), seed=5)
    for _ in range(2):
        buffer.sample()
    options = {"num_workers": 1, "multiprocessing_context": "fork"}
    epochs = [
        torch.cat([batch["index"] for batch in buffer.as_iterable().loader(**options)]).tolist() for _ in range(3)
    ]
    assert [len(epoch) for epoch in epochs] == [51, 67, 67] and epochs[1] != epochs[2]


def test_a_loader_of_ones_own_over_batches():
    """With what the page says."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), sampler=SamplerWithoutReplacement(), batch_size=3)
    buffer.extend(TensorDict({"a": torch.arange(8), "n": {"b": torch.arange(8)}}, [8]))
    loader = DataLoader(buffer.as_iterable(), batch_size=None, collate_fn=lambda batch: batch)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [3, 3, 2]
    assert sorted(row for batch in batches for row in batch["n", "b"].tolist()) == list(range(8))


@pytest.mark.parametrize(
    "replacement, by, returned, persistent",
    [
        (True, "state", 1, False),
        (False, "folder", 4, True),
        (False, "state", None, False),
    ],
)
def test_a_run_resumed_inside_the_loop_over_a_loader_goes_on_there(
    folder, tmp_path, replacement, by, returned, persistent
):
    """The state counted the pass as finished: the rest of it was left out, without a word."""

    def make(workers=2):
        buffer = rbdata.load(folder, batch_size=8, seed=5, replacement=replacement)
        own = {"multiprocessing_context": "fork", "persistent_workers": persistent} if workers else {}
        batches = (4 if workers else 8) if replacement else None  # of each worker
        return buffer, buffer.as_iterable(batches).loader(num_workers=workers, **own)

    def numbers(loader):
        return [batch["index"].tolist() for batch in loader]

    _, whole = make(workers=0)
    epochs = [numbers(whole) for _ in range(4)]
    buffer, loader = make()
    numbers(loader)
    at = len(epochs[1]) if returned is None else returned  # None: after the last batch
    for number, _ in enumerate(loader, 1):
        if number == at and by == "state":
            state = pickle.loads(pickle.dumps(buffer.state_dict()))
        elif number == at:
            buffer.dumps(tmp_path / "checkpoint")
    resumed, loader = make()
    if by == "state":
        resumed.load_state_dict(state)
    else:
        resumed.loads(tmp_path / "checkpoint")
    if returned is not None:
        assert numbers(loader) == epochs[1][at:]
    assert numbers(loader) == epochs[2]
    for number, batch in enumerate(loader):  # and is resumed once more
        assert batch["index"].tolist() == epochs[3][number]
        if number == 2:
            again, last = make()
            again.load_state_dict(resumed.state_dict())
            assert numbers(last) == epochs[3][3:]


def test_an_iterator_that_was_left_is_not_gone_on_with(folder):
    """As in the run itself, where the next one is another pass."""

    def loader(buffer):
        return buffer.as_iterable().loader(num_workers=1, multiprocessing_context="fork")

    buffer, resumed = (rbdata.load(folder, batch_size=8, seed=5, replacement=False) for _ in range(2))
    for _ in loader(buffer):
        break
    resumed.load_state_dict(buffer.state_dict())
    assert [batch["index"].tolist() for batch in loader(resumed)] == [
        batch["index"].tolist() for batch in loader(buffer)
    ]


def test_persistent_workers_return_the_batches_of_others(folder):
    """With replacement they went on with the random numbers of the iterator before."""

    def epochs(persistent):
        buffer = rbdata.load(folder, batch_size=8, seed=5, prefetch=2)
        options = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": persistent}
        loader = buffer.as_iterable(3).loader(**options)
        return [[batch["index"].tolist() for batch in loader] for _ in range(2)]

    assert epochs(True) == epochs(False)
