"""Files that functions open themselves are part of a request: an edited one is never mixed in, nor taken for the old one."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from preprocess_tools import make_input, run
from rbdata.cli import run as command_line
from rbdata.errors import DatasetExistsError, FunctionError, UnfinishedDatasetError
from rbdata.preprocess.driver import preprocess
from rbdata.preprocess.request import Listener, Request
from rbdata.storage.dataset import Dataset
from rbdata.storage.manifest import read_manifest


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A current directory for user code, with an input of rewards that are known."""
    make_input(tmp_path)
    monkeypatch.chdir(tmp_path)
    path, modules = [*sys.path], {*sys.modules}
    yield tmp_path
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.write_text(textwrap.dedent(text))
    return path


def factor(root: Path, fn, dest: str = "my/output", **options) -> float:
    """By how much a run multiplied the rewards."""
    made, source = run(root, fn, dest=dest, **options), Dataset(root / "my" / "input")
    return float((made["next/reward"] / source["next/reward"]).mean())


def opened(root: Path, dest: str = "my/output") -> dict:
    return (read_manifest(root / dest).lineage or {}).get("opened", {})


class Stop(Exception):
    pass


def interrupt(root: Path, fn, dest: str = "my/output", **options) -> None:
    """Begin a run, and end it after the first chunk."""

    def stop(index):
        raise Stop

    with pytest.raises(Stop):
        preprocess(Request("my/input", [fn], dest, root=root, batch_size=7, **options), Listener(on_part_done=stop))


def times(number: float, td):
    td["next", "reward"] = td["next", "reward"] * number
    return td


WAYS = {
    "numpy": (lambda path, value: np.save(path, np.array(value)), "np.load('table.npy')"),
    "mapped": (lambda path, value: np.save(path, np.array(value)), "np.load('table.npy', mmap_mode='r+')"),
    "torch": (lambda path, value: torch.save(torch.tensor(value), path), "torch.load('table.npy')"),
    "json": (lambda path, value: path.write_text(str(value)), "json.load(open('table.npy'))"),
    "pickle": (lambda path, value: path.write_bytes(pickle.dumps(value)), "pickle.load(open('table.npy', 'rb'))"),
    "os": (lambda path, value: path.write_text(str(value)), "float(os.read(os.open('table.npy', os.O_RDONLY), 9))"),
    "path": (lambda path, value: path.write_text(str(value)), "float(Path('table.npy').absolute().read_text())"),
}
IMPORTS = "import functools, json, os, pickle\nfrom pathlib import Path\nimport numpy as np\nimport torch\n"


@pytest.mark.parametrize(
    ("place", "way"), [*(("call", way) for way in WAYS), *((place, "numpy") for place in ("import", "cache", "helper"))]
)
def test_an_edited_file_is_another_request(here, way, place):
    save, load = WAYS[way]
    code = {
        "call": f"def fn(td):\n    td['next', 'reward'] = td['next', 'reward'] * float({load})\n    return td\n",
        "import": f"TABLE = [{load}]\n\ndef fn(td):\n    td['next', 'reward'] *= float(TABLE[0])\n    return td\n",
        "cache": (
            f"@functools.cache\ndef table():\n    return {load}\n\n"
            "def fn(td):\n    td['next', 'reward'] = td['next', 'reward'] * float(table())\n    return td\n"
        ),
        "helper": "import helper\n\ndef fn(td):\n    td['next', 'reward'] *= float(helper.table())\n    return td\n",
    }
    write("mine.py", IMPORTS + code[place])
    write("helper.py", IMPORTS + f"@functools.cache\ndef table():\n    return {load}\n")
    save(here / "table.npy", 2.0)
    assert factor(here, "mine.py:fn") == 2
    assert opened(here).keys() == {"table.npy"}
    assert factor(here, "mine.py:fn") == 2  # the same again
    save(here / "table.npy", 3.0)
    with pytest.raises(DatasetExistsError, match=r"differs in .*table\.npy|its code, its state or a value"):
        run(here, "mine.py:fn")
    assert factor(here, "mine.py:fn", force=True) == 3
    assert factor(here, "mine.py:fn", dest="my/other") == 3


@pytest.mark.parametrize("place", ["call", "state"])
def test_an_interrupted_run_is_not_continued_with_an_edited_file(here, place):
    class Table:
        def __init__(self):
            self.found = None

        def __call__(self, td):
            if self.found is None or place == "call":
                self.found = float(np.load("table.npy"))
            return times(self.found, td)

    np.save("table.npy", 2.0)
    interrupt(here, Table())
    np.save("table.npy", 3.0)
    with pytest.raises(
        UnfinishedDatasetError, match=r"files that the functions read have changed \(differs in table.npy\)"
    ):
        run(here, Table(), batch_size=7)
    np.save("table.npy", 2.0)
    assert factor(here, Table(), batch_size=7) == 2


def test_a_forced_run_begins_again(here):
    """Also where the unfinished one was forced."""

    def fn(td):
        return times(float(np.load("table.npy")), td)

    np.save("table.npy", 2.0)
    interrupt(here, fn, force=True)
    np.save("table.npy", 3.0)
    assert factor(here, fn, batch_size=7, force=True) == 3


def test_a_file_that_changes_meanwhile(here):
    def fn(td):
        return times(float(np.load("table.npy")), td)

    np.save("table.npy", 2.0)
    request = Request("my/input", [fn], "my/output", root=here, batch_size=7)
    with pytest.raises(FunctionError, match=r"table.npy was changed while your code read it"):
        preprocess(request, Listener(on_part_done=lambda index: np.save("table.npy", 3.0)))
    with pytest.raises(UnfinishedDatasetError, match=r"table.npy"):
        preprocess(request)


def test_workers_that_read_other_contents(here, kept_server):
    code = """
        import os, time
        import numpy as np

        def fn(td):
            fn.calls += 1
            while fn.calls > 25 and not os.path.exists("edited"):  # a part is at most 18 calls: one is finished here
                time.sleep(0.01)
            td["next", "reward"] *= float(np.load("table.npy"))
            return td

        fn.calls = 0
    """
    write("mine.py", code)
    np.save("table.npy", 2.0)
    request = Request("my/input", ["mine.py:fn"], "my/output", root=here, batch_size=7, procs=2)

    def edit(index):
        np.save("new.npy", 3.0)
        Path("new.npy").replace("table.npy")  # at once: the other process may be reading it
        Path("edited").touch()

    with pytest.raises(FunctionError, match=r"table.npy was changed while your code read it"):
        preprocess(request, Listener(on_part_done=edit))


def test_files_that_are_not_there_and_listings(here):
    """What appears later is a difference as well."""
    Path("tables").mkdir()

    def fn(td):
        try:
            with open("override.json") as file:  # noqa: PTH123
                return times(json.load(file), td)
        except FileNotFoundError:
            return times(1 + len([*Path("tables").glob("*.npy")]), td)

    assert factor(here, fn) == 1
    Path("tables/a.npy").write_text("")
    with pytest.raises(DatasetExistsError, match=r"differs in the names in tables\)"):
        run(here, fn)
    Path("tables/a.npy").unlink()
    assert factor(here, fn) == 1
    Path("override.json").write_text("5")
    with pytest.raises(DatasetExistsError, match=r"differs in override.json \(not there before\)\)"):
        run(here, fn)
    assert factor(here, fn, force=True) == 5
    Path("override.json").unlink()
    with pytest.raises(DatasetExistsError, match=r"differs in override.json \(not there now\)\)"):
        run(here, fn)


def test_what_functions_write_does_not_count(here):
    """Logs, caches that they make, files that they replace."""

    def fn(td):
        with open("log.txt", "a") as file:  # noqa: PTH123
            file.write("called\n")
        Path("log.txt").read_text()
        if not Path("cache.npy").exists():
            np.save("cache.npy", 2.0)
        Path("state.tmp").write_text(str(len(Path("log.txt").read_text())))
        os.replace("state.tmp", "state.txt")  # noqa: PTH105
        assert Path("state.txt").read_text()
        return times(float(np.load("cache.npy")), td)

    interrupt(here, fn)
    assert factor(here, fn, batch_size=7) == 2
    assert factor(here, fn, batch_size=7) == 2
    assert opened(here).keys() <= {"cache.npy"}  # which the second run may only have read


def test_a_database(here):
    def fn(td):
        with sqlite3.connect("numbers.db") as database:
            return times(database.execute("select value from numbers").fetchone()[0], td)

    with sqlite3.connect("numbers.db") as database:
        database.execute("create table numbers (value)")
        database.execute("insert into numbers values (2)")
    assert factor(here, fn) == 2
    with sqlite3.connect("numbers.db") as database:
        database.execute("update numbers set value = 3")
    with pytest.raises(DatasetExistsError, match=r"differs in numbers.db"):
        run(here, fn)


def test_large_files_are_told_by_size_and_time(here):
    def fn(td):
        return times(float(np.memmap("large.bin", np.uint8, "r")[0]), td)

    with Path("large.bin").open("wb") as file:
        file.write(b"\x02")
        file.truncate((64 << 20) + 1)
    assert factor(here, fn) == 2
    assert opened(here)["large.bin"].startswith(f"{(64 << 20) + 1} bytes, ")
    with Path("large.bin").open("r+b") as file:
        file.write(b"\x03")
    with pytest.raises(DatasetExistsError, match=r"differs in large.bin"):
        run(here, fn)


def test_files_elsewhere_have_their_paths(here, tmp_path_factory, monkeypatch):
    home, elsewhere = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setenv("HOME", str(home))
    for folder in (home, elsewhere):
        np.save(folder / "table.npy", 2.0)

    def fn(td):
        return times(float(np.load(home / "table.npy")) * float(np.load(elsewhere / "table.npy")), td)

    assert factor(here, fn) == 4
    assert opened(here).keys() == {"~/table.npy", str(elsewhere / "table.npy")}
    np.save(home / "table.npy", 3.0)
    with pytest.raises(DatasetExistsError, match=r"differs in ~/table.npy"):
        run(here, fn)


def test_what_is_no_data_of_the_user_does_not_count(here):
    """The input, installed packages, the system; the module itself, which is told by its code."""
    write(
        "mine.py",
        "import colorsys\n\ndef fn(td):\n    open('/etc/hostname').read()\n    import helper\n    return td\n",
    )
    write("helper.py", "K = 2\n")
    for procs in (1, 2):
        run(here, "mine.py:fn", dest=f"my/output{procs}", procs=procs)
        assert not opened(here, f"my/output{procs}")


def test_a_statistics_pass_after_functions_that_read_files(here):
    """The statistics of an interrupted pass are of the file as it was."""

    def fn(td):
        number = float(np.load("table.npy"))
        td["observation"] = td["observation"].float() * number
        td["next", "observation"] = td["next", "observation"].float() * number
        return td

    def stop(stage):
        if stage.startswith("first pass") and ", 2 of" in stage:
            raise Stop

    request = Request("my/input", [fn, "rbdata:normalize_observations"], "my/output", root=here, batch_size=7)
    np.save("table.npy", 2.0)
    with pytest.raises(Stop):
        preprocess(request, Listener(on_stage=stop))
    np.save("table.npy", 3.0)
    preprocess(request)
    run(here, fn, dest="my/first", batch_size=7)
    calm = run(here, "rbdata:normalize_observations", dest="my/calm", batch_size=7, source="my/first")
    torch.testing.assert_close(Dataset(here / "my" / "output")["observation"], calm["observation"])


def test_a_helper_edited_between_the_check_and_the_first_call(here):
    write("mine.py", "def fn(td):\n    import helper\n    td['next', 'reward'] *= helper.K\n    return td\n")
    write("helper.py", "K = 2\n")
    request = Request("my/input", ["mine.py:fn"], "my/output", root=here, batch_size=7)

    def edit(stage):
        if stage.startswith("trying"):
            write("helper.py", "K = 3\n")

    with pytest.raises(FunctionError, match=r"helper.py was edited while the run started"):
        preprocess(request, Listener(on_stage=edit))
    assert factor(here, "mine.py:fn") == 3


def test_modules_named_at_run_time(here):
    code = """
        import importlib

        def fn(td, name="pl"):
            td["next", "reward"] *= importlib.import_module(name + "ug").K
            return td
    """
    write("mine.py", code)
    write("plug.py", "K = 2\n")
    assert factor(here, "mine.py:fn") == 2
    write("plug.py", "K = 3\n")
    with pytest.raises(DatasetExistsError, match=r"differs in plug.py"):
        run(here, "mine.py:fn")
    assert factor(here, "mine.py:fn", force=True) == 3


def test_on_the_command_line(here, kept_server, capfd):
    write("mine.py", IMPORTS + "def fn(td):\n    td['next', 'reward'] *= float(np.load('table.npy'))\n    return td\n")
    words = ["preprocess", "my/input", "--fn", "mine.py:fn", "--dest", "my/output", "--root", str(here)]
    np.save("table.npy", 2.0)
    assert command_line([*words, "--procs", "2"]) == 0
    np.save("table.npy", 3.0)
    assert command_line(words) == 1
    assert "(differs in table.npy)" in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize(
    "read",
    [
        "os.environ[NAME]",
        "os.environ.get(f'SCALE_{NAME[-1]}')",
        "os.path.expandvars(f'${NAME}')",
        "os.getenv(NAME)",
        "{**os.environ}['SCALE_X']",
    ],
)
def test_environment_variables_by_any_name(here, monkeypatch, read):
    head = "import os\n\nNAME = 'SCALE_X'\n"
    write("mine.py", f"{head}\ndef fn(td):\n    td['next', 'reward'] *= float({read})\n    return td\n")
    monkeypatch.setenv("SCALE_X", "2")
    assert factor(here, "mine.py:fn") == 2
    assert factor(here, "mine.py:fn") == 2
    monkeypatch.setenv("SCALE_X", "3")
    with pytest.raises(
        DatasetExistsError, match=r"differs in .*(the environment variable SCALE_X|its code, its state)"
    ):
        run(here, "mine.py:fn")
    assert factor(here, "mine.py:fn", force=True) == 3


def test_environment_variables_that_say_nothing(here, monkeypatch):
    """Those that libraries ask for, that the function sets itself, and a copy of all."""

    def fn(td):
        os.environ["SCALE_Y"] = str(int(os.environ.get("SCALE_Y", "0")) + 1)
        subprocess.run([sys.executable, "-c", ""], env={**os.environ, "SCALE_Z": "1"}, check=True)
        assert [*os.environ.items()] and dict(os.environ) and os.environ.copy() and Path.home()
        return td

    monkeypatch.setenv("SCALE_Y", "0")
    run(here, fn, batch_size=200)
    assert not opened(here)


def test_code_that_is_read_in_other_ways_than_by_import(here):
    """As text, by ``importlib.util``, by ``runpy``, as data of a package."""
    Path("pkg").mkdir()
    code = """
        import importlib.util, pkgutil, runpy

        def fn(td):
            spec = importlib.util.spec_from_file_location("loaded", "one.py")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            found = {}
            exec(open("two.py").read(), found)
            factor = module.K * found["K"] * runpy.run_path("three.py")["K"] * float(pkgutil.get_data("pkg", "four.txt"))
            td["next", "reward"] = td["next", "reward"] * factor
            return td
    """
    write("pkg/__init__.py", "")
    write("mine.py", code)
    files = {"one.py": "K = {}", "two.py": "K = {}", "three.py": "K = {}", "pkg/four.txt": "{}"}
    for name, text in files.items():
        write(name, text.format(2))
    assert factor(here, "mine.py:fn") == 16
    for name, text in files.items():
        write(name, text.format(3))
        with pytest.raises(DatasetExistsError, match=rf"differs in {name}"):
            run(here, "mine.py:fn")
        write(name, text.format(2))
    assert factor(here, "mine.py:fn") == 16


def test_a_module_that_imports_another_one_where_it_is_asked(here):
    write("mine.py", "import lazy\n\ndef fn(td):\n    td['next', 'reward'] *= lazy.K\n    return td\n")
    write("lazy.py", "def __getattr__(name):\n    import hidden\n\n    return getattr(hidden, name)\n")
    write("hidden.py", "K = 2\n")
    assert factor(here, "mine.py:fn") == 2
    write("hidden.py", "K = 3\n")
    with pytest.raises(DatasetExistsError, match=r"differs in hidden.py"):
        run(here, "mine.py:fn")
    assert factor(here, "mine.py:fn", force=True) == 3


def test_files_that_c_libraries_read(here):
    """They are not seen when they are opened: where code, a variable or an argument names them, they count."""
    import h5py
    import pyarrow
    import pyarrow.parquet
    from tensordict import TensorDict

    def hdf5(value):
        with h5py.File("table.h5", "w") as file:
            file["k"] = value

    def parquet(value):
        pyarrow.parquet.write_table(pyarrow.table({"k": [value]}), "table.parquet")

    def memmap(value):
        shutil.rmtree("table", ignore_errors=True)
        TensorDict(k=torch.tensor([value]), batch_size=[1]).memmap("table")

    path = Path("table.parquet")
    functions: dict[Any, Any] = {
        hdf5: (lambda td: times(float(h5py.File("table.h5")["k"][()]), td), {}),
        parquet: (lambda td: times(pyarrow.parquet.read_table(path)["k"][0].as_py(), td), {}),
        memmap: (lambda td: times(float(TensorDict.load_memmap("table")["k"]), td), {}),
    }
    functions[lambda value: hdf5(value)] = (lambda td, where: times(float(h5py.File(where)["k"][()]), td), "table.h5")
    for number, (make, (fn, where)) in enumerate(functions.items()):
        options: dict = {"dest": f"my/output{number}", "args": {"where": where} if where else {}}
        make(2.0)
        assert factor(here, fn, **options) == 2
        assert factor(here, fn, **options) == 2
        make(3.0)
        with pytest.raises(DatasetExistsError, match=r"differs in table"):
            run(here, fn, **options)
        assert factor(here, fn, force=True, **options) == 3


def test_folders_that_functions_make_do_not_count(here):
    import tempfile

    def fn(td):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "a").write_text("2")
            return times(float(next(Path(folder).iterdir()).read_text()), td)

    assert factor(here, fn, batch_size=200) == 2
    assert factor(here, fn, batch_size=200) == 2
    assert not opened(here)
