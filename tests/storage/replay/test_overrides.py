# mypy: disable-error-code="name-defined,misc"
"""Classes of users, written for TorchRL: what they override acts as there."""

from __future__ import annotations

from types import SimpleNamespace

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
        ("SliceSampler", (), {"slice_len": 2, "end_key": ("next", "done")}),
        ("SliceSamplerWithoutReplacement", (), {"slice_len": 2, "end_key": ("next", "done")}),
        ("PrioritizedSliceSampler", (20, 0.7, 0.5), {"slice_len": 2, "end_key": ("next", "done")}),
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
@pytest.mark.parametrize("options", [{}, {"n_step": 2, "frame_stack": 2}], ids=str)
def test_slices_of_a_subclass_are_those_of_its_base(kind, options):
    """With n-step returns the flags are those of the last step looked at, and of the end of the slice."""

    class Own(getattr(rbdata, kind)):
        def sample(self, storage, batch_size):
            index, info = super().sample(storage, batch_size)
            return index, dict(info)

    batches = []
    for sampler in (getattr(rbdata, kind), Own):
        arguments = (20, 0.7, 0.5) if kind.startswith("Prioritized") else ()
        own = sampler(*arguments, slice_len=3)
        buffer = rbdata.TensorDictReplayBuffer(
            storage=rbdata.LazyTensorStorage(20),
            sampler=own,
            batch_size=9,
            seed=0,
            around=rbdata.Around(**options),
        )
        buffer.extend(rollout([7, 5, 4]))
        batches.append(torch.cat([buffer.sample() for _ in range(4)]))
    assert batches[0]["next", "terminated"].any()
    assert (batches[0] == batches[1]).all()


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
        ((torch.tensor([0, 1]), None), "must return"),
        ((torch.tensor([0.0, 1.0]), {}), "whole numbers"),
        ((slice(0, 3), {}), "whole numbers"),
        ((torch.tensor([0, 12]), {}), "not among"),
        ((torch.tensor([-13, 0]), {}), "not among"),
        ((torch.tensor([0, 1]), {"x": torch.zeros(3)}), "has shape"),
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


def test_no_draw_of_a_users_sampler_is_made_in_vain():
    """Nothing is drawn before it is asked for: a write, another batch size and a question change nothing."""
    sampler = walking(rbdata)
    buffer = filled(rbdata, sampler)
    for number in range(1, 9):
        assert buffer.sample(number % 3 + 1)["call"].tolist() == [number] * (number % 3 + 1)
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


def test_get_and_windows():
    class Own(rbdata.LazyTensorStorage):
        def get(self, index):
            return super().get(index)

    with pytest.raises(UsageError, match="your own"):
        filled(rbdata, storage=Own(20), around=rbdata.Around(n_step=2)).sample()


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


# -- buffers -----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("kind", ["ReplayBuffer", "TensorDictReplayBuffer"])
def test_methods_of_a_buffer(lib, kind):
    class Own(getattr(lib, kind)):
        def sample(self, *arguments, **options):
            found = super().sample(*arguments, **options)
            (found[0] if isinstance(found, tuple) else found).set("seen", torch.ones(4))
            return found

        def extend(self, data, **options):
            return super().extend(data[:6], **options)

    buffer = Own(storage=lib.LazyTensorStorage(20), batch_size=4)
    assert len(buffer.extend(rollout([12]))) == len(buffer) == 6
    batch, info = buffer.sample(return_info=True)
    assert batch["seen"].sum() == 4 and "index" in info
    assert next(iter(buffer))["seen"].sum() == 4
