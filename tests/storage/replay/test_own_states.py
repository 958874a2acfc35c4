"""States of what users bring: transforms with extra state, samplers and writers of their own, values of every type."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, deque, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from rbdata.errors import UsageError
from rbdata.storage.replay import (
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    Sampler,
    SamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from rbdata.storage.replay.saving import TYPE, read_state, write_state
from replay_tools import equal, rollout
from tensordict import NonTensorData, NonTensorStack, TensorDict, lazy_stack

NESTED = {"a": {"b": [torch.ones(2), {"c": (1, [2, (3,)])}]}}
VALUES = {
    "numbers": [0, True, None, 1.5, float("inf"), -0.0, 1 << 80, 1 + 2j],
    "text": ["", "é", "\ud800", "a\nb", b"\x00\xff", bytearray(b"x")],
    "tuples": [(), (1, (2, "x")), torch.Size([2, 3]), {1, 2}, frozenset({"x"}), set()],
    "keys": {1: "a", None: "b", (1, "x"): "c", "1": "d", True and 2.5: "e"},
    "reserved": {TYPE: "tensor", "file": "/etc/passwd"},
    "ordered": OrderedDict([("b", 1), ("a", OrderedDict())]),
    "torch": [torch.float16, torch.float8_e5m2, torch.device("cpu"), torch.zeros(()), torch.zeros(0, 3)],
    "narrow": torch.zeros(3, dtype=torch.uint8).view(torch.float8_e4m3fn),
    "numpy": [
        np.float32(1.5),
        np.int64(3),
        np.bool_(True),
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.array(["é", "ab"]),
    ],
    "times": [np.datetime64("2026-11-23"), np.timedelta64(3, "s"), np.zeros((0, 2), np.complex64)],
    "tensordict": TensorDict({"x": torch.ones(2, 3), "n": {"t": "text"}, "a/b": torch.ones(2)}, [2], names=["time"]),
    "lazy": lazy_stack([TensorDict({"x": torch.ones(size)}, []) for size in (1, 2)]),
    "values": NonTensorStack(NonTensorData("a"), NonTensorData((1, 2))),
    "nested": NESTED,
}


def same(first, second) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        views = [each.contiguous().view(-1).view(torch.uint8) for each in (first, second)]
        return first.dtype == second.dtype and first.shape == second.shape and torch.equal(*views)
    if isinstance(first, TensorDict):
        alike = (first.batch_size, first.names, first.device) == (second.batch_size, second.names, second.device)
        return alike and same(dict(first.items()), dict(second.items()))
    if isinstance(first, NonTensorData):
        return first.batch_size == second.batch_size and same(first.data, second.data)
    if hasattr(first, "tensordicts"):
        return first.stack_dim == second.stack_dim and same(first.tensordicts, second.tensordicts)
    if isinstance(first, dict):
        return same(list(first), list(second)) and same(list(first.values()), list(second.values()))
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    return repr(first) == repr(second)


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_with_their_types(name, tmp_path):
    for state in ({"value": VALUES[name]}, {7: VALUES[name]}):
        write_state(tmp_path / "state", state)
        assert same(read_state(tmp_path / "state"), state)


Pair = namedtuple("Pair", "a b")
SELF: list = []
SELF.append(SELF)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Pair(1, 2),
        Path("x"),
        deque([1]),
        np.array([object()]),
        lambda: 0,
        type("Int", (int,), {})(3),
        slice(3),
    ],
)
def test_values_that_only_pickle_could_write_are_refused_by_name(value, tmp_path):
    with pytest.raises(UsageError, match=r"sampler/own/0/x is a .*, which only pickle could write"):
        write_state(tmp_path / "sampler", {"own": [{"x": value}]})


def test_values_inside_themselves(tmp_path):
    with pytest.raises(UsageError, match="nested deeper than"):
        write_state(tmp_path / "sampler", {"own": SELF})


class Running(torch.nn.Module):
    """As TorchRL's VecNorm: what it has learned is no parameter and no buffer."""

    def __init__(self, value):
        super().__init__()
        self.value, self.total = value, torch.zeros(2)

    def forward(self, batch):
        self.total += 1
        return batch.set("total", self.total.expand(len(batch), 2).clone())

    def get_extra_state(self):
        return {"value": self.value, "total": self.total}

    def set_extra_state(self, state):
        self.value, self.total = state["value"], state["total"]


@pytest.mark.parametrize("in_memory", [False, True])
def test_extra_states_of_transforms(in_memory, tmp_path):
    def make(value, seed):
        transform = Running(value)
        return TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=transform, batch_size=3, seed=seed)

    buffer = make(NESTED, 0)
    buffer.extend(rollout([9]))
    buffer.sample()
    buffer.dumps(tmp_path / "checkpoint")
    state = buffer.state_dict()
    buffer.sample()
    for seed in (1, 2):  # the second one gets what the first has not changed
        other = make(None, seed)
        if in_memory:
            other.load_state_dict(state)
        else:
            other.loads(tmp_path / "checkpoint")
        assert same(other.transform[0].value, NESTED)
        assert torch.equal(other.sample()["total"], torch.full((3, 2), 2.0))


def test_extra_states_that_cannot_be_saved(tmp_path):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=Running(object()), batch_size=3)
    buffer.extend(rollout([9]))
    with pytest.raises(UsageError, match=r"transforms/0\._extra_state/value is a builtins\.object, which only pickle"):
        buffer.dumps(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_vec_norm_of_torchrl(tmp_path):
    transforms = pytest.importorskip("torchrl.envs.transforms")

    def make(seed):
        norm = transforms.Compose(transforms.VecNorm(in_keys=["observation"]))
        return TensorDictReplayBuffer(storage=LazyTensorStorage(20), transform=norm, batch_size=4, seed=seed)

    buffer, other = make(0), make(1)
    buffer.extend(rollout([9]))
    buffer.transform[0].train()
    for _ in range(3):
        buffer.sample()
    buffer.transform[0].eval()
    buffer.dumps(tmp_path / "checkpoint")
    other.loads(tmp_path / "checkpoint")
    assert equal(other.sample(), buffer.sample())


class Counting(RandomSampler):
    seen: tuple = ()

    def state_dict(self):
        return {**super().state_dict(), "seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]
        super().load_state_dict(state)


@pytest.mark.parametrize("base", [TensorDictRoundRobinWriter, TensorDictMaxValueWriter])
def test_samplers_and_writers_of_ones_own(base, tmp_path):
    class Writer(base):  # type: ignore[valid-type,misc]
        names: tuple = ()

        def state_dict(self):
            return {**super().state_dict(), "names": self.names}

        def load_state_dict(self, state):
            self.names = state["names"]
            super().load_state_dict(state)

    def make():
        return ReplayBuffer(storage=LazyTensorStorage(5), sampler=Counting(), writer=Writer(), batch_size=2, seed=0)

    buffer, other = make(), make()
    buffer.extend(rollout([9]))
    buffer.writer.names, buffer.sampler.seen = ("a", {1: torch.ones(2)}), (np.float32(2), {"x"})
    buffer.dumps(tmp_path / "checkpoint")
    other.loads(tmp_path / "checkpoint")
    assert same(other.writer.names, buffer.writer.names) and same(other.sampler.seen, buffer.sampler.seen)
    assert torch.equal(buffer.extend(rollout([3])), other.extend(rollout([3])))
    assert equal(buffer[:], other[:])


# -- with batches on their way -----------------------------------------------------------------------------------------


class InTurn(Sampler):
    """Rows in order, without end; its place is in its state, as TorchRL's samplers have it."""

    def __init__(self):
        super().__init__()
        self.place = 0

    def sample(self, storage, batch_size):
        rows = torch.arange(self.place, self.place + batch_size) % len(storage)
        self.place += batch_size
        return rows, {}

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Shuffled(SamplerWithoutReplacement):
    """Counts its draws, beside the position of its base."""

    draws = 0

    def sample(self, storage, batch_size):
        index, _ = super().sample(storage, batch_size)
        self.draws += 1
        return index, {"draws": torch.full((len(index),), self.draws)}

    def state_dict(self):
        return {**super().state_dict(), "draws": self.draws}

    def load_state_dict(self, state):
        state = dict(state)
        self.draws = state.pop("draws")
        super().load_state_dict(state)


class Numbering(torch.nn.Module):
    """Numbers batches; the parameter is a learner's."""

    def __init__(self):
        super().__init__()
        self.register_buffer("number", torch.zeros((), dtype=torch.int64))
        self.weight = torch.nn.Parameter(torch.zeros(3))

    def forward(self, batch):
        self.number += 1
        return batch.set("number", self.number.expand(len(batch)).clone())


def saved_as(way, buffer, made, folder):
    """A second buffer, that goes on where the first one is."""
    if way == "pickle":
        return pickle.loads(pickle.dumps(buffer))
    if way == "deepcopy":
        return copy.deepcopy(buffer)
    other = made()
    other.sample()
    if way == "state":
        other.load_state_dict(buffer.state_dict())
    else:
        buffer.dumps(folder / "checkpoint")
        other.loads(folder / "checkpoint")
    return other


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("way", ["state", "folder", "pickle", "deepcopy"])
@pytest.mark.parametrize("sampler", [InTurn, Shuffled, RandomSampler])
def test_batches_on_their_way_are_not_lost(sampler, way, prefetch, tmp_path):
    """Neither by a sampler of one's own, nor counted twice by a transform."""

    def made():
        parts = {"sampler": sampler(), "transform": Numbering(), "prefetch": prefetch}
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4, seed=0, **parts)
        buffer.extend(TensorDict({"a": torch.arange(20)}, [20]))
        return buffer

    alone, buffer = made(), made()
    wanted = [alone.sample() for _ in range(15)]
    for number in range(5):
        assert equal(buffer.sample(), wanted[number])
    with torch.no_grad():
        buffer.transform[0].weight += 1  # after the batches on their way were made
    other = saved_as(way, buffer, made, tmp_path)
    assert torch.equal(other.transform[0].weight, torch.ones(3))
    for number in range(5, 15):
        assert equal(buffer.sample(), wanted[number])
        assert equal(other.sample(), wanted[number])


def test_a_sampler_that_is_told_of_writes_keeps_what_it_was_told():
    """Its state before a batch on its way would be without the rows that came since."""

    class Told(InTurn):
        def __init__(self):
            super().__init__()
            self.rows = []

        def extend(self, index):
            self.rows += index.tolist()

        def state_dict(self):
            return {"rows": list(self.rows), "place": self.place}

        def load_state_dict(self, state):
            self.rows, self.place = list(state["rows"]), state["place"]

    def made():
        return TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4, sampler=Told(), prefetch=2)

    buffer = made()
    for first in (0, 10):
        buffer.extend(TensorDict({"a": torch.arange(10) + first}, [10]))
        buffer.sample()
    other = made()
    other.load_state_dict(buffer.state_dict())
    assert other.sampler.rows == buffer.sampler.rows == list(range(20))


def test_a_sampler_without_a_state():
    class Stateless(InTurn):
        def state_dict(self):
            raise NotImplementedError

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4, sampler=Stateless(), prefetch=2)
    buffer.extend(TensorDict({"a": torch.arange(20)}, [20]))
    assert [buffer.sample()["a"][0].item() for _ in range(4)] == [0, 4, 8, 12]


class LiveSampler(RandomSampler):
    """Its state is what it goes on to change, as of many classes; so it is with the two below."""

    def __init__(self):
        super().__init__()
        self.weights, self.drawn = torch.ones(30), []

    def sample(self, storage, batch_size):
        rows = torch.multinomial(self.weights[: len(storage)], batch_size, generator=self._rng)
        self.weights[rows] *= 0.5
        self.drawn.append(rows.tolist())
        return rows, {"draws": torch.full((batch_size,), len(self.drawn))}

    def state_dict(self):
        return {"weights": self.weights, "drawn": self.drawn}

    def load_state_dict(self, state):
        self.weights, self.drawn = state["weights"], state["drawn"]


class PlacedSampler(LiveSampler):
    def position(self):
        return self.weights, self.drawn

    def set_position(self, position):
        self.weights, self.drawn = position


class LiveWriter(RoundRobinWriter):
    def __init__(self):
        super().__init__()
        self.sizes = []

    def extend(self, data):
        self.sizes.append(len(data))
        return super().extend(data)

    def state_dict(self):
        return {**super().state_dict(), "sizes": self.sizes}

    def load_state_dict(self, state):
        self.sizes = state["sizes"]
        super().load_state_dict({name: value for name, value in state.items() if name != "sizes"})


class LiveStorage(LazyTensorStorage):
    def __init__(self, size):
        super().__init__(size)
        self.reads = [0]

    def get(self, index):
        self.reads[0] += 1
        return super().get(index)

    def state_dict(self):
        return {**super().state_dict(), "reads": self.reads}

    def load_state_dict(self, state):
        self.reads = state["reads"]
        super().load_state_dict({name: value for name, value in state.items() if name != "reads"})


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("sampler", [LiveSampler, PlacedSampler])
def test_states_are_snapshots_of_parts_that_return_what_they_change(sampler, prefetch):
    def make():
        parts = {"storage": LiveStorage(30), "sampler": sampler(), "writer": LiveWriter()}
        return TensorDictReplayBuffer(**parts, batch_size=4, prefetch=prefetch, seed=0)

    def go_on(buffer):
        batches = []
        for _ in range(4):
            batch = buffer.sample()
            batches.append((batch["action"].tolist(), batch["draws"].tolist()))
        return batches

    buffer = make()
    buffer.extend(rollout([20]))
    go_on(buffer)
    state = buffer.state_dict()
    before = copy.deepcopy(state)

    def is_as_before():
        parts = (state[name] for name in ("_sampler", "_writer"))
        others = (before[name] for name in ("_sampler", "_writer"))
        return all(map(same, parts, others)) and state["_storage"]["reads"] == before["_storage"]["reads"]

    expected = go_on(buffer)
    assert is_as_before()
    for each in (make(), make(), buffer):
        each.load_state_dict(state)
        assert go_on(each) == expected
        each.extend(rollout([2]))
        assert is_as_before()
