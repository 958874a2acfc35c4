"""Stamps of rows, and updates of records that are still there: as TorchRL's, compared with it."""

from __future__ import annotations

import pytest
import torch
import torchrl.data as torchrl
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import SchemaError, UnknownKeyError, UnsupportedError, UsageError
from rbdata.storage import replay
from tensordict import TensorDict

SIZE = 6


def make(of, ndim: int = 1):
    return of.TensorDictReplayBuffer(
        storage=of.LazyTensorStorage(SIZE, ndim=ndim),
        writer=of.TensorDictRoundRobinWriter(track_generations=True),
        batch_size=4,
    )


def data(count: int, value: float = 0.0) -> TensorDict:
    return TensorDict({"x": torch.full((count, 2), value), "n": {"v": torch.full((count,), 5)}}, [count])


calls = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.integers(1, 2 * SIZE)),
        st.just(("empty", 0)),
        st.just(("keep", 0)),
        st.tuples(st.just("write_at"), st.integers(0, 3)),
        st.tuples(
            st.just("update"), st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(3, 8)), min_size=1, max_size=5)
        ),
    ),
    min_size=3,
    max_size=9,
)


@settings(max_examples=25, deadline=None)
@given(calls, st.booleans())
def test_like_torchrl(calls, require_newer):
    """Any sequence of writes and updates leaves the same records and stamps."""
    pair = [make(replay), make(torchrl)]
    for buffer in pair:
        buffer.extend(data(4))
    kept = [buffer.writer.generations_of(torch.arange(SIZE)) for buffer in pair]
    for number, (name, what) in enumerate(calls):
        results = []
        for side, buffer in enumerate(pair):
            if name == "extend":
                buffer.extend(data(what, float(number)))
            elif name == "empty":
                buffer.empty()
                buffer.extend(data(SIZE))
            elif name == "keep":
                kept[side] = buffer.writer.generations_of(torch.arange(SIZE))
            elif name == "write_at":
                buffer.writer.write_at(torch.tensor([what]), data(1, 50.0 + number))
            else:
                index = torch.tensor([row for row, _ in what])
                result = buffer.update_if_present(
                    index=index,
                    generation=kept[side][index],
                    patch={"x": torch.full((len(what), 2), 100.0 + number)},
                    version_key=("n", "v"),
                    version=torch.tensor([version for _, version in what]),
                    require_newer=require_newer,
                )
                results.append([result.updated.tolist(), result.version_rejected.tolist(), result.stale_count])
        assert results[:1] == results[1:]
        stamps = [buffer.writer.generations_of(torch.arange(-1, SIZE + 1)).tolist() for buffer in pair]
        assert stamps[0] == stamps[1]
        assert torch.equal(pair[0]["x"], pair[1]["x"])
        assert torch.equal(pair[0]["n", "v"], pair[1]["n", "v"])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_handles_of_a_batch(prefetch):
    buffer = replay.TensorDictReplayBuffer(
        storage=replay.LazyTensorStorage(SIZE),
        writer=replay.TensorDictRoundRobinWriter(track_generations=True),
        batch_size=3,
        prefetch=prefetch,
    )
    buffer.extend(data(SIZE))
    for _ in range(4):
        batch, info = buffer.sample(return_info=True)
        assert torch.equal(info["index_generation"], batch["index_generation"])
        buffer.extend(data(1))
        gone = buffer.writer.generations_of(batch["index"]) != batch["index_generation"]
        result = buffer.update_if_present(
            index=batch["index"], generation=batch["index_generation"], patch={"x": torch.ones(3, 2)}
        )
        assert torch.equal(result.updated, ~gone)
    plain = replay.TensorDictReplayBuffer(storage=replay.LazyTensorStorage(SIZE), batch_size=3)
    plain.extend(data(SIZE))
    assert "index_generation" not in plain.sample()


def test_more_dimensions():
    buffer = make(replay, ndim=2)
    index = buffer.extend(TensorDict({"x": torch.zeros(2, 3)}, [2, 3]))
    generation = buffer.writer.generations_of(index)
    result = buffer.update_if_present(index=index, generation=generation, patch={"x": torch.ones(2, 3)})
    assert result.updated_count == 6
    assert bool((buffer["x"] == 1).all())


def test_what_is_refused():
    buffer = make(replay)
    index = buffer.extend(data(4))
    handle = {"index": index, "generation": buffer.writer.generations_of(index)}
    before = buffer[:].clone()
    x = torch.ones(4, 2)
    for error, arguments in (
        (UnknownKeyError, {"patch": {"y": x}}),
        (SchemaError, {"patch": {"x": x, ("n", "v"): torch.ones(4)}}),
        (SchemaError, {"patch": {"x": torch.ones(4, 3)}}),
        (UsageError, {"patch": {"x": x}, "version": 3}),
        (UsageError, {"patch": {"x": x}, "version": 3, "version_key": "n.v"}),
        (UsageError, {"patch": {"x": x}, "version": 3.0, "version_key": "x"}),
        (UsageError, {"patch": {("n", "v"): torch.ones(4).long()}, "version": 3, "version_key": ("n", "v")}),
        (UsageError, {"patch": {"x": x}, "version": torch.tensor([1, 2]), "version_key": ("n", "v")}),
    ):
        with pytest.raises(error):
            buffer.update_if_present(**handle, **arguments)
    assert bool((buffer[:] == before).all())
    plain = replay.ReplayBuffer(storage=replay.ListStorage(4))
    with pytest.raises(UnsupportedError):
        plain.update_if_present(index=[0], generation=[0], patch={})


def test_other_shapes_and_indices_are_refused():
    buffer = make(replay)
    buffer.extend(data(6))
    index = torch.arange(1, 4)
    generation = buffer.writer.generations_of(index)
    with pytest.raises(SchemaError):  # [2, 3] for three records of [2]
        buffer.update_if_present(index=index, generation=generation, patch={"x": torch.arange(6.0).view(2, 3)})
    for wrong in (torch.tensor([True, False, True]), torch.tensor([1.7, 2, 3])):
        with pytest.raises(UsageError, match="row numbers"):
            buffer.update_if_present(index=wrong, generation=generation, patch={"x": torch.ones(3, 2)})
    assert not buffer[:]["x"].any()
    assert buffer.update_if_present(index=[], generation=[], patch={"x": torch.ones(0, 2)}).updated_count == 0
