"""The identity of values by their content: other values have another one, equal ones have the same in every process."""

from __future__ import annotations

import collections
import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import importlib.util
import json
import logging
import os
import re
import struct
import subprocess
import sys
import threading
import types
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rbdata.datasets.user_code_old.identity import content_hash
from rbdata.errors import UsageError
from tensordict import TensorDict


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Base:
    def scale(self):
        return 2


class Plain(Base):
    def __init__(self, value):
        self.value = value

    def __call__(self, td):
        return td * self.value * self.scale()

    def other(self, td):
        return td


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Net(torch.nn.Module):
    def __init__(self, scale, bias):
        super().__init__()
        self.scale = scale
        self.register_buffer("bias", torch.tensor(bias), persistent=False)


@dataclass(frozen=True, slots=True)
class Record:
    value: float
    more: list = field(default_factory=list)


Pair = collections.namedtuple("Pair", "a b")
LIMIT = 5


def adds(value):
    def fn(td):
        return td + value

    return fn


def reads_limit(td):
    return td + LIMIT


def with_limit(value):
    """The function as it is in a notebook whose cell with the constant was run again."""
    return types.FunctionType(reads_limit.__code__, {"__name__": "notebook", "LIMIT": value}, "reads_limit")


def wrapped(value):
    @functools.wraps(reads_limit)
    def fn(td):
        return reads_limit(td) + value

    return fn


def with_attribute(value):
    fn = adds(1)
    fn.gain = value
    return fn


def compiled(value):
    """As torch.compile leaves it, which takes seconds to import."""
    fn = adds(0)
    fn._torchdynamo_orig_callable = adds(value)
    return fn


def circle(value):
    items = [value]
    items.append(items)
    return items


def with_default(value):
    def fn(td, gain=value, *, shift=value):
        return td * gain + shift

    return fn


def class_of(value):
    class Local(Base):
        gain = value

        def __call__(self, td):
            return td * self.gain

    return Local


def class_on(base):
    return type("Local", (base,), {})


class Strange:
    def __init__(self, value):
        self.__dict__["value"] = value

    def __getattr__(self, name):
        raise RuntimeError(name)


class Own(np.ndarray):
    pass


class InSlot(np.ndarray):
    __slots__ = ("unit",)


class Number(np.float64):
    pass


def array_of(kind, unit):
    value: Any = Number(1) if kind is Number else np.zeros(2).view(kind)
    value.unit = unit
    return value


def generator():
    yield 1


one, two = lambda td: td + 1, lambda td: td + 2  # inspect.getsource gives the same for both

#: Pairs of makers of values that must be told apart.
UNLIKE = {
    "bool and int": (lambda: True, lambda: 1),
    "int and float": (lambda: 1, lambda: 1.0),
    "zeros": (lambda: 0.0, lambda: -0.0),
    "text and bytes": (lambda: "a", lambda: b"a"),
    "strings": (lambda: ["a", "b"], lambda: ["a,b"]),
    "list and tuple": (lambda: [1, 2], lambda: (1, 2)),
    "nested": (lambda: [[1], 2], lambda: [[1, 2]]),
    "keys": (lambda: {1: "a"}, lambda: {"1": "a"}),
    "order of keys": (lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}),
    "numpy scalars": (lambda: np.float32(2), lambda: np.float32(3)),
    "numpy and Python": (lambda: np.float64(2), lambda: 2.0),
    "numpy bool": (lambda: np.bool_(True), lambda: np.bool_(False)),
    "datetime64": (lambda: np.datetime64("2026-01-01"), lambda: np.datetime64("2026-01-02")),
    "numpy dtypes": (lambda: np.dtype("f4"), lambda: np.dtype("f8")),
    "structured dtypes": (lambda: np.dtype([("a", "f4")]), lambda: np.dtype([("b", "f4")])),
    "arrays": (lambda: np.arange(3), lambda: np.arange(3) + 1),
    "shapes": (lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
    "object arrays": (lambda: np.array([1, "a"], object), lambda: np.array([1, "b"], object)),
    "masked arrays": (lambda: np.ma.array([1, 2], mask=[0, 1]), lambda: np.ma.array([1, 2], mask=[1, 0])),
    "numpy generators": (lambda: np.random.default_rng(1), lambda: np.random.default_rng(2)),
    "array subclasses with slots": (lambda: array_of(InSlot, 1), lambda: array_of(InSlot, 2)),
    "array subclasses with attributes": (lambda: array_of(Own, 1), lambda: array_of(Own, 2)),
    "scalar subclasses": (lambda: array_of(Number, 1), lambda: array_of(Number, 2)),
    "random states": (lambda: np.random.RandomState(1), lambda: np.random.RandomState(2)),
    "torch generators": (lambda: torch.Generator().manual_seed(1), lambda: torch.Generator().manual_seed(2)),
    "torch dtypes": (lambda: torch.float32, lambda: torch.float16),
    "devices": (lambda: torch.device("cpu"), lambda: torch.device("cuda", 1)),
    "sizes": (lambda: torch.Size([2]), lambda: torch.Size([3])),
    "tensors": (lambda: torch.tensor([1.0]), lambda: torch.tensor([2.0])),
    "bfloat16": (lambda: torch.tensor([1.0]).bfloat16(), lambda: torch.tensor([1.0]).half()),
    "sparse": (lambda: torch.eye(2).to_sparse(), lambda: torch.eye(2).mul(2).to_sparse()),
    "conjugated": (lambda: torch.tensor([1 + 1j]), lambda: torch.tensor([1 + 1j]).conj()),
    "storages": (lambda: torch.ones(2).untyped_storage(), lambda: torch.zeros(2).untyped_storage()),
    "modules": (lambda: Net(1.0, 1.0), lambda: Net(2.0, 1.0)),
    "buffers that are not saved": (lambda: Net(1.0, 1.0), lambda: Net(1.0, 2.0)),
    "tensordicts": (lambda: TensorDict(a=torch.ones(2)), lambda: TensorDict(a=torch.zeros(2))),
    "paths": (lambda: Path("a"), lambda: Path("b")),
    "decimals": (lambda: decimal.Decimal("1.1"), lambda: decimal.Decimal("1.2")),
    "fractions": (lambda: fractions.Fraction(1, 3), lambda: fractions.Fraction(2, 3)),
    "dates": (lambda: datetime.date(2026, 1, 1), lambda: datetime.date(2026, 1, 2)),
    "durations": (lambda: datetime.timedelta(1), lambda: datetime.timedelta(2)),
    "enums": (lambda: Colour.RED, lambda: Colour.BLUE),
    "ranges": (lambda: range(3), lambda: range(4)),
    "slices": (lambda: slice(1), lambda: slice(2)),
    "deques": (lambda: collections.deque([1], 3), lambda: collections.deque([2], 3)),
    "lengths of deques": (lambda: collections.deque([1], 3), lambda: collections.deque([1], 4)),
    "ordered": (lambda: collections.OrderedDict(a=1, b=2), lambda: collections.OrderedDict(b=2, a=1)),
    "defaults": (lambda: collections.defaultdict(int), lambda: collections.defaultdict(list)),
    "bytearrays": (lambda: bytearray(b"a"), lambda: bytearray(b"b")),
    "sets": (lambda: {"a", "b"}, lambda: {"a", "c"}),
    "sets of tuples": (lambda: {("a", 1), ("b", 2)}, lambda: {("a", 2), ("b", 2)}),
    "patterns": (lambda: re.compile("a"), lambda: re.compile("a", re.IGNORECASE)),
    "uuids": (lambda: uuid.UUID(int=1), lambda: uuid.UUID(int=2)),
    "mappings": (lambda: types.MappingProxyType({"a": 1}), lambda: types.MappingProxyType({"a": 2})),
    "named tuples": (lambda: Pair(1, 2), lambda: Pair(1, 3)),
    "slots": (lambda: Slots(1), lambda: Slots(2)),
    "dataclasses": (lambda: Record(1.0), lambda: Record(2.0)),
    "what dataclasses hold": (lambda: Record(1.0, [1]), lambda: Record(1.0, [2])),
    "attributes": (lambda: Plain(1), lambda: Plain(2)),
    "attributes of their own": (lambda: Strange(1), lambda: Strange(2)),
    "bound methods": (lambda: Plain(1).other, lambda: Plain(1).__call__),
    "objects of bound methods": (lambda: Plain(1).other, lambda: Plain(2).other),
    "methods of built-in objects": (lambda: np.random.default_rng(1).normal, lambda: np.random.default_rng(2).normal),
    "functions in C": (lambda: np.add, lambda: np.subtract),
    "functions of torch": (lambda: torch.add, lambda: torch.sub),
    "lambdas on one line": (lambda: one, lambda: two),
    "closures": (lambda: adds(1), lambda: adds(2)),
    "nested closures": (lambda: adds(adds(1)), lambda: adds(adds(2))),
    "defaults of arguments": (lambda: with_default(1), lambda: with_default(2)),
    "globals": (lambda: with_limit(5), lambda: with_limit(6)),
    "wrappers": (lambda: wrapped(1), lambda: wrapped(2)),
    "wrapper and wrapped": (lambda: wrapped(0), lambda: reads_limit),
    "attributes of functions": (lambda: with_attribute(1), lambda: with_attribute(2)),
    "caches": (lambda: functools.cache(adds(1)), lambda: functools.cache(adds(2))),
    "sizes of caches": (lambda: functools.lru_cache(1)(one), lambda: functools.lru_cache(2)(one)),
    "singledispatch": (lambda: functools.singledispatch(adds(1)), lambda: functools.singledispatch(adds(2))),
    "partials": (lambda: functools.partial(one, 1), lambda: functools.partial(one, 2)),
    "keywords of partials": (lambda: functools.partial(one, td=1), lambda: functools.partial(one, td=2)),
    "class attributes": (lambda: class_of(1), lambda: class_of(2)),
    "objects of classes": (lambda: class_of(1)(), lambda: class_of(2)()),
    "base classes": (lambda: class_on(Plain), lambda: class_on(Slots)),
    "circles": (lambda: circle(1), lambda: circle(2)),
    "shared and copied": (lambda: [[1]] * 2, lambda: [[1], [1]]),
    "compiled": (lambda: compiled(1), lambda: compiled(2)),
    "under no_grad": (lambda: torch.no_grad()(adds(1)), lambda: torch.no_grad()(adds(2))),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_other_values_have_another_one(name):
    first, second = UNLIKE[name]
    assert content_hash(first()) == content_hash(first())
    assert content_hash(second()) == content_hash(second())
    assert content_hash(first()) != content_hash(second())


def every_hash() -> dict[str, list[str]]:
    return {name: [content_hash(make()) for make in pair] for name, pair in UNLIKE.items()}


def test_the_same_in_every_process():
    """Hashes of text and addresses of objects differ between processes."""
    here = Path(__file__)
    code = f"import json, sys; sys.path.insert(0, {str(here.parent)!r})\nimport {here.stem} as t\n"
    code += "print(json.dumps(t.every_hash()))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == every_hash()


@pytest.mark.parametrize(
    "make",
    [
        threading.Lock,
        generator,
        lambda: memoryview(b"a"),
        Path(__file__).open,
        lambda: ctypes.CDLL(None),
        lambda: np.frompyfunc(lambda x: x * 2, 1, 1),
    ],
)
def test_what_cannot_be_told_apart_is_refused(make):
    value = make()
    with pytest.raises(UsageError, match=r"the argument a.*\.value.* cannot be told from another one"):
        content_hash([Plain(value)], "the argument a")
    with pytest.raises(UsageError, match=", closure value is a"):
        content_hash(adds(value))
    getattr(value, "close", lambda: None)()


def test_deep_and_wide():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UsageError, match="nested too deeply"):
        content_hash(deep)
    twice: list = [1]
    for _ in range(60):
        twice = [twice, twice]
    assert content_hash(twice)


def test_what_does_not_count():
    fn = functools.cache(adds(1))
    before = content_hash(fn)
    fn(3)
    assert content_hash(fn) == before  # what a cache holds
    assert content_hash(logging.getLogger("a")) != content_hash(logging.getLogger("b"))
    source = "def fn(td):\n    return td + 1\n"
    made = []
    for text in (source, "\n\n" + source):
        names: dict = {"__name__": "made"}
        exec(text, names)
        made.append(content_hash(names["fn"]))
    assert made[0] == made[1]  # where it stands in its file


def nan_of(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


@pytest.mark.parametrize("wrapped", [lambda value: value, lambda value: [value], lambda value: {value}])
def test_nans_differ_in_sign_and_payload(wrapped):
    quiet, negative, other = 0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001
    every: list[complex] = [nan_of(bits) for bits in (quiet, negative, other)]
    every += [complex(0, value) for value in every]
    assert len({content_hash(wrapped(value)) for value in every}) == len(every)
    assert content_hash(wrapped(nan_of(quiet))) == content_hash(wrapped(nan_of(quiet)))


def test_tensors_with_and_without_gradients_differ():
    plain, learned = torch.ones(2), torch.ones(2, requires_grad=True)
    assert content_hash(plain) != content_hash(learned)
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert content_hash(frozen) != content_hash(torch.nn.Parameter(torch.ones(2)))
    assert content_hash(learned) == content_hash(torch.ones(2, requires_grad=True))


def _scale_by(settings, td):
    return td * settings.scale


def _made(scale):
    module: Any = types.ModuleType("settings_in_memory")
    module.scale = scale
    return module


def test_modules_that_no_import_finds_count_by_their_attributes(tmp_path):
    assert content_hash(_made(1.0)) == content_hash(_made(1.0))
    assert content_hash(_made(1.0)) != content_hash(_made(2.0))

    def loaded(scale):
        path = tmp_path / f"settings_{scale}.py"
        path.write_text(f"scale = {scale}\n")
        spec = importlib.util.spec_from_file_location("settings_by_path", path)
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    hashes = [content_hash(functools.partial(_scale_by, loaded(scale))) for scale in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_module_that_is_an_argument_counts_with_what_other_functions_use(tmp_path, monkeypatch):
    (tmp_path / "settings_of_a_file.py").write_text("scale = float(1)\nunused = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module: Any = importlib.import_module("settings_of_a_file")
    monkeypatch.setitem(sys.modules, "settings_of_a_file", module)
    name = "scale"
    functions = [
        functools.partial(_scale_by, module),
        lambda td: _scale_by(module, td),
        lambda td: getattr(module, name),
        lambda td: sys.modules["settings_of_a_file"].scale,
    ]
    before = [content_hash(function) for function in functions]
    module.unused = float(2)
    assert [content_hash(function) for function in functions] == before
    module.scale = float(2)
    assert all(content_hash(function) != one for function, one in zip(functions, before))
