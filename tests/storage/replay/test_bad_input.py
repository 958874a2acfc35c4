"""What the runtime refuses: a typed error that says what was given and what was expected, and nothing changed."""

from __future__ import annotations

import copy

import pytest
import rbdata
import torch
from rbdata import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from rbdata.errors import ReadOnlyError, SamplingError, SchemaError, UnknownKeyError, UsageError
from replay_tools import equal, rollout
from storage_tools import make_episodes, write_dataset
from tensordict import TensorDict


def made(**options) -> TensorDictReplayBuffer:
    """Twelve records in episodes of 5 and 7."""
    buffer = TensorDictReplayBuffer(**{"storage": LazyTensorStorage(20), "batch_size": 4, "seed": 0, **options})
    buffer.extend(rollout([5, 7]))
    return buffer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("bad"), make_episodes([6, 8]))


@pytest.mark.parametrize("key", ["nonsense", ("next", "nonsense")], ids=str)
@pytest.mark.parametrize("kind", ["memory", "list", "dataset", "transformed"])
def test_columns_that_are_not_there(folder, kind, key):
    if kind in ("dataset", "transformed"):
        buffer = rbdata.load(folder, transform=(lambda batch: batch) if kind == "transformed" else None)
    else:
        buffer = made(storage=ListStorage(20) if kind == "list" else LazyTensorStorage(20))
    with pytest.raises(UnknownKeyError, match="nonsense") as caught:
        buffer[key]
    assert isinstance(caught.value, KeyError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(2, 4), torch.arange(3)], ids=str)
def test_more_records_than_places(rows):
    buffer = made()
    if isinstance(rows, slice) and not rows.start:
        buffer.empty()
    before = len(buffer)
    with pytest.raises(SchemaError, match="do not fit into the places given"):
        buffer[rows] = rollout([5])
    assert len(buffer) == before


def test_columns_that_cannot_be_written(folder):
    buffer = made()
    with pytest.raises(UnknownKeyError, match="no nonsense"):
        buffer["nonsense"] = torch.zeros(12)
    for value in (torch.zeros(5, dtype=torch.int64), "text"):
        with pytest.raises(SchemaError, match="action"):
            buffer["action"] = value
    with pytest.raises(UsageError, match="no columns"):
        made(storage=ListStorage(20))["action"] = torch.zeros(12)
    with pytest.raises(ReadOnlyError):
        rbdata.load(folder)["action"] = torch.zeros(14)
    buffer["next", "reward"] = torch.ones(12, 1)
    assert bool((buffer["next", "reward"] == 1).all())


@pytest.mark.parametrize(
    "index,priority,words",
    [
        ([0], "high", "priorities are numbers"),
        ([0], None, "priorities are numbers"),
        ([0.5], [1.0], "rows are whole numbers"),
        ([True], [1.0], "rows are whole numbers"),
        ("first", [1.0], "rows are whole numbers"),
    ],
    ids=str,
)
def test_priorities_that_are_none(index, priority, words):
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1, beta=1, storage=LazyTensorStorage(20), batch_size=4)
    buffer.extend(rollout([5, 7]))
    with pytest.raises(SamplingError, match=words):
        buffer.update_priority(index, priority)


@pytest.mark.parametrize(
    "options",
    [{"storage": 3}, {"sampler": 3}, {"sampler": LazyTensorStorage(3)}, {"writer": "round"}, {"writer": SliceSampler}],
    ids=str,
)
def test_parts_that_are_none(options):
    with pytest.raises((UsageError, TypeError)) as caught:
        ReplayBuffer(**options)
    if options.get("writer") is not SliceSampler:  # which cannot be made without arguments
        assert isinstance(caught.value, UsageError) and "is wanted, not a" in str(caught.value)


@pytest.mark.parametrize("part", [None, 3, SliceSampler])
def test_parts_that_are_none_later(part):
    buffer = made()
    before = buffer.sampler, buffer.storage, buffer.writer
    for change in (buffer.set_sampler, buffer.set_storage, buffer.set_writer):
        with pytest.raises(UsageError, match="is wanted, not a"):
            change(part)
    assert before == (buffer.sampler, buffer.storage, buffer.writer)
    buffer.sample(2)


@pytest.mark.parametrize("seed", [-1, "lucky", 1.5])
def test_seeds_that_are_none(folder, seed):
    buffers = [made(), ReplayBufferEnsemble(made(), made())]
    for make in (
        lambda: rbdata.load(folder, seed=seed),
        lambda: ReplayBufferEnsemble(made(), seed=seed),
        *(lambda buffer=buffer: buffer.set_seed(seed) for buffer in buffers),
    ):
        with pytest.raises(UsageError, match="seed must be a whole number"):
            make()


@pytest.mark.parametrize("size", [0, -3, 2.5, "many", True])
def test_batch_sizes_that_are_none(size):
    ensemble = ReplayBufferEnsemble(made(), made())
    for sample in (made().sample, ensemble.sample):
        with pytest.raises(SamplingError, match="batch_size must be a whole number"):
            sample(size)
    with pytest.raises(SamplingError, match="batch_size must be a whole number"):
        ReplayBufferEnsemble(made(), batch_size=size)
    with pytest.raises(UsageError, match="not int"):
        ReplayBufferEnsemble(made(), 3)


@pytest.mark.parametrize("data", [[], "text", {"x": None}], ids=str)
def test_data_that_are_none(data):
    with pytest.raises(SchemaError):
        ReplayBuffer(storage=LazyTensorStorage(4)).extend(data)
    with pytest.raises(SchemaError):
        made().extend(data)


@pytest.mark.parametrize("kind", ["sampler", "writer", "keys", "size", "list"])
def test_states_of_other_buffers_change_nothing(tmp_path, kind):
    """The parts that fit are put back as they were when another does not."""
    passes = {"sampler": SamplerWithoutReplacement()}
    source = {
        "sampler": lambda: made(),
        "writer": lambda: made(writer=rbdata.TensorDictMaxValueWriter(), **passes),
        "keys": lambda: made(**passes),
        "size": lambda: made(**passes),
        "list": lambda: made(storage=ListStorage(20), **passes),
    }[kind]()
    source.sample()
    target = TensorDictReplayBuffer(
        storage=LazyTensorStorage(6 if kind == "size" else 20),
        sampler=SamplerWithoutReplacement(),
        batch_size=4,
        seed=3,
    )
    data = rollout([6])
    target.extend(data.exclude("action") if kind == "keys" else data)
    target.sample()
    before, state = target[:].clone(), copy.deepcopy(target.state_dict())
    source.dumps(tmp_path / "checkpoint")
    for load in (lambda: target.load_state_dict(source.state_dict()), lambda: target.loads(tmp_path / "checkpoint")):
        with pytest.raises((UsageError, SchemaError)):
            load()
        assert equal(target[:], before)
        now = target.state_dict()
        assert now["_sampler"] == state["_sampler"] and now["_writer"] == state["_writer"]
        target.sample()
        target.load_state_dict(state)


@pytest.mark.parametrize("shape", [(3, 4), (5,)])
def test_records_of_another_shape_are_named(shape):
    buffer = ReplayBuffer(storage=LazyTensorStorage(20, ndim=2), batch_size=2)
    buffer.extend(TensorDict({"a": torch.arange(12.0).view(3, 4)}, [3, 4]))
    with pytest.raises(SchemaError, match="batch size"):
        buffer[0] = TensorDict({"a": torch.zeros(shape)}, shape)
    assert buffer[:]["a"].tolist() == torch.arange(12.0).view(3, 4).tolist()
