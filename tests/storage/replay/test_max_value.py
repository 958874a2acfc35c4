"""The writer that keeps the highest values."""

from __future__ import annotations

import pytest
import torch
from rbdata.errors import SchemaError, UsageError
from rbdata.storage.replay import (
    Around,
    LazyTensorStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from replay_tools import rollout
from tensordict import TensorDict


def test_max_values_over_time():
    buffer = ReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter(), batch_size=2)
    batch = torch.stack([rollout([3], first=first) for first in (0, 100, 200)])
    batch["next", "reward"] = torch.tensor([1.0, 5.0, 3.0]).view(3, 1, 1).expand(3, 3, 1).clone()
    buffer.extend(batch)
    assert sorted(buffer["action"][:, 0].tolist()) == [100, 200]
    assert buffer.add(batch[0]) is None


def ranked(values, capacity=2, reduction="sum"):
    writer = TensorDictMaxValueWriter("score", reduction=reduction)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), writer=writer, batch_size=2)
    scores = torch.as_tensor(values)
    return buffer, TensorDict({"score": scores, "id": torch.arange(len(scores))}, [len(scores)])


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "values",
    [
        [5, 7, 6],
        [-1, -3, -2],
        [1.0, 1.0 + 1e-12, 1.0 + 2e-12],
        [float("inf"), 1.0, -float("inf"), 2.0],
        [True, False, True],
        [[3, 0], [3, 1], [3, 2]],
    ],
)
def test_ranks_are_compared(values, at_once, tmp_path):
    dtype = torch.float64 if isinstance(values[0], float) else None
    buffer, data = ranked(torch.tensor(values, dtype=dtype))
    if at_once:
        buffer.extend(data)
    else:
        for record in data:
            buffer.add(record)
    totals = [sum(value) if isinstance(value, list) else value for value in values]
    best = sorted(sorted(range(len(totals)), key=lambda record: -totals[record])[:2])
    assert sorted(buffer[:]["id"].tolist()) == best
    buffer.dumps(tmp_path / "checkpoint")
    other, _ = ranked(values)
    other.loads(tmp_path / "checkpoint")
    more = TensorDict({"score": data["score"] - 1 if data["score"].dtype != torch.bool else data["score"]}, [len(data)])
    more["id"] = torch.arange(10, 10 + len(data))
    assert torch.equal(buffer.extend(more.clone()), other.extend(more.clone()))
    assert torch.equal(buffer[:]["id"], other[:]["id"])


@pytest.mark.parametrize("reduction", ["sum", "max", "min", "mean", "median"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_reductions_of_ranks(reduction, dtype):
    scores = torch.randint(-50, 50, (40, 5), generator=torch.manual_seed(0))
    buffer, data = ranked(scores.to(dtype), 10, reduction)
    buffer.extend(data)
    values = getattr(torch, reduction)(scores.double(), 1)
    values = values if isinstance(values, torch.Tensor) else values.values
    kept = values[buffer[:]["id"]]
    assert torch.equal(kept.sort().values, values.sort().values[-10:])


@pytest.mark.parametrize("values", [[1.0, float("nan"), 2.0], [[1.0, float("nan")], [1.0, 2.0]]])
def test_ranks_without_an_order_are_refused(values):
    buffer, data = ranked(torch.tensor(values))
    with pytest.raises(SchemaError, match=r"score of record \d is NaN"):
        buffer.extend(data)
    assert not len(buffer)


def test_another_storage_or_writer_in_use():
    """The writer ranks the records that its storage has."""

    def records(numbers, ranks):
        return TensorDict({"a": torch.tensor(numbers), "rank": torch.tensor(ranks)}, [len(numbers)])

    writer = TensorDictMaxValueWriter(rank_key="rank")
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), writer=writer, batch_size=4)
    buffer.extend(records([0, 1, 2, 3, 4, 5], [0.0, 1, 2, 3, 4, 5]))
    buffer.set_storage(LazyTensorStorage(4))
    assert buffer.extend(records([50, 51], [100.0, 99])).tolist() == [0, 1] and buffer[:]["a"].tolist() == [50, 51]


@pytest.mark.parametrize(
    "options",
    [
        {"around": Around(n_step=3)},
        {"around": Around(frame_stack=2)},
        {"sampler": SliceSampler(slice_len=2)},
    ],
    ids=["n_step", "frame_stack", "slices"],
)
def test_rows_are_not_in_order_of_time(options):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), writer=TensorDictMaxValueWriter(), batch_size=2, **options
    )
    buffer.extend(rollout([3, 4]))
    with pytest.raises(UsageError, match="not in order of time"):
        buffer.sample()
