"""Two requests that differ in anything are never taken for one: arguments, state, globals, helper modules, edited files."""

from __future__ import annotations

import collections
import decimal
import functools
import importlib
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from preprocess_tools import fails, make_input, run
from processes import RBDATA
from rbdata.cli import run as command_line
from rbdata.datasets.workers import open_engine
from rbdata.errors import DatasetExistsError, FunctionError, UnfinishedDatasetError, UsageError
from rbdata.preprocess import driver
from rbdata.preprocess.driver import preprocess
from rbdata.preprocess.request import Listener, Request
from rbdata.storage.dataset import Dataset


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A current directory for user code, with an input of rewards that are known."""
    make_input(tmp_path, count=6)
    monkeypatch.chdir(tmp_path)
    path, modules = [*sys.path], {*sys.modules}
    yield tmp_path
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def factor(root: Path, fn, dest: str = "my/output", **options) -> float:
    """By how much a run multiplied the rewards."""
    made, source = run(root, fn, dest=dest, **options), Dataset(root / "my" / "input")
    return float((made["next/reward"] / source["next/reward"]).mean())


def other(root: Path, fn, match: str, **options) -> None:
    """The dataset that is there was made by another request."""
    with pytest.raises(DatasetExistsError, match=match):
        run(root, fn, **options)


TIMES = "def fn(td):\n    td['next', 'reward'] = td['next', 'reward'] * {}\n    return td\n"


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __call__(self, td):
        td["next", "reward"] = td["next", "reward"] * float(self.value)
        return td


def by(td, value=1):
    td["next", "reward"] = td["next", "reward"] * float(getattr(value, "value", value))
    return td


# -- arguments and state -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.float32, np.int64, decimal.Decimal, Slots, lambda number: np.array(number)])
def test_arguments_that_differ(here, make):
    assert factor(here, by, args={"value": make(2)}) == 2
    assert factor(here, by, args={"value": make(2)}) == 2  # the same again
    other(here, by, "the argument value of ", args={"value": make(3)})
    other(here, functools.partial(by, value=make(2)), "made with another request")
    assert factor(here, by, args={"value": make(3)}, force=True) == 3
    assert factor(here, "rbdata:scale_rewards", dest="my/scaled", args={"scale": 2.0}) == 2


def test_functions_that_differ_in_their_state(here):
    assert factor(here, Slots(np.float32(2))) == 2
    other(here, Slots(np.float32(3)), "its code, its state or a value that it uses")
    assert factor(here, functools.partial(by, value=collections.deque([2])[0]), dest="my/partial") == 2
    other(here, functools.partial(by, value=3), "made with another request", dest="my/partial")
    one, two = lambda td: by(td, 2), lambda td: by(td, 3)
    assert factor(here, one, dest="my/lambda") == 2
    other(here, two, "made with another request", dest="my/lambda")


def test_arguments_that_json_writes_alike(here):
    def keyed(td, keys=None, how=None):
        return td

    for dest, (first, second) in {
        "my/tuple": ({"keys": ["a", "b"]}, {"keys": ("a", "b")}),
        "my/order": ({"how": {"a": 1, "b": 2}}, {"how": {"b": 2, "a": 1}}),
        "my/keys": ({"how": {1: 2}}, {"how": {"1": 2}}),
        "my/kinds": ({"how": 2.0}, {"how": np.float64(2.0)}),
    }.items():
        run(here, keyed, dest=dest, args=first)
        other(here, keyed, "the argument", dest=dest, args=second)


def test_what_cannot_be_told_apart_is_refused(here):
    values = iter([1])
    next(values)

    def generates():
        yield 1

    error = fails(here, by, UsageError, "the argument value of .*:by is a generator", args={"value": generates()})
    assert "inside the function" in error.hint


class Unit(np.ndarray):
    def __array_finalize__(self, other):
        self.gain = getattr(other, "gain", 1.0)


class UnitInSlot(np.ndarray):
    __slots__ = ("gain",)


class Number(np.float32):
    pass


def by_gain(td, w):
    td["next", "reward"] = td["next", "reward"] * w.gain
    return td


@pytest.mark.parametrize(
    "make", [lambda: np.ones(2).view(Unit), lambda: np.ones(2).view(UnitInSlot), lambda: Number(1)]
)
@pytest.mark.parametrize("way", ["argument", "text", "inside", "closure"])
def test_attributes_of_arrays_that_pickle_drops_are_refused(here, make, way):
    """Workers would get the array with another gain, or without one."""
    value = make()
    value.gain = 3.0
    write("gains.py", "def by_gain(td, w):\n    return td\n")
    fn, args = {
        "argument": (by_gain, {"w": value}),
        "text": ("gains.py:by_gain", {"w": value}),
        "inside": (by_gain, {"w": [{"a": value}]}),
        "closure": (lambda td: by_gain(td, value), {}),
    }[way]
    with pytest.raises(UsageError, match="attributes that its pickle leaves out: gain"):
        run(here, fn, args=args)


@pytest.mark.parametrize("kind", [list, dict])
def test_an_argument_that_contains_itself_is_refused(here, kind):
    value: Any = [1] if kind is list else {"a": 1}
    if kind is list:
        value.append(value)
    else:
        value["b"] = value
    with pytest.raises(UsageError, match="contains itself"):
        run(here, by_gain, args={"w": value})


def test_a_dataset_as_an_argument(here):
    """By what it holds, wherever it is: it may be made again at its place."""

    def fn(td, other):
        return td

    make_input(here, count=3, id="my/other")
    run(here, fn, args={"other": Dataset(here / "my" / "other")})
    run(here, fn, args={"other": Dataset(here / "my" / "other")})
    shutil.rmtree(here / "my" / "other")
    make_input(here, count=3, seed=1, id="my/other")
    other(here, fn, "the argument other of ", args={"other": Dataset(here / "my" / "other")})


def test_an_interrupted_run_is_not_continued_with_another_argument(here):
    def stop(index: int) -> None:
        raise KeyboardInterrupt

    def request(value):
        return Request("my/input", [by], "my/half", root=here, procs=1, batch_size=7, args={"value": value})

    with pytest.raises(KeyboardInterrupt):
        preprocess(request(np.float32(2)), Listener(on_part_done=stop))
    with pytest.raises(UnfinishedDatasetError, match=r"differs in the argument value of .*:by\)"):
        preprocess(request(np.float32(3)))
    assert preprocess(request(np.float32(2))).action == "written"


def test_the_identity_is_that_of_every_process(here):
    """A set of text is in another order in every process."""
    write("mine.py", "KEYS = {'a', 'b', 'c', 'd'}\ndef fn(td):\n    assert 'a' in KEYS\n    return td\n")
    command = [*RBDATA, "preprocess", "my/input", "--fn", "mine.py:fn", "--dest", "my/out", "--root", str(here)]
    for seed, told in (("1", "my/out\twritten"), ("2", "my/out\tcomplete")):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and told in done.stdout, done.stderr


def test_globals_of_a_notebook(here):
    """Functions without a file, whose cells are run again with another constant."""
    cell = TIMES.format("GAIN")
    names: dict = {"__name__": "__main__", "GAIN": 2}
    exec(cell, names)
    assert factor(here, names["fn"]) == 2
    names["GAIN"], names["unrelated"] = 3, 1
    other(here, names["fn"], r"a value that it uses: __main__.GAIN\)")
    names["GAIN"] = 2
    assert factor(here, names["fn"]) == 2


MAKE = """
def make(gain):
    class Base:
        @classmethod
        def base(cls, td):
            td['next', 'reward'] = td['next', 'reward'] * gain
            return td
    class Made(Base):
        seen = []
        @classmethod
        def classed(cls, td):
            cls.seen.append(len(td))
            return super().base(td)
        @staticmethod
        def static(td):
            return Made.base(td)
    return Made
"""


@pytest.mark.parametrize("method", ["base", "classed", "static"])
def test_methods_of_a_class_that_a_function_makes(here, method, monkeypatch):
    """A run leaves the class as it was, so that the next one has the same function."""
    monkeypatch.syspath_prepend(here)
    write("mine.py", MAKE)
    made = importlib.import_module("mine").make(2)
    before = {**vars(made), **vars(made.__base__)}
    assert factor(here, getattr(made, method)) == 2
    assert factor(here, getattr(made, method)) == 2
    after = {**vars(made), **vars(made.__base__)}
    assert all(after[name] is value for name, value in before.items()) and made.seen == []
    other(here, getattr(importlib.import_module("mine").make(3), method), "differs in mine:make")


# -- local modules -----------------------------------------------------------------------------------------------------

HELPERS = {
    "at the top": ("from h2 import gain\n" + TIMES.format("gain()"), "h2.py"),
    "inside": (TIMES.format("gain()").replace("    td", "    from h2 import gain\n    td", 1), "h2.py"),
    "module": ("import h2\n" + TIMES.format("h2.gain()"), "h2.py"),
    "by way of another": ("from h1 import gain\n" + TIMES.format("gain()"), "h2.py"),
    "package": ("from pkg.inner import gain\n" + TIMES.format("gain()"), "pkg/deep.py"),
}


@pytest.mark.parametrize("kind", HELPERS)
@pytest.mark.parametrize("form", ["mine.py:fn", "mine:fn", "object"])
def test_a_helper_module_that_changed(here, kind, form, monkeypatch):
    source, helper = HELPERS[kind]
    write("mine.py", source)
    write("h1.py", "from h2 import gain\n")
    for name in ("h2.py", "pkg/deep.py"):
        write(name, "def gain():\n    return 2\n")
    write("pkg/__init__.py", "")
    write("pkg/inner.py", "from .deep import gain\n")
    monkeypatch.syspath_prepend(here)

    def given():
        return importlib.import_module("mine").fn if form == "object" else form

    def edit(value: int) -> None:
        write(helper, f"def gain():\n    return {value}\n")  # the same size, within the same second
        if form == "object":  # what a user does, who knows that Python keeps modules
            importlib.invalidate_caches()
            for name in ("mine", "h1", "h2", "pkg", "pkg.inner", "pkg.deep"):
                cached = getattr(sys.modules.pop(name, None), "__cached__", None)
                Path(cached or "nothing").unlink(missing_ok=True)

    assert factor(here, given()) == 2
    edit(3)
    other(here, given(), rf"made with another request \(differs in {helper}\)")
    assert factor(here, given(), force=True) == 3
    assert helper in Dataset(here / "my" / "output").manifest.lineage["functions"][0]["files"]
    edit(2)
    assert factor(here, given(), dest="my/two") == 2


def test_modules_that_are_not_reached_do_not_count(here):
    write("mine.py", "import json, numpy\nfrom h2 import gain\n" + TIMES.format("gain()"))
    write("h2.py", "import torch\ndef gain():\n    return 2\n")
    write("unused.py", "")
    made = run(here, "mine.py:fn")
    assert [*made.manifest.lineage["functions"][0]["files"]] == ["h2.py"]
    write("unused.py", "changed = 1")
    assert run(here, "mine.py:fn").manifest.provenance == made.manifest.provenance


def test_reading_imports_imports_nothing(here):
    write("mine.py", "def fn(td):\n    if len(td) < 0:\n        import rare\n    return td\n")
    write("rare.py", "raise RuntimeError('imported')\n")
    assert "rare.py" in run(here, "mine.py:fn").manifest.lineage["functions"][0]["files"]


def test_helpers_of_one_name_in_two_folders(here):
    for folder, value in (("a", 2), ("b", 3)):
        write(f"{folder}/mine.py", "from helper import gain\n" + TIMES.format("gain()"))
        write(f"{folder}/helper.py", f"def gain():\n    return {value}\n")
    for folder, value in (("a", 2), ("b", 3), ("a", 2)):
        assert factor(here, f"{folder}/mine.py:fn", dest=f"my/{folder}", force=True) == value
    fails(here, ["a/mine.py:fn", "b/mine.py:fn"], UsageError, "another helper.py than")


def test_a_reward_function_given_by_name(here):
    write("h2.py", "GAIN = 2\n")
    write("mine.py", "import h2\ndef reward(td):\n    return td['next', 'reward'] * h2.GAIN\n")
    args = {"fn": "mine.py:reward"}
    assert factor(here, "rbdata:relabel_rewards", args=args) == 2
    assert factor(here, "rbdata:relabel_rewards", args=args) == 2
    write("h2.py", "GAIN = 3\n")
    other(here, "rbdata:relabel_rewards", r"differs in h2.py\)", args=args)
    assert factor(here, "rbdata:relabel_rewards", args=args, force=True) == 3
    write("mine.py", "def reward(td):\n    return td['next', 'reward'] * 5\n")
    assert factor(here, "rbdata:relabel_rewards", args=args, force=True) == 5


# -- files that are edited ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "where"), [("mine.py:fn", "here"), ("mine:fn", "here"), ("mine.py:fn", "workers")])
def test_a_file_edited_within_a_session(here, form, where, workers):
    engine = workers if where == "workers" else None
    for value in (2, 3, 2):
        write("mine.py", TIMES.format(value))
        assert factor(here, form, dest=f"my/times{value}", force=True, open_engine=engine) == value
    two, three = (Dataset(here / "my" / f"times{value}").manifest.lineage["functions"][0] for value in (2, 3))
    assert two["source_sha256"] != three["source_sha256"] and two["file_sha256"] != three["file_sha256"]
    write("mine.py", TIMES.format(3))
    other(here, form, "differs in mine.py", dest="my/times2")


def test_an_object_whose_file_was_edited_is_refused(here, monkeypatch):
    monkeypatch.syspath_prepend(here)
    write("h2.py", "def gain():\n    return 2\n")
    write("mine.py", "from h2 import gain\n" + TIMES.format("gain()"))
    mine = importlib.import_module("mine")
    assert factor(here, mine.fn) == 2
    write("h2.py", "def gain():\n    return 3\n")
    error = fails(here, mine.fn, UsageError, "h2.py was edited after h2 was imported")
    assert "reload(h2)" in error.hint
    fails(here, "mine:fn", UsageError, "h2.py was edited after h2 was imported")
    write("h2.py", "def gain():\n    return 2\n")
    write("mine.py", TIMES.format(7))
    fails(here, mine.fn, UsageError, "mine.py was edited after mine was imported")
    old = mine.fn
    importlib.reload(mine)
    fails(here, old, UsageError, "mine.py was edited")  # the function of before
    assert factor(here, mine.fn, dest="my/seven") == 7
    assert factor(here, "mine.py:fn", dest="my/file") == 7


@pytest.mark.parametrize("edited", ["mine.py", "h2.py"])
def test_a_number_of_an_object_that_was_edited_in_its_file_is_refused(here, monkeypatch, edited):
    """Not one that the program set, though it is not what the file sets either."""
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write("h2.py", "GAIN = 2\n")
    write("mine.py", "import h2\nSCALE = 3\n" + TIMES.format("SCALE * h2.GAIN"))
    mine: Any = importlib.import_module("mine")
    assert factor(here, mine.fn) == 6
    mine.SCALE, mine.h2.GAIN = 5, 7
    assert factor(here, mine.fn, force=True) == 35
    mine.SCALE, mine.h2.GAIN = 3, 2
    path = write(edited, Path(edited).read_text().replace("= 3\n", "= 30\n").replace("= 2\n", "= 20\n"))
    name = path.stem
    fails(here, mine.fn, UsageError, rf"{edited} was edited after {name} was imported")
    importlib.reload(sys.modules[name])
    assert factor(here, mine.fn, dest="my/other") == 60


@pytest.mark.parametrize("table", ["[2, 1]", "{'a': [2], 0: 2}", "{2}"])
def test_a_table_of_an_object_that_was_edited_in_its_file_is_refused(here, monkeypatch, table):
    """Not one that the file's functions fill, or that the program changed."""
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    value = "max(h2.TABLE['a'])" if "a" in table else "max(h2.TABLE)" if "{" in table else "h2.TABLE[0]"
    path = write("h2.py", f"TABLE = {table}\nSEEN = [0]\nMARKS = [0]\nMARKS[0] += 1\n")
    write("mine.py", "import h2\n" + TIMES.format(f"{value} * len(h2.SEEN)"))
    mine: Any = importlib.import_module("mine")
    assert factor(here, mine.fn) == 2
    assert "h2.py" in Dataset(here / "my" / "output").manifest.lineage["functions"][0]["files"]
    mine.h2.SEEN = [0, 0]
    assert factor(here, mine.fn, dest="my/seen") == 4
    mine.h2.SEEN = [0]
    write("h2.py", path.read_text().replace("2", "20"))
    fails(here, mine.fn, UsageError, r"h2.py was edited after h2 was imported")
    importlib.reload(mine.h2)
    assert factor(here, mine.fn, dest="my/other") == 20


def test_a_variable_that_the_program_set_in_a_file_given_as_text_is_refused(here, monkeypatch):
    """The program imported the file as a module; text names the file, which is loaded again, with what it sets itself."""
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = write("mine.py", "SCALE = 3\nOTHER = 1\n" + TIMES.format("SCALE"))
    mine: Any = importlib.import_module("mine")
    assert factor(here, "mine.py:fn") == 3
    mine.OTHER = 2  # not read
    assert factor(here, "mine.py:fn", dest="my/same") == 3
    mine.SCALE = 5
    fails(here, "mine.py:fn", UsageError, "this program has set to something else than its file does")
    assert factor(here, mine.fn, dest="my/object") == 5
    path.write_text(path.read_text().replace("SCALE = 3", "SCALE = 40"))  # an edit is what the text asks for
    assert factor(here, "mine.py:fn", dest="my/edited") == 40


def test_globals_of_a_module(here, monkeypatch, workers):
    """A call fills a cache, and loads a model once: the run is the same. A setting that was changed makes another one."""
    monkeypatch.syspath_prepend(here)
    write(
        "mine.py",
        """
        import threading
        lock, cache, model, GAIN = threading.Lock(), {}, None, 2
        def fn(td):
            global model
            with lock:
                model = model or object()
                cache[len(td)] = model
            td['next', 'reward'] = td['next', 'reward'] * GAIN
            return td
        """,
    )
    mine = importlib.import_module("mine")
    made = run(here, mine.fn)
    assert mine.model and mine.cache
    assert run(here, mine.fn).manifest.provenance == made.manifest.provenance
    assert factor(here, mine.fn, dest="my/workers", open_engine=workers) == 2
    monkeypatch.setattr(mine, "GAIN", 3)
    other(here, mine.fn, r"a value that it uses: mine.GAIN\)")
    assert factor(here, mine.fn, dest="my/three") == 3
    fails(here, mine.fn, FunctionError, r"a global that it reads has another value \(mine.GAIN\)", open_engine=workers)


@pytest.mark.parametrize(
    "read",
    ["import cfg\n    gain = cfg.GAIN", "from cfg import GAIN as gain", "gain = importlib.import_module('cfg').GAIN"],
)
def test_a_setting_of_a_module_that_is_imported_when_the_function_runs(here, monkeypatch, workers, read):
    """The program has set it: the second run was 'complete', and workers took the value of the file."""
    monkeypatch.syspath_prepend(here)
    write("cfg.py", "GAIN = 2")
    scale = "td['next', 'reward'] = td['next', 'reward'] * gain"
    write("mine.py", f"import importlib\ndef fn(td):\n    {read}\n    {scale}\n    return td\n")
    mine, cfg = importlib.import_module("mine"), importlib.import_module("cfg")
    assert factor(here, mine.fn) == 2 == factor(here, mine.fn, dest="my/workers", open_engine=workers)
    monkeypatch.setattr(cfg, "GAIN", 3)
    other(here, mine.fn, r"made with another request \(.* a value that it uses: cfg.GAIN\)")
    assert factor(here, mine.fn, dest="my/three") == 3
    fails(here, mine.fn, FunctionError, "a global that it reads has another value", open_engine=workers)
    monkeypatch.setattr(cfg, "GAIN", 4)
    other(here, mine.fn, "a value that it uses", dest="my/three")


@pytest.mark.parametrize("name", ["__main__", "made_by_a_program"])
def test_a_setting_of_the_main_program_that_is_imported_when_the_function_runs(here, monkeypatch, name):
    """Also of a module that the program made from no file."""
    monkeypatch.syspath_prepend(here)
    scale = "td['next', 'reward'] = td['next', 'reward'] * settings.GAIN_OF_A_TEST"
    write("mine.py", f"def fn(td):\n    import {name} as settings\n    {scale}\n    return td\n")
    if name != "__main__":
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[name], "GAIN_OF_A_TEST", 2, raising=False)
    mine = importlib.import_module("mine")
    assert factor(here, mine.fn) == 2 == factor(here, mine.fn)
    monkeypatch.setattr(sys.modules[name], "GAIN_OF_A_TEST", 3)
    other(here, mine.fn, "a value that it uses")
    assert factor(here, mine.fn, dest="my/three") == 3


@pytest.mark.parametrize("read", ["np.array(GAINS)", "torch.tensor(GAINS)", "[one for one, _ in zip(GAINS, GAINS)]"])
def test_a_list_that_the_program_fills_is_a_setting_where_the_function_reads_it_whole(here, monkeypatch, read):
    monkeypatch.syspath_prepend(here)
    scale = f"td['next', 'reward'] = td['next', 'reward'] * float(sum({read}))"
    write("mine.py", f"import numpy as np\nimport torch\nGAINS = []\ndef fn(td):\n    {scale}\n    return td\n")
    mine = importlib.import_module("mine")
    mine.GAINS.append(2)
    assert factor(here, mine.fn) == 2
    mine.GAINS.append(3)
    other(here, mine.fn, "a value that it uses")
    assert factor(here, mine.fn, dest="my/five") == 5


def test_a_setting_that_the_program_makes_by_a_function(here, monkeypatch, workers):
    """What ``global`` assigns is state where the function comes to it itself, and a setting where only the program does."""
    monkeypatch.syspath_prepend(here)
    write(
        "mine.py",
        """
        GAIN, CALLS = 2, 0
        def set_gain(gain):
            global GAIN
            GAIN = gain
        def note():
            global CALLS
            CALLS += 1
        def fn(td):
            note()
            td['next', 'reward'] = td['next', 'reward'] * (GAIN if CALLS else 0)
            return td
        """,
    )
    mine = importlib.import_module("mine")
    assert factor(here, mine.fn) == 2 == factor(here, "mine:fn", dest="my/text")
    mine.note()
    assert factor(here, mine.fn) == 2  # complete
    mine.set_gain(3)
    other(here, mine.fn, "a value that it uses")
    assert factor(here, mine.fn, dest="my/three") == 3 == factor(here, mine.fn, dest="my/four", open_engine=workers)
    fails(here, "mine:fn", UsageError, "this program has set to something else")


_REACHED = {
    "getattr": "def fn(td):\n    return by(td, getattr(settings, 'GAIN'))",
    "vars": "def fn(td):\n    return by(td, vars(settings)['GAIN'])",
    "a name in a default": "def fn(td, name='GAIN'):\n    return by(td, getattr(settings, name))",
    "a dotted name": "import operator\ndef fn(td):\n    return by(td, operator.attrgetter('Conf.gain')(settings))",
    "an import inside": "def fn(td):\n    import settings as s\n    return by(td, s.GAIN)",
    "a value imported inside": "def fn(td):\n    from settings import GAIN\n    return by(td, GAIN)",
    "an array imported inside": "def fn(td):\n    from settings import table\n    return by(td, table[0])",
    "a list imported inside": "def fn(td):\n    from settings import filled\n    return by(td, sum(filled))",
    "a class imported inside": "def fn(td):\n    from settings import Conf\n    return by(td, Conf.gain)",
    "a function imported inside": "def fn(td):\n    from settings import gain\n    return by(td, gain())",
    "imported at the top as well": "from settings import table, Conf, gain\n"
    "def fn(td):\n    from settings import table as t, gain as g\n    return by(td, t[0] * g() / float(Conf.gain))",
    "inside what is imported inside": "def fn(td):\n    import circle\n    return by(td, circle.back())",
    "what a module imported inside shares": "def fn(td):\n    from sharing import table\n    return by(td, table[0])",
    "importlib": "import importlib\ndef fn(td):\n    return by(td, importlib.import_module('settings').GAIN)",
    "an argument": "def of(td, s):\n    return by(td, s.GAIN)\ndef fn(td):\n    return of(td, settings)",
    "a default": "def fn(td, s=settings):\n    return by(td, s.GAIN)",
    "code in a text": "import circle\ndef fn(td):\n    return by(td, circle.evaluated())",
    "an attribute": "class C:\n    def __init__(self):\n        self.s = settings\n"
    "    def __call__(self, td):\n        return by(td, self.s.table[0])\nfn = C()",
    "an attribute of a class": "class C:\n    s = settings\n"
    "    def __call__(self, td):\n        return by(td, self.s.GAIN)\nfn = C()",
}


@pytest.mark.parametrize("way", _REACHED)
def test_what_the_program_sets_in_a_module_counts_however_it_is_reached(here, monkeypatch, workers, way):
    monkeypatch.syspath_prepend(here)
    back = "def back():\n    from settings import gain\n    return gain()\n"
    write("circle.py", f"import settings\n{back}def evaluated():\n    return eval('settings.GAIN')\n")
    write("sharing.py", "from settings import table\n")
    write(
        "settings.py",
        """
        import numpy as np
        GAIN, table, filled = 2, np.array([2.0]), []
        filled.append(2)
        class Conf:
            gain = 2
        def gain():
            import circle
            return GAIN
        """,
    )
    write(
        "mine.py", "import settings\n" + TIMES.replace("fn(td)", "by(td, gain)").format("float(gain)") + _REACHED[way]
    )
    mine: Any = importlib.import_module("mine")
    settings = mine.settings
    made = run(here, mine.fn)
    assert factor(here, mine.fn) == 2 == factor(here, mine.fn, dest="my/workers", open_engine=workers)
    assert run(here, mine.fn).manifest.provenance == made.manifest.provenance  # complete
    for gain in (3, 4):
        settings.GAIN = settings.Conf.gain = gain
        settings.table[:] = gain
        settings.filled[:] = [gain]
        other(here, mine.fn, "a value that it uses")
        assert factor(here, mine.fn, dest=f"my/{gain}") == gain
        fails(here, mine.fn, FunctionError, "a global that it reads has another value", open_engine=workers)
    other(here, mine.fn, "a value that it uses", dest="my/3")


@pytest.mark.parametrize(
    "inside",
    [
        "from . import settings\n    gain = settings.table[0]",
        "from .settings import table\n    gain = table[0]",
        "gain = importlib.import_module('.settings', __package__).table[0]",
        "from .sub.deep import table\n    gain = table[0]",
    ],
)
@pytest.mark.parametrize("is_loaded", [False, True])
def test_relative_imports_when_the_function_runs(here, monkeypatch, workers, inside, is_loaded):
    """What `pkg.sub.deep` imports counts before it is loaded, and in the same way afterwards."""
    monkeypatch.syspath_prepend(here)
    for name in ("pkg/__init__.py", "pkg/sub/__init__.py"):
        write(name, "")
    write("pkg/settings.py", "import numpy as np\ntable = np.array([2.0])\n")
    write("pkg/sub/deep.py", "from .. import settings\nfrom ..settings import table\n")
    write("pkg/mine.py", "import importlib\n" + TIMES.format("gain").replace("    td", f"    {inside}\n    td", 1))
    mine, settings = (importlib.import_module(f"pkg.{name}") for name in ("mine", "settings"))
    if is_loaded:
        importlib.import_module("pkg.sub.deep")
    assert factor(here, mine.fn) == 2 == factor(here, mine.fn)
    assert factor(here, mine.fn, dest="my/workers", open_engine=workers) == 2
    settings.table[:] = 3
    other(here, mine.fn, "a value that it uses")
    assert factor(here, mine.fn, dest="my/three") == 3
    fails(here, mine.fn, FunctionError, "a global that it reads has another value", open_engine=workers)


def test_a_module_imported_inside_that_cannot_be_run_again(here, monkeypatch):
    """Its literals are compared with those of its file."""
    monkeypatch.syspath_prepend(here)
    write("once.py", "import os\nos.mkdir('made')\nGAIN = 2\n")
    write("mine.py", TIMES.format("GAIN").replace("    td", "    from once import GAIN\n    td", 1))
    mine: Any = importlib.import_module("mine")
    once: Any = importlib.import_module("once")
    assert factor(here, mine.fn) == 2 == factor(here, mine.fn)
    once.GAIN = 3
    other(here, mine.fn, r"a value that it uses: once.GAIN\)")
    assert factor(here, mine.fn, dest="my/three") == 3


def test_what_a_module_imported_inside_draws_when_it_is_loaded_does_not_count(here, monkeypatch, workers):
    """It is another value in every process."""
    monkeypatch.syspath_prepend(here)
    write(
        "h2.py",
        "import time\nimport numpy as np\nstart, dice, GAIN = time.time(), np.random.default_rng(), np.array(2.0)\n",
    )
    scale = "td['next', 'reward'] = td['next', 'reward'] * float(h2.GAIN if h2.start and h2.dice else 0)"
    write("mine.py", f"def fn(td):\n    import h2\n    {scale}\n    return td\n")
    mine: Any = importlib.import_module("mine")
    h2: Any = importlib.import_module("h2")
    assert factor(here, mine.fn) == 2 == factor(here, mine.fn, dest="my/workers", open_engine=workers)
    h2.start = 0.5
    assert factor(here, mine.fn) == 2
    h2.GAIN[...] = 3
    other(here, mine.fn, r"a value that it uses: h2.GAIN\)")


@pytest.mark.parametrize(
    "total",
    [
        *(
            "np.sum(GAINS)",
            "max(*GAINS, 0)",
            "sum(a for a, b in zip(GAINS, GAINS))",
            "total(GAINS)",
            "later()",
            "named()",
        ),
        *("held()", "(GAINS or [9])[0]", "{'x': GAINS}['x'][0]", "(lambda gains: gains[0])(GAINS)", "copied()"),
    ],
)
def test_a_list_that_the_program_fills_is_a_setting_whatever_reads_it(here, monkeypatch, workers, total):
    monkeypatch.syspath_prepend(here)
    write(
        "mine.py",
        f"""
        import numpy as np
        GAINS = []
        def total(gains):
            return sum(gains)
        def later():
            gains = GAINS
            return total(gains)
        def copied():
            gains = GAINS
            gains = [*gains]
            return gains.pop()
        def named():
            def inner():
                GAINS = []
                GAINS.append(1)
            inner()
            return total(GAINS)
        class Held:
            def __init__(self):
                self.GAINS = []
                self.GAINS.append(1)
        def held():
            Held()
            return total(GAINS)
        def fn(td):
            td['next', 'reward'] = td['next', 'reward'] * float({total})
            return td
        """,
    )
    mine = importlib.import_module("mine")
    mine.GAINS.append(2)
    assert factor(here, mine.fn) == 2 == factor(here, mine.fn, dest="my/workers", open_engine=workers)
    mine.GAINS[0] = 3
    other(here, mine.fn, "a value that it uses: mine.GAINS")
    assert factor(here, mine.fn, dest="my/three") == 3


@pytest.mark.parametrize(
    "keep",
    [
        *("CACHE['gain'] = 2", "CACHE.setdefault('gain', 2)", "CACHE.setdefault('a', {})['b'] = CACHE['gain'] = 2"),
        *("kept = CACHE\n    kept['gain'] = 2", "[CACHE.update(gain=one) for one in (1, 2)]", "h2.CACHE['gain'] = 2"),
        *(
            "h2.keep()",
            "heapq.heappush(HEAP, 2)\n    CACHE['gain'] = HEAP[0]",
            "count()",
            "from h2 import late\n    late()",
        ),
    ],
)
def test_what_a_function_keeps_itself_does_not_count(here, monkeypatch, keep):
    """The program has called it: its caches are no longer empty."""
    monkeypatch.syspath_prepend(here)
    kept = "CACHE = {}\ndef keep():\n    CACHE['gain'] = 2\n"
    write("h2.py", f"{kept}def late():\n    keep()\n")
    write(
        "mine.py",
        "import heapq\nimport h2\nCALLS, CACHE, HEAP = 0, {}, []\ndef count():\n    global CALLS\n    CALLS += 1\n"
        f"def fn(td):\n    {keep}\n    gain = CACHE.get('gain') or h2.CACHE.get('gain', 2)\n"
        "    td['next', 'reward'] = td['next', 'reward'] * gain\n    return td\n",
    )
    mine = importlib.import_module("mine")
    made = run(here, mine.fn)
    mine.fn(Dataset(here / "my" / "input").to_tensordict())
    assert mine.CALLS or mine.CACHE or mine.h2.CACHE
    assert run(here, mine.fn).manifest.provenance == made.manifest.provenance


def test_an_attribute_of_a_module_counts_where_code_reads_an_attribute_of_its_name(here, monkeypatch):
    """Not where it has a variable, a global or an argument of that name."""
    monkeypatch.syspath_prepend(here)
    write(
        "h2.py", "import time\nstart, stop, begin, end, GAIN = time.time(), time.time(), time.time(), time.time(), 2\n"
    )
    write(
        "mine.py",
        """
        import h2
        begin = 1
        def times(end):
            return end * h2.GAIN * begin
        def fn(td):
            start = times(1)
            td['next', 'reward'] = td['next', 'reward'] * start
            return td
        """,
    )
    mine = importlib.import_module("mine")
    assert factor(here, mine.fn) == 2
    mine.h2.start = mine.h2.stop = mine.h2.begin = mine.h2.end = 0.0
    assert factor(here, mine.fn) == 2


@pytest.mark.parametrize("form", ["mine.py:fn", "object"])
def test_a_file_saved_while_workers_start(here, form, workers, monkeypatch):
    """The workers compare what they load with what the request recorded."""
    monkeypatch.syspath_prepend(here)
    write("mine.py", "import h2\n" + TIMES.format("h2.gain()"))
    write("h2.py", "def gain():\n    return 2\n")
    fn = importlib.import_module("mine").fn if form == "object" else form
    prepare = driver.prepare_layout

    def late(*given):
        write("h2.py", "def gain():\n    return 3.0\n")  # of another size, or bytecode of the same second stays valid
        return prepare(*given)

    monkeypatch.setattr(driver, "prepare_layout", late)
    error = fails(here, fn, FunctionError, r"h2.py was edited while the run started", open_engine=workers)
    assert error.hint == "run it again"


def test_an_id_with_a_blank(here):
    run(here, lambda td: td, dest="my/a b")
    assert Dataset(here / "my" / "a b").id == "my/a b"


def test_a_file_in_the_current_directory_that_is_named_like_a_standard_module(here, capfd):
    write("queue.py", "raise RuntimeError('not the standard module')")
    write("json.py", "raise RuntimeError('not the standard module')")
    write(
        "mine.py",
        """
        def fn(td):
            td["next", "reward"] = td["next", "reward"] * 3
            return td
    """,
    )
    engine = open_engine("local", procs=2, address=None, preload=[driver.WORKER])
    try:
        assert factor(here, "mine.py:fn", open_engine=engine) == 3
    finally:
        engine.close()
    assert "not the standard module" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flag=no", "flag is the text 'no', and its default or annotation is bool"),
        ("count=three", "count is the text 'three', and its default or annotation is int"),
        ("factor=half", "factor is the text 'half', and its default or annotation is float"),
        ("mine.fn.factor=4", "'mine.fn' names no function"),
        ("factor", "is not key=value"),
    ],
)
def test_arguments_on_the_command_line_that_cannot_be_meant(here, capsys, text, said):
    write(
        "mine.py",
        """
        def fn(td, flag: bool = False, count=1, factor=2.0, free: "bool | str" = False):
            td["next", "reward"] = td["next", "reward"] * (0 if flag else factor)
            return td
    """,
    )
    words = ["preprocess", "my/input", "--fn", "mine.py:fn", "--dest", "my/output", "--root", str(here), "--procs", "1"]
    assert command_line([*words, "--args", text]) == 2
    assert said in " ".join(capsys.readouterr().err.split()) and not (here / "my" / "output").exists()
    assert command_line([*words, "--args", "flag=false", "--args", "fn.factor=4", "--args", "free=no"]) == 0


def test_environment_variables_that_a_function_reads(here, monkeypatch):
    write(
        "mine.py",
        """
        import os
        def fn(td):
            td["next", "reward"] = td["next", "reward"] * float(os.environ["RB_TEST_FACTOR"])
            return td
        def sets(td):
            os.environ["RB_TEST_SET"] = "1"
            return td
    """,
    )
    monkeypatch.setenv("RB_TEST_FACTOR", "2")
    assert factor(here, "mine.py:fn") == 2 == factor(here, "mine.py:fn")
    monkeypatch.setenv("RB_TEST_FACTOR", "3")
    with pytest.raises(DatasetExistsError, match=r"mine\.py:fn"):
        run(here, "mine.py:fn")
    monkeypatch.delenv("RB_TEST_SET", raising=False)
    for _ in range(2):
        run(here, "mine.py:sets", dest="my/sets")
