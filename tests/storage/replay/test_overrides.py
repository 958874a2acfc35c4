# mypy: disable-error-code="name-defined,misc"
"""Classes of users, written for TorchRL: what they override acts as there, or the buffer refuses them."""

from __future__ import annotations

import copy
import functools
import pickle
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import rbdata
import torch
import torchrl.data as torchrl
from rbdata.errors import SamplingError, UsageError
from replay_tools import rollout
from storage_tools import make_episodes, write_dataset
from torchrl.data.replay_buffers import samplers as their_samplers
from torchrl.data.replay_buffers import writers as their_writers

try:
    torchrl.PrioritizedSampler(4, 1.0, 1.0)
    PRIORITIES_THERE = True
except RuntimeError:  # its compiled extension is that of another torch
    PRIORITIES_THERE = False

OURS = rbdata
THEIRS = SimpleNamespace(**{**vars(torchrl), "Sampler": their_samplers.Sampler, "Writer": their_writers.Writer})
BOTH = pytest.mark.parametrize("lib", [OURS, THEIRS], ids=["rbdata", "torchrl"])


def filled(lib, sampler=None, size=20, storage=None, kind="TensorDictReplayBuffer", **options):
    storage = lib.LazyTensorStorage(size) if storage is None else storage
    buffer = getattr(lib, kind)(storage=storage, sampler=sampler or lib.RandomSampler(), batch_size=4, **options)
    buffer.extend(rollout([7, 5]))
    return buffer


def skip_without_priorities(lib):
    if lib is THEIRS and not PRIORITIES_THERE:
        pytest.skip("TorchRL's priorities do not work with this torch")


def drawn(buffer, batches=3):
    return [buffer.sample()["action"].reshape(-1).tolist() for _ in range(batches)]


# -- samplers ----------------------------------------------------------------------------------------------------------


def walking(lib):
    """Counts its own calls: what it draws depends on nothing but how often it was called."""

    class Walking(lib.RandomSampler):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def sample(self, storage, batch_size):
            self.calls += 1
            rows = (torch.arange(batch_size) + 4 * (self.calls - 1)) % len(storage)
            return rows, {"call": torch.full((batch_size,), self.calls), "number": self.calls}

    return Walking()


@BOTH
def test_sample_of_a_subclass(lib):
    sampler = walking(lib)
    buffer = filled(lib, sampler)
    assert drawn(buffer) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] and sampler.calls == 3
    batch, info = buffer.sample(return_info=True)
    assert batch["call"].tolist() == batch["number"].tolist() == [4] * 4 and info["number"] == 4
    assert buffer.can_sample() and sampler.calls == 4
    buffer.extend(rollout([3]))
    assert buffer.sample()["call"].tolist() == [5] * 4
    plain = filled(lib, walking(lib), kind="ReplayBuffer")
    assert drawn(plain, 1) == [[0, 1, 2, 3]] and "call" not in plain.sample().keys()  # noqa: SIM118


def shifted(lib, base, *arguments, **options):
    class Shifted(getattr(lib, base)):
        def sample(self, storage, batch_size):
            index, info = super().sample(storage, batch_size)
            index = index[0] if isinstance(index, tuple) else index
            return (index * 0 + torch.arange(len(index))) % 3, info

    return Shifted(*arguments, **options)


@BOTH
@pytest.mark.parametrize(
    ("base", "arguments", "options"),
    [
        ("RandomSampler", (), {}),
        ("SamplerWithoutReplacement", (), {}),
        ("PrioritizedSampler", (20, 0.7, 0.5), {}),
        ("ConsumingSampler", (9,), {}),
        ("SliceSampler", (), {"slice_len": 2, "traj_key": "traj"}),
        ("SliceSamplerWithoutReplacement", (), {"slice_len": 2, "traj_key": "traj"}),
        ("PrioritizedSliceSampler", (20, 0.7, 0.5), {"slice_len": 2, "traj_key": "traj"}),
    ],
)
def test_super_reaches_the_draw_of_every_sampler(lib, base, arguments, options):
    if "Prioritized" in base:
        skip_without_priorities(lib)
    buffer = filled(lib, shifted(lib, base, *arguments, **options))
    batch = buffer.sample()
    assert batch["action"].reshape(-1).tolist() == [0, 1, 2, 0]
    if "Prioritized" in base:
        assert batch["priority_weight"].numel() == 4
    if "Slice" in base:
        assert batch["next", "truncated"].reshape(-1).tolist() == [False, True] * 2


@pytest.mark.parametrize("kind", ["SliceSampler", "SliceSamplerWithoutReplacement", "PrioritizedSliceSampler"])
@pytest.mark.parametrize("options", [{}, {"n_step": 3}, {"frame_stack": 2}, {"n_step": 2, "frame_stack": 2}], ids=str)
def test_slices_of_a_subclass_are_those_of_its_base(kind, options):
    """With n-step returns the flags are those of the last step looked at, and of the end of the slice."""

    class Own(getattr(rbdata, kind)):
        def sample(self, storage, batch_size):
            index, info = super().sample(storage, batch_size)
            return index, dict(info)

    batches = []
    for sampler in (getattr(rbdata, kind), Own):
        arguments = (20, 0.7, 0.5) if kind.startswith("Prioritized") else ()
        own = sampler(*arguments, slice_len=3, traj_key="traj")
        buffer = rbdata.TensorDictReplayBuffer(
            storage=rbdata.LazyTensorStorage(20), sampler=own, batch_size=9, seed=0, traj_key="traj", **options
        )
        buffer.extend(rollout([7, 5, 4]))
        batches.append(torch.cat([buffer.sample() for _ in range(4)]))
    assert batches[0]["next", "terminated"].any()
    assert (batches[0] == batches[1]).all()


@pytest.mark.parametrize("shape", [[6], [6, 1], [6, 2]], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8], ids=str)
def test_flags_of_any_shape_do_not_hide_the_end_of_a_window(shape, dtype):
    class Own(rbdata.RandomSampler):
        def sample(self, storage, batch_size):
            cut = torch.zeros(shape, dtype=dtype)
            cut[3] = 1
            return torch.arange(6), {("next", "terminated"): torch.zeros_like(cut), ("next", "truncated"): cut}

    buffer = rbdata.TensorDictReplayBuffer(
        storage=rbdata.LazyTensorStorage(20), sampler=Own(), batch_size=6, n_step=3, end_key=("next", "done")
    )
    buffer.extend(rollout([3, 5]))
    if shape == [6, 2]:
        with pytest.raises(SamplingError, match="shape"):
            buffer.sample()
        return
    after = buffer.sample()["next"]
    assert after["terminated"].tolist() == after["done"].tolist() == [[True], [True], [True], [False], [False], [True]]
    assert after["truncated"].tolist() == [[False], [False], [False], [True], [False], [False]]


@pytest.mark.parametrize("order", ["sample, draw", "draw, sample"])
def test_both_names_in_a_chain_of_classes(order):
    calls = []

    class A(rbdata.RandomSampler):
        if order.startswith("sample"):

            def sample(self, storage, batch_size):
                calls.append("A")
                return super().sample(storage, batch_size)
        else:

            def draw(self, storage, batch_size, generator):
                calls.append("A")
                return super().draw(storage, batch_size, generator)

    class B(A):
        if order.startswith("sample"):

            def draw(self, storage, batch_size, generator):
                calls.append("B")
                return super().draw(storage, batch_size, generator)
        else:

            def sample(self, storage, batch_size):
                calls.append("B")
                return super().sample(storage, batch_size)

    class C(B):
        def sample(self, storage, batch_size):
            calls.append("C")
            return super().sample(storage, batch_size)

    class D(C):
        pass

    expected = drawn(filled(rbdata, seed=3))
    assert drawn(filled(rbdata, D(), seed=3)) == expected
    assert calls == ["C", "B", "A"] * 3


@BOTH
def test_a_mixin(lib):
    class Reversed:
        def sample(self, storage, batch_size):
            index, info = super().sample(storage, batch_size)
            return index.flip(0), {**info, "mixed": torch.ones(batch_size)}

    class Both(Reversed, lib.SamplerWithoutReplacement):
        pass

    buffer = filled(lib, Both(shuffle=False))
    batch = buffer.sample()
    assert batch["action"].tolist() == [3, 2, 1, 0] and batch["mixed"].tolist() == [1] * 4
    assert [len(one) for one in buffer] == [4, 4]


@BOTH
def test_set_on_the_sampler_itself(lib):
    buffer = filled(lib)
    buffer.sample()
    before = buffer.sampler.sample
    buffer.sampler.sample = lambda storage, batch_size: (before(storage, batch_size)[0] * 0 + 5, {})
    assert drawn(buffer, 2) == [[5] * 4] * 2
    del buffer.sampler.sample
    buffer.sampler.sample = functools.partial(lambda row, storage, batch_size: ([row] * batch_size, {}), 2)
    assert drawn(buffer, 2) == [[2] * 4] * 2


@BOTH
def test_set_on_the_class(lib):
    class Own(lib.RandomSampler):
        pass

    buffer = filled(lib, Own())
    Own.sample = lambda self, storage, batch_size: (np.full(batch_size, 3), {})
    assert drawn(buffer, 2) == [[3] * 4] * 2
    original = lib.RandomSampler.sample

    def first(self, storage, batch_size):
        return original(self, storage, batch_size)[0] * 0, {}

    plain = filled(lib)
    with patch.object(lib.RandomSampler, "sample", first):
        assert drawn(plain, 2) == [[0] * 4] * 2
    assert drawn(plain, 3) != [[0] * 4] * 3


@BOTH
@pytest.mark.parametrize("index", ["tensor", "array", "int32", "negative"])
def test_kinds_of_an_index(lib, index):
    class Own(lib.RandomSampler):
        def sample(self, storage, batch_size):
            rows = torch.tensor([3, 1, 11, 0]) - (len(storage) if index == "negative" else 0)
            made = {"array": rows.numpy(), "int32": rows.int()}
            return made.get(index, rows), {}

    assert drawn(filled(lib, Own()), 1) == [[3, 1, 11, 0]]


@BOTH
def test_a_tuple_for_a_storage_of_two_dimensions(lib):
    class Own(lib.RandomSampler):
        def sample(self, storage, batch_size):
            return (torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0, 0, 1])), {"extra": torch.arange(4)}

    buffer = lib.TensorDictReplayBuffer(
        storage=lib.LazyTensorStorage(12, ndim=2), sampler=Own(), batch_size=4, dim_extend=0
    )
    buffer.extend(rollout([7, 5]).reshape(6, 2))
    batch = buffer.sample()
    assert batch["action"].tolist() == [1, 2, 4, 5] and batch["extra"].tolist() == [0, 1, 2, 3]
    assert batch["index"].tolist() == [[0, 1], [1, 0], [2, 0], [2, 1]]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (torch.tensor([0, 1]), "must return"),
        ((torch.tensor([0, 1]), None), "must return"),
        ((torch.tensor([0.0, 1.0]), {}), "whole numbers"),
        ((torch.tensor([True, False]), {}), "whole numbers"),
        ((slice(0, 3), {}), "whole numbers"),
        ((torch.tensor([0, 12]), {}), "not among"),
        ((torch.tensor([-13, 0]), {}), "not among"),
        ((torch.zeros(2, 2, dtype=torch.int64), {}), "has shape"),
        ((3, {}), "has shape"),
        (((torch.tensor([0]), torch.tensor([0])), {}), "has shape"),
        ((torch.tensor([0, 1]), {"x": torch.zeros(3)}), "has shape"),
        ((torch.tensor([0, 1]), {"x": "text"}), "not a tensor"),
    ],
    ids=str,
)
def test_what_sample_may_not_return(found, message):
    class Own(rbdata.RandomSampler):
        def sample(self, storage, batch_size):
            return found

    with pytest.raises(SamplingError, match=message):
        filled(rbdata, Own()).sample()


@BOTH
def test_a_sampler_from_the_base_class(lib):
    """With all of TorchRL's abstract methods; told of writes as there, and iteration ends where it says."""

    class Once(lib.Sampler):
        def __init__(self):
            self.told, self._ran_out = [], False

        @property
        def ran_out(self):
            return self._ran_out

        @ran_out.setter
        def ran_out(self, value):
            self._ran_out = value

        def sample(self, storage, batch_size):
            self._ran_out = True
            return torch.arange(batch_size), {}

        def add(self, index):
            self.told.append(("add", index))

        def extend(self, index):
            self.told.append(("extend", index.tolist()))

        def mark_update(self, index, *, storage=None):
            self.told.append(("mark", storage is not None))

        def update_priority(self, index, priority, *, storage=None):
            self.told.append(("priority", index.tolist(), priority.tolist()))

        def _empty(self):
            self.told.append("empty")

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

        def dumps(self, path):
            pass

        def loads(self, path):
            pass

    sampler = Once()
    buffer = filled(lib, sampler, kind="ReplayBuffer")
    buffer.add(rollout([1])[0])
    assert sampler.told == [("mark", True), ("extend", list(range(12))), ("mark", True), ("add", 12)]
    assert [len(list(buffer)) for _ in range(2)] == [1, 1]
    del sampler.told[:]
    buffer.update_priority(torch.tensor([1, 2]), [0.5, 0.25])
    buffer.empty()
    assert sampler.told == [("priority", [1, 2], [0.5, 0.25]), "empty"]


@BOTH
def test_priorities_of_a_subclass(lib):
    skip_without_priorities(lib)

    class Clipped(lib.PrioritizedSampler):
        def update_priority(self, index, priority, *, storage=None):
            super().update_priority(index, torch.as_tensor(priority).clamp(max=2.0), storage=storage)

        def extend(self, index):
            super().extend(index)
            self.update_priority(index, torch.zeros(index.numel()) + 1e-3)

    buffer = filled(lib, Clipped(20, 1.0, 1.0))
    buffer.update_priority(torch.tensor([3]), torch.tensor([1e9]))
    assert buffer.sampler.default_priority == 2
    counts = torch.cat([buffer.sample()["index"] for _ in range(100)]).bincount(minlength=12)
    assert counts[3] > 300 and counts.sum() == 400


def test_two_dimensions_and_an_extend_of_ones_own():
    seen = []

    class Own(rbdata.PrioritizedSampler):
        def extend(self, index):
            seen.append(index)
            super().extend(index)

    buffer = rbdata.TensorDictReplayBuffer(
        storage=rbdata.LazyTensorStorage(12, ndim=2), sampler=Own(12, 1.0, 1.0), batch_size=64, dim_extend=0
    )
    buffer.extend(rollout([7, 5]).reshape(6, 2))
    assert seen[0].tolist() == [[time, env] for time in range(6) for env in range(2)]
    assert set(buffer.sample()["action"].tolist()) <= set(range(12))


def test_no_draw_of_a_users_sampler_is_made_in_vain():
    """Nothing is drawn before it is asked for: a write, another batch size and a question change nothing."""
    sampler = walking(rbdata)
    buffer = filled(rbdata, sampler)
    for number in range(1, 9):
        assert buffer.sample(number % 3 + 1)["call"].tolist() == [number] * (number % 3 + 1)
        buffer.can_sample()
        buffer.extend(rollout([1]))
    with filled(rbdata, walking(rbdata), prefetch=2) as ahead:
        assert [int(ahead.sample()["call"][0]) for _ in range(6)] == [1, 2, 3, 4, 5, 6]


def test_over_a_dataset(tmp_path):
    folder = write_dataset(tmp_path, make_episodes([10, 7]))

    class Last(rbdata.RandomSampler):
        def sample(self, storage, batch_size):
            return torch.arange(len(storage) - batch_size, len(storage)), {}

    for options in ({}, {"frame_stack": 2}, {"n_step": 2}):
        batch = rbdata.load(folder, batch_size=4, sampler=Last(), **options).sample()
        assert batch["index"].tolist() == [13, 14, 15, 16]


# -- storages ----------------------------------------------------------------------------------------------------------


def storage_of(lib, kind, tmp_path):
    """Doubles rewards when records are read, and counts the calls."""

    class Own(getattr(lib, kind)):
        gets, items, sets = 0, 0, 0

        def get(self, index):
            type(self).gets += 1
            records = super().get(index)
            if isinstance(records, list):
                return [one.clone().set(("next", "reward"), one["next", "reward"] * 2) for one in records]
            return records.clone().set(("next", "reward"), records["next", "reward"] * 2)

        def __getitem__(self, index):
            type(self).items += 1
            return super().__getitem__(index)

        def __setitem__(self, index, value):
            type(self).sets += 1
            super().__setitem__(index, value)

    return Own(20, **({"scratch_dir": tmp_path / "files"} if "Memmap" in kind else {}))


@BOTH
@pytest.mark.parametrize("kind", ["LazyTensorStorage", "LazyMemmapStorage", "ListStorage"])
def test_get_of_a_storage(lib, kind, tmp_path):
    buffer = filled(lib, storage=storage_of(lib, kind, tmp_path), **({"kind": "ReplayBuffer"} if lib is THEIRS else {}))
    storage = buffer.storage
    data = rollout([7, 5])
    for _ in range(3):
        batch = buffer.sample()
        assert torch.equal(batch["next", "reward"], 2 * data["next", "reward"][batch["action"]])
    assert type(storage).gets == 3
    assert torch.equal(buffer[:]["next", "reward"], 2 * data["next", "reward"])
    assert type(storage).items >= 1
    buffer[0] = buffer[1]
    assert type(storage).sets == 1 and buffer[0]["action"] == 1


def test_get_of_a_storage_set_later_and_read_by_slices(tmp_path):
    for kind in ("LazyTensorStorage", "LazyMemmapStorage"):
        buffer = filled(rbdata, storage=getattr(rbdata, kind)(20))
        buffer.sample()
        before = buffer.storage.get
        buffer.storage.get = lambda index, before=before: (
            before(index).clone().set("action", before(index)["action"] + 100)
        )
        assert min(map(min, drawn(buffer))) >= 100 and buffer[:]["action"].min() == 100

    class Whole(rbdata.LazyTensorStorage):
        """One trajectory, whatever is stored."""

        def get(self, index):
            records = super().get(index).clone()
            return records.set(("next", "done"), torch.zeros_like(records["next", "done"]))

    sampler = rbdata.SliceSampler(slice_len=12, end_key=("next", "done"))
    buffer = filled(rbdata, sampler, storage=Whole(20))
    assert buffer.sample(12)["action"].tolist() == list(range(12))


def test_get_and_windows():
    class Own(rbdata.LazyTensorStorage):
        def get(self, index):
            return super().get(index)

    with pytest.raises(UsageError, match="your own"):
        filled(rbdata, storage=Own(20), n_step=2).sample()


@BOTH
def test_len_and_set_of_a_storage(lib):
    class Half(lib.LazyTensorStorage):
        def __len__(self):
            return super().__len__() // 2

        def set(self, cursor, data, *, set_cursor=True):
            super().set(cursor, data.clone().set("action", data["action"] + 50), set_cursor=set_cursor)

    buffer = filled(lib, storage=Half(20))
    assert len(buffer) == 6
    assert {row for batch in drawn(buffer, 30) for row in batch} == set(range(50, 56))


@BOTH
def test_empty_of_parts(lib):
    skip_without_priorities(lib)
    told = []

    class OwnStorage(lib.LazyTensorStorage):
        def _empty(self):
            told.append("storage")
            super()._empty()

    class OwnSampler(lib.PrioritizedSampler):
        def _empty(self):
            told.append("sampler")
            super()._empty()

    class OwnWriter(lib.TensorDictRoundRobinWriter):
        def _empty(self, empty_write_count=True):
            told.append(("writer", empty_write_count))
            super()._empty(empty_write_count)

        def extend(self, data):
            told.append("extend")
            return super().extend(data)

    buffer = filled(lib, OwnSampler(20, 1.0, 1.0), storage=OwnStorage(20), writer=OwnWriter())
    buffer.empty(empty_write_count=False)
    assert sorted(told, key=str) == [("writer", False), "extend", "sampler", "storage"]
    assert len(buffer) == 0 and buffer.write_count == 12
    buffer.extend(rollout([3]))
    assert len(buffer) == 3 and set(drawn(buffer, 1)[0]) <= {0, 1, 2}


# -- buffers, and what is refused --------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("kind", ["ReplayBuffer", "TensorDictReplayBuffer"])
def test_methods_of_a_buffer(lib, kind):
    class Own(getattr(lib, kind)):
        def _sample(self, batch_size):
            data, info = super()._sample(batch_size)
            data["action"] = data["action"] + 100
            info["own"] = torch.ones(batch_size)
            return data, info

        def sample(self, *arguments, **options):
            found = super().sample(*arguments, **options)
            (found[0] if isinstance(found, tuple) else found).set("seen", torch.ones(4))
            return found

        def extend(self, data, **options):
            return super().extend(data[:6], **options)

    buffer = Own(storage=lib.LazyTensorStorage(20), batch_size=4)
    assert len(buffer.extend(rollout([12]))) == len(buffer) == 6
    batch, info = buffer.sample(return_info=True)
    assert batch["action"].min() >= 100 and batch["seen"].sum() == 4 and info["own"].sum() == 4
    assert ("own" in batch.keys()) is (kind == "TensorDictReplayBuffer")  # noqa: SIM118
    assert next(iter(buffer))["seen"].sum() == 4


def refused():
    class ListRecords(rbdata.ListStorage):
        def _get_item(self, index):
            return 0

    class Ranks(rbdata.TensorDictMaxValueWriter):
        def get_insert_index(self, data):
            return 0

    class Index(rbdata.SliceSampler):
        def _get_index(self, *arguments, **options):
            return 0

    class Mixed:
        def _extend(self, data, **options):
            return 0

    class Buffer(Mixed, rbdata.TensorDictReplayBuffer):
        pass

    yield "_get_item", "get", lambda: rbdata.ReplayBuffer(storage=ListRecords(10))
    yield "get_insert_index", "add", lambda: rbdata.ReplayBuffer(storage=rbdata.LazyTensorStorage(10), writer=Ranks())
    yield "_get_index", "sample", lambda: rbdata.ReplayBuffer(sampler=Index(slice_len=2), batch_size=4)
    yield "_extend", "extend", lambda: Buffer(storage=rbdata.LazyTensorStorage(10))
    yield "_get_index", "sample", lambda: filled(rbdata).set_sampler(Index(slice_len=2))


@pytest.mark.parametrize(
    ("name", "instead", "make"), list(refused()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_what_is_never_called_is_refused(name, instead, make):
    with pytest.raises(UsageError, match=f"{name}.. would never be called") as caught:
        make()
    assert instead in caught.value.hint


def test_a_storage_that_lacks_what_is_called_is_refused():
    class Records(rbdata.Storage):
        def __init__(self, max_size):
            super().__init__(max_size)
            self.records = {}

        def __len__(self):
            return len(self.records)

        def get(self, index):
            return [self.records[row] for row in torch.as_tensor(index).tolist()]

        def set(self, cursor, data, *, set_cursor=True):
            self.records.update(zip(range(*cursor.indices(self.max_size)), data))

    with pytest.raises(UsageError, match="Records lacks filled, version, newest, seek") as caught:
        rbdata.ReplayBuffer(storage=Records(8))
    assert "ListStorage" in caught.value.hint
    with pytest.raises(UsageError, match="Records lacks"):
        filled(rbdata).set_storage(Records(8))

    class Complete(Records):
        newest, version = -1, 0
        filled = property(lambda self: len(self.records))

        def set(self, cursor, data, *, set_cursor=True):
            super().set(cursor, data, set_cursor=set_cursor)
            self.version += 1
            self.newest = cursor.stop - 1

        def seek(self, row):
            self.newest = (row - 1) % self.capacity

    buffer = rbdata.ReplayBuffer(storage=Complete(8), batch_size=20, collate_fn=torch.stack)
    buffer.extend(list(torch.arange(11)))
    assert set(buffer.sample().tolist()) <= set(range(3, 11))


# -- assigned to a buffer ----------------------------------------------------------------------------------------------


@BOTH
def test_parts_are_assigned(lib):
    """As the example of a decision transformer of TorchRL does with ``_storage``."""
    buffer = filled(lib)
    buffer.sample()
    storage = lib.LazyTensorStorage(20)
    storage.set(range(6), rollout([6], first=100))
    buffer._storage = storage
    assert buffer.storage is storage and len(buffer) == 6
    assert min(map(min, drawn(buffer))) >= 100 <= buffer[:]["action"].min()

    class Last(lib.RandomSampler):
        def sample(self, storage, batch_size):
            return torch.arange(len(storage) - batch_size, len(storage)), {}

    buffer._sampler = Last()
    assert drawn(buffer, 1) == [[102, 103, 104, 105]]
    buffer._writer = lib.RoundRobinWriter()
    buffer._writer.register_storage(storage)
    buffer._collate_fn = lambda data: data.clone().set("collated", torch.ones(4))
    assert buffer.sample()["collated"].sum() == 4


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_is_assigned(prefetch):
    with filled(rbdata, prefetch=prefetch) as buffer:
        buffer.sample()
        buffer._transform = lambda batch: batch.set("action", batch["action"] - 1000)
        assert max(map(max, drawn(buffer))) < 0
        buffer.batch_size = 7
        assert [len(buffer.sample()) for _ in range(4)] == [7] * 4
        buffer._rng = torch.Generator().manual_seed(3)
        again = filled(rbdata, generator=torch.Generator().manual_seed(3))
        assert (torch.tensor(drawn(buffer, 1)[0]) + 1000).tolist() == again.sample(7)["action"].tolist()


def test_what_cannot_be_assigned():
    buffer = filled(rbdata)
    for name, value in {"_prefetch": True, "_prefetch_cap": 3, "_pin_memory": True, "dim_extend": 1}.items():
        with pytest.raises(UsageError, match=f"assigning {name}"):
            setattr(buffer, name, value)
    late = rbdata.ReplayBuffer(storage=lambda: rbdata.LazyTensorStorage(9), batch_size=4, delayed_init=True)
    late._storage = rbdata.LazyTensorStorage(30)
    late.extend(rollout([20]))
    assert len(late) == 20 and late.storage.max_size == 30


@BOTH
def test_checkpoints_of_parts(lib, tmp_path):
    class OwnSampler(lib.SamplerWithoutReplacement):
        number = 0

        def dumps(self, path):
            path.mkdir()
            (path / "number").write_text(str(self.number))

        def loads(self, path):
            self.number = int((path / "number").read_text())

    class OwnWriter(lib.TensorDictRoundRobinWriter):
        number = 0

        def dumps(self, path):
            super().dumps(path)
            (path / "number").write_text(str(self.number))

        def loads(self, path):
            super().loads(path)
            self.number = int((path / "number").read_text())

    buffer = filled(lib, OwnSampler(), writer=OwnWriter())
    buffer.sampler.number, buffer.writer.number = 5, 6
    buffer.dumps(tmp_path / "checkpoint")
    other = filled(lib, OwnSampler(), writer=OwnWriter())
    other.empty()
    other.loads(tmp_path / "checkpoint")
    assert (other.sampler.number, other.writer.number, len(other)) == (5, 6, 12)
    assert other.add(rollout([1])[0]) == 12


def test_a_class_that_is_changed_after_its_first_use(monkeypatch):
    """As in notebooks, and under `mock.patch`."""
    buffer = rbdata.TensorDictReplayBuffer(storage=rbdata.LazyTensorStorage(4), batch_size=4)
    buffer.extend(rollout([4]))
    assert buffer.sample()["observation"].max() < 4
    get = rbdata.LazyTensorStorage.get

    def plus(self, index):
        return get(self, index).clone().apply_(lambda leaf: leaf + 1000)

    with monkeypatch.context() as patch:
        patch.setattr(rbdata.LazyTensorStorage, "get", plus)
        assert buffer.sample()["observation"].min() >= 1000
    assert buffer.sample()["observation"].max() < 4


def test_a_dataset_that_reads_otherwise_is_refused(tmp_path):
    """Batches, functions, exports and views read leaves, not ``dataset[i]``."""

    class Shifted(rbdata.Dataset):
        def __getitem__(self, key):
            return super().__getitem__(key).apply(lambda leaf: leaf + 1)

    class Named(rbdata.Dataset):
        def note(self):
            return f"{self.id} of mine"

    folder = write_dataset(tmp_path, make_episodes([3, 5]))
    rbdata.load(Named(folder), batch_size=4).sample()
    shifted = Shifted(folder)
    for use in (
        lambda: rbdata.load(shifted, batch_size=4),
        lambda: rbdata.preprocess(shifted, lambda td: td, dest="my/out", root=tmp_path),
        lambda: rbdata.export(shifted, tmp_path / "out.npz", "npz"),
        lambda: shifted.select(episodes=[1]),
        lambda: rbdata.concat([folder, shifted]),
    ):
        with pytest.raises(UsageError, match=r"Shifted.__getitem__\(\) would not be called"):
            use()


class Scaled(rbdata.Dataset):
    factor = 2.0

    def __init__(self, folder, factor):
        super().__init__(folder)
        self.factor = factor

    def __getitem__(self, key):
        return super().__getitem__(key).apply(lambda leaf: leaf * self.factor)


def test_copies_of_a_dataset_that_reads_otherwise(tmp_path):
    """In a loader's workers as well: they got a plain dataset."""
    dataset = Scaled(write_dataset(tmp_path, make_episodes([3, 5])), 3.0)
    for one in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert (one[2:6] == dataset[2:6]).all() and type(one) is Scaled


def test_a_dataset_with_a_read_of_its_own(tmp_path):
    """``dataset[[0, 1]]`` called it, ``dataset[:2]`` and ``dataset["observation"]`` did not."""

    class Doubled(rbdata.Dataset):
        def read(self, *args, **options):
            found = super().read(*args, **options)
            return found.apply(lambda leaf: leaf if leaf.dtype is torch.bool else leaf * 2)

    folder = write_dataset(tmp_path, make_episodes([3, 5]))
    plain, doubled = rbdata.open_dataset(folder)[:], Doubled(folder)
    for key in ("observation", "next/observation", "next/reward", "action"):
        wanted = plain[tuple(key.split("/"))] * 2
        assert torch.equal(doubled[key], wanted)
        assert (doubled.to_numpy([key])[key] == wanted.numpy()).all()
        for found in (doubled[:], doubled[range(8)], doubled.to_tensordict(), torch.cat([*doubled.iter_episodes()])):
            assert torch.equal(found[tuple(key.split("/"))], wanted)
    assert torch.equal(doubled["next"]["reward"], plain["next", "reward"] * 2)
    with pytest.raises(UsageError, match=r"Doubled.read\(\) would not be called"):
        rbdata.load(doubled, batch_size=4)


def test_a_buffer_that_reads_otherwise_as_a_map():
    class Shifted(rbdata.TensorDictReplayBuffer):
        def __getitem__(self, index):
            return super().__getitem__(index).apply(lambda leaf: leaf + 1)

    def made(**options):
        buffer = Shifted(storage=rbdata.LazyTensorStorage(5), batch_size=4, **options)
        buffer.extend(rollout([5]))
        return buffer

    assert made().as_map()[2]["action"] == 3
    with pytest.raises(UsageError, match=r"Shifted.__getitem__\(\) would not be called"):
        made(n_step=2).as_map()
