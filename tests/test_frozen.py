"""What must stay as it is whatever becomes of the code inside: bytes on disk, batches by seed, exit codes, JSON answers.

Only the public surface is used: ``import rbdata``, the command line, files. The results are compared with those below
``tests/data/frozen``, which change only on purpose, with ``FREEZE_RBDATA=1 pytest tests/test_frozen.py``. The folders there
were written once and stay for good (where one is missing, freezing writes it): what was made earlier must stay readable.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from enum import Enum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gymnasium
import numpy as np
import pytest
import rbdata
import torch
from rbdata import errors
from rbdata.cli import run as command_line
from rbdata.errors import RbdataError
from tensordict import TensorDict

DATA = Path(__file__).parent / "data"
FROZEN = DATA / "frozen"
FOLDERS = FROZEN / "folders"
#: Files whose bytes do not depend on the version of zstd.
PLAIN = (".memmap", ".json")
FREEZE = bool(os.environ.get("FREEZE_RBDATA"))

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


# -- golden data -----------------------------------------------------------------------------------------------------


def versions(*packages: str) -> dict[str, str]:
    return {package: version(package).split("+")[0] for package in packages}


def check(file: str, name: str, value: Any, *needs: str) -> None:
    """Compare with what is frozen, or freeze it; skip where the packages that decide about it are other versions."""
    path = FROZEN / f"{file}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    value = json.loads(json.dumps(value))
    if FREEZE:
        path.parent.mkdir(parents=True, exist_ok=True)
        known[name] = {"versions": versions(*needs), "value": value}
        path.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
        return
    assert name in known, f"not frozen yet: FREEZE_RBDATA=1 pytest {__file__}"
    then, wanted = known[name]["versions"], known[name]["value"]
    others = [package for package, number in versions(*then).items() if number != then[package]]
    if (
        others == ["zstandard"] and "files" in value
    ):  # what it decides about is left out: ``values`` says what is in there
        for record in (value, wanted):
            record["files"] = {name: told for name, told in record["files"].items() if name.endswith(PLAIN)}
    elif others:
        pytest.skip(f"frozen with {then}")
    assert value == wanted


def digest(data: Any) -> str:
    """All keys and values of a TensorDict."""
    made = hashlib.sha256()
    for key in sorted(data.keys(True, True), key=str):
        value = data.get(key)
        if "weight" in str(key):
            value = (value * 1e4).round()  # powers differ in the last bit between processors
        made.update(f"{key} {value.dtype} {list(value.shape)}".encode())
        made.update(value.contiguous().numpy().tobytes())
    return made.hexdigest()


def lasting(value: Any, loose: set[str], digits: int = 9) -> Any:
    """JSON without the values of ``loose`` keys, floats rounded: their last digits differ between processors."""
    if isinstance(value, dict):
        return {key: "..." if key in loose else lasting(one, loose, digits) for key, one in value.items()}
    if isinstance(value, list):
        return [lasting(one, loose, digits) for one in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def times(value: Any) -> Iterator[str]:
    """All times and dates of a JSON answer."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if key in ("created", "date"):
            yield one
        yield from times(one)


def contents(folder: Path) -> dict[str, Any]:
    """All that is lasting in a finished dataset: no prose, times, versions, places."""
    manifest = json.loads((folder / "rbdata.json").read_text())
    assert sorted(manifest["files"]) == sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "rbdata.json"
    )
    record = {key: manifest[key] for key in ("format", "format_version", "id", "steps", "episodes", "leaves", "counts")}
    source = ("name", "upstream", "dataset", "options", "shards", "all_shards", "keys", "left_out")
    record["source"] = {key: manifest["source"][key] for key in source if key in manifest["source"]}
    record |= {key: lasting(manifest[key], {"note"}) for key in ("spaces", "returns", "lengths")}
    record["parts"] = [{**part, "name": "..."} for part in manifest["parts"]]
    record["files"] = {}
    for name, ranges in manifest["files"].items():
        told = [f"{length}:{crc}" for length, crc in ranges]
        record["files"][name] = " ".join([*told, hashlib.sha256((folder / name).read_bytes()).hexdigest()])
    record["values"] = digest(rbdata.open_dataset(folder).to_tensordict())
    return record


# -- raw data --------------------------------------------------------------------------------------------------------


class Frames(gymnasium.Env):
    """Grey pictures of a moving square; the reward is the time."""

    observation_space = gymnasium.spaces.Box(0, 255, (40, 40), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self) -> None:
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self.picture(), {}

    def step(self, action):
        self.time += 1
        over = self.time == 5 + 4 * (self.episode % 5)
        return self.picture(), float(self.time), over and self.episode % 3 > 0, over and self.episode % 3 == 0, {}

    def picture(self) -> np.ndarray:
        picture = (np.arange(1600) // 7 % 50).astype(np.uint8).reshape(40, 40)
        row, column = self.time * 3 % 32, self.episode * 5 % 32
        picture[row : row + 8, column : column + 8] = 255
        return picture


if "frozen/Frames-v0" not in gymnasium.registry:
    gymnasium.register("frozen/Frames-v0", Frames, disable_env_checker=True, order_enforce=False)


@pytest.fixture(scope="module")
def openml(tmp_path_factory) -> Path:
    """A mirror of OpenML: recorded answers under their paths on the site."""
    folder = tmp_path_factory.mktemp("openml")
    for number in (61, 292, 42585):
        recorded = {path.name: gzip.decompress(path.read_bytes()) for path in (DATA / "openml").glob(f"id_{number}/*")}
        about = recorded[f"api-v1-jd-{number}.json.gz"]
        pages = {
            f"api/v1/json/data/{number}": about,
            f"api/v1/json/data/features/{number}": recorded[f"api-v1-jdf-{number}.json.gz"],
        }
        place = urlsplit(json.loads(about)["data_set_description"]["url"]).path.strip("/")
        pages[place] = next(page for name, page in recorded.items() if name.endswith(".arff.gz"))
        for name, page in pages.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(page)
    return folder


# -- folders from raw data -------------------------------------------------------------------------------------------

#: What to download: id, mirror (below tests/data; openml's is made), options. The first word of a name is the source.
DOWNLOADS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "atari": ("Breakout/1", "atari", {}),
    "atari raw": ("Breakout/1", "atari", {"codec": "raw", "shards": "0-1"}),
    "atari ted": ("Breakout/1", "atari", {"layout": "ted", "shards": "1-2"}),
    "atari zero": ("Breakout/1", "atari", {"unknown_next": "zero", "shards": [0, 2]}),
    "rlu": ("atari/Breakout/1", "rl_unplugged", {}),
    "rlu raw": ("atari/Breakout/1", "rl_unplugged", {"codec": "raw", "upstream": "rl-unplugged"}),
    "rlu ted": ("atari/Breakout/1", "rl_unplugged", {"layout": "ted", "shards": "1"}),
    "d4rl": ("d4rl/hopper-full-replay-v2", "d4rl", {}),
    "d4rl zero": ("walker2d-random-v0", "d4rl", {"unknown_next": "zero"}),
    "d4rl timeouts": ("halfcheetah-random-v2", "d4rl", {"episodes_by": "timeouts"}),
    "d4rl horizon": ("walker2d-random-v0", "d4rl", {"episodes_by": "horizon", "horizon": 50}),
    "minari hdf5": ("minari/cartpole/random-v0", "minari", {}),
    "minari arrow": ("minari/cartpole/arrow-v0", "minari", {}),
    "minari dict": ("minari/cartpole/dict-v0", "minari", {"layout": "ted"}),
    "minari truncated": ("minari/cartpole/truncated-v0", "minari", {"unknown_next": "zero"}),
    "minari mujoco": ("minari/mujoco/hopper-v0", "minari", {}),
    "openml": ("openml/61", "openml", {}),
    "openml sparse": ("openml/292", "openml", {"standardize": "numeric"}),
    "openml missing": ("openml/42585", "openml", {"missing": "drop", "one_hot": True}),
    "gymnasium": ("gymnasium/CartPole-v1", None, {"steps": 300, "seed": 3}),
    "gymnasium several": ("gymnasium/CartPole-v1", None, {"steps": 300, "num_envs": 3, "unknown_next": "zero"}),
    "gymnasium frames": ("gymnasium/frozen/Frames-v0", None, {"steps": 150, "seed": 1}),
    "gymnasium frames raw": ("gymnasium/frozen/Frames-v0", None, {"steps": 150, "codec": "raw", "num_envs": 2}),
    "gymnasium frames ted": ("gymnasium/frozen/Frames-v0", None, {"steps": 150, "layout": "ted"}),
}
#: What to convert, the same way.
CONVERSIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "atari converted": ("atari/dqn/Breakout/1/replay_logs", {"shards": "3"}),
    "d4rl pixels": ("frozen/raw/pixels", {}),
    "d4rl pixels raw": ("frozen/raw/pixels-next", {"codec": "raw"}),
    "d4rl pixels zstd": ("frozen/raw/pixels-next", {"codec": "zstd"}),
    "d4rl pixels ted": ("frozen/raw/pixels", {"layout": "ted"}),
    "d4rl pixels zero": ("frozen/raw/pixels", {"unknown_next": "zero"}),
    "minari converted": ("minari/cartpole/arrow-v0", {}),
    "openml converted": ("frozen/raw/table", {"target": "y"}),
}


#: The runs that are killed early and late, and continued each time: the same bytes as at once.
INTERRUPTED = {"atari", "rlu", "d4rl", "minari hdf5", "openml", "gymnasium frames"}


@pytest.mark.parametrize("name", [*DOWNLOADS, *CONVERSIONS])
def test_folders(name, openml, tmp_path, kill_at):
    for number in (3, 9, 0) if name in INTERRUPTED else (0,):
        kill_at(number)
        with suppress(Killed):
            if name in DOWNLOADS:
                dataset, mirror, options = DOWNLOADS[name]
                where = mirror and str(openml if mirror == "openml" else DATA / mirror)
                path = rbdata.download(dataset, root=tmp_path, mirror=where, procs=1, **options)
            else:
                where, options = CONVERSIONS[name]
                path = rbdata.convert(DATA / where, "my/x", source=name.split()[0], root=tmp_path, procs=1, **options)
    check("folders", name, contents(path), "zstandard", *(["gymnasium", "numpy"] if name.startswith("gym") else []))


class Killed(BaseException):
    """The end of a process, as far as the library can tell: nothing catches it."""


@pytest.fixture
def kill_at(monkeypatch):
    """``kill_at(n)``: the n-th file that is synced to the disk from now on ends the run; 0: none does.

    Files that are fetched at once, in threads, do not count: which of them are there at the end depends on the machine.
    """
    real, left = os.fsync, [0]

    def killing(file: int) -> None:
        if threading.current_thread() is threading.main_thread():
            left[0] -= 1
            if left[0] == 0:
                raise Killed
        real(file)

    monkeypatch.setattr(os, "fsync", killing)
    return partial(left.__setitem__, 0)


# -- preprocessing ---------------------------------------------------------------------------------------------------


def change(td):
    """Per batch: other rewards, a new leaf, one leaf less."""
    td["next", "reward"] = td["next", "reward"] * 0.5 - 1
    td["speed"] = td["next", "observation"][..., -1] - td["observation"][..., -1]
    return td.exclude("action")


def choose(td, least):
    """Per episode: drops some, shortens others."""
    if len(td) < least:
        return None
    td["number"] = torch.arange(len(td))
    return td[: len(td) - len(td) % 2]


CHAINS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "batch": ("low", change, {"batch_size": 16}),
    "episode": ("low", [choose, "rbdata:returns_to_go"], {"per": "episode", "args": {"choose.least": 11}}),
    "frames by episode": ("frames", choose, {"per": "episode", "args": {"least": 6}, "codec": "zstd"}),
    "resized": ("frames", "rbdata:resize_frames", {"args": {"height": 20, "width": 20}}),
    "resized raw": ("frames", "rbdata:resize_frames", {"args": {"height": 36, "width": 36}, "codec": "raw"}),
    "copied rows": ("frames", "rbdata:clip_rewards", {}),
    "windows": ("frames", "rbdata:scale_rewards", {"args": {"scale": 2}, "slice_len": 4, "layout": "ted"}),
    "first steps": ("frames", "rbdata:clip_rewards", {"num_frames": 20}),
}


@pytest.mark.parametrize("name", CHAINS)
def test_preprocess(name, tmp_path):
    source, functions, options = CHAINS[name]
    path = rbdata.preprocess(FOLDERS / source, functions, dest="my/result", root=tmp_path, procs=0, **options)
    check("preprocess", name, contents(path), "zstandard", "torch")


# -- folders that were written earlier, and batches from them --------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory) -> None:
    """The folders are in the repository; freezing writes those that are not."""
    made = {"low": ("CartPole-v1", 250), "frames": ("frozen/Frames-v0", 60)}
    for name, (env, steps) in made.items():
        if FREEZE and not (FOLDERS / name).exists():
            path = rbdata.download(f"gymnasium/{env}", root=tmp_path_factory.mktemp("old"), steps=steps, codec="zstd")
            shutil.copytree(path, FOLDERS / name)


@pytest.mark.parametrize("name", ["low", "frames"])
def test_old_folders(name):
    folder = FOLDERS / name
    dataset = rbdata.open_dataset(folder)
    assert command_line(["verify", str(folder), "-q"]) == 0
    windows = dataset.read([0, 20, len(dataset) - 1], before=3, length=8)
    found = {"id": dataset.id, "contents": contents(folder), "episode": digest(dataset.episode(2))}
    found |= {"steps": digest(dataset[5:40]), "windows": digest(windows)}
    check("old", name, found)


LOADS: dict[str, dict[str, Any]] = {
    "transitions": {},
    "a pass": {"replacement": False},
    "a pass in order": {"replacement": False, "shuffle": False, "drop_last": True},
    "slices": {"slice_len": 4},
    "slices of transitions": {"slice_len": 4, "uniform_over": "transitions"},
    "short slices": {"slice_len": 8, "strict_length": False, "pad_output": True},
    "a slice an episode": {"num_slices": 2, "replacement": False, "strict_length": False},
    "stacks": {"frame_stack": 3},
    "n steps": {"n_step": 3, "gamma": 0.5},
    "stacks of slices": {"slice_len": 4, "frame_stack": 2},
    "priorities": {"alpha": 0.7, "beta": 0.5},
    "the second of two": {"replacement": False, "rank": 1, "world_size": 2},
}


@pytest.mark.parametrize("folder", ["low", "frames"])
def test_batches_of_datasets(folder):
    found = {}
    for name, options in LOADS.items():
        buffer = rbdata.load(FOLDERS / folder, batch_size=16, seed=5, **options)
        found[name] = [digest(buffer.sample()) for _ in range(3)]
    check("batches", folder, found, "torch")


@pytest.mark.parametrize("name", ["low", "frames"])
def test_batches_of_remote_datasets(name, tmp_path):
    """Those of the same dataset on this disk."""
    known = json.loads((FROZEN / "batches.json").read_text())[name]
    for load, options in LOADS.items():
        url = (FOLDERS / name).as_uri()
        buffer = rbdata.load(url, batch_size=16, seed=5, cache_dir=tmp_path, cache_limit="64MB", **options)
        found = [digest(buffer.sample()) for _ in range(3)]
        if known["versions"] == versions("torch"):
            assert found == known["value"][load], load


def test_batches_of_an_interrupted_download(tmp_path, kill_at):
    arguments = {"root": tmp_path, "mirror": str(DATA / "atari"), "procs": 1, "codec": "raw"}
    kill_at(20)
    with suppress(Killed):
        rbdata.download("Breakout/1", **arguments)
    kill_at(0)
    dataset = rbdata.open_dataset(rbdata.download("Breakout/1", **arguments))
    buffer = rbdata.load(dataset, batch_size=16, seed=5, frame_stack=3)
    check("batches", "interrupted", [len(dataset), *(digest(buffer.sample()) for _ in range(3))], "torch")


def collected() -> TensorDict:
    """What a training run stores: four episodes, the last one unfinished."""
    steps, ends = torch.arange(90), torch.tensor([8, 29, 44])
    done = torch.isin(steps, ends)[:, None]
    observation = torch.stack([steps, steps**2 % 17], 1).float()
    after = {"observation": observation + 1, "reward": steps[:, None] / 8, "done": done}
    after |= {"terminated": done & (steps[:, None] != 29), "truncated": done & (steps[:, None] == 29)}
    never = torch.zeros(90, 1, dtype=torch.bool)
    root = {"observation": observation, "action": steps % 4, "done": never, "terminated": never, "truncated": never}
    return TensorDict({**root, "next": TensorDict(after, [90])}, [90])


SAMPLERS = {
    "random": lambda: rbdata.RandomSampler(),
    "a pass": lambda: rbdata.SamplerWithoutReplacement(),
    "priorities": lambda: rbdata.PrioritizedSampler(100, 0.7, 0.5),
    "slices": lambda: rbdata.SliceSampler(slice_len=4),
    "slices, a pass": lambda: rbdata.SliceSamplerWithoutReplacement(num_slices=3, strict_length=False),
    "slices by priority": lambda: rbdata.PrioritizedSliceSampler(100, 0.7, 0.5, slice_len=4),
}


def test_batches_of_buffers():
    found = {}
    for name, sampler in SAMPLERS.items():
        storage = rbdata.LazyTensorStorage(100)
        buffer = rbdata.TensorDictReplayBuffer(storage=storage, sampler=sampler(), batch_size=12, seed=5)
        found[name] = []
        for data in collected().split(30):
            buffer.extend(data)
            batch = buffer.sample()
            found[name].append(digest(batch))
            if "priorit" in name:
                buffer.update_priority(batch["index"], batch["index"] / 16 + 0.25)
    check("batches", "buffers", found, "torch")


def collecting(name: str) -> Any:
    """A buffer in the middle of a run: the third piece of the data is in it, three batches are drawn."""
    sampler = SAMPLERS[name]()
    buffer = rbdata.TensorDictReplayBuffer(storage=rbdata.LazyTensorStorage(70), sampler=sampler, batch_size=12, seed=5)
    for data in collected().split(30):
        buffer.extend(data)
        batch = buffer.sample()
        if "priorit" in name:
            buffer.update_priority(batch["index"], batch["index"] / 16 + 0.25)
    return buffer


@pytest.mark.parametrize("name", SAMPLERS)
def test_checkpoints(name, tmp_path):
    """Those written earlier load, and what is drawn from them is what the run itself would have drawn."""
    buffer, folder = collecting(name), FROZEN / "checkpoints" / name.replace(",", "").replace(" ", "_")
    if FREEZE and not folder.exists():
        buffer.dumps(folder)
    buffer.dumps(tmp_path / "now")
    found = [digest(buffer.sample()) for _ in range(3)]
    for written in (folder, tmp_path / "now"):
        other = collecting(name)
        other.empty()
        other.loads(written)
        assert [digest(other.sample()) for _ in range(3)] == found, written
    check("batches", f"after a checkpoint, {name}", found, "torch")


# -- what programs are written against -------------------------------------------------------------------------------


def signature_of(value: Any) -> str:
    """Names, kinds and defaults of the arguments; annotations may become more exact."""
    parameters = inspect.signature(value).parameters.values()
    shown = str(inspect.Signature([one.replace(annotation=inspect.Parameter.empty) for one in parameters]))
    return re.sub(r" at 0x\w+", "", shown)


def test_signatures():
    """Public functions, the constructors and methods of public classes. What is added is frozen on purpose."""
    found: dict[str, Any] = {}
    for name in rbdata.__all__:
        value = getattr(rbdata, name)
        if not inspect.isclass(value):
            found[name] = signature_of(value) if callable(value) else type(value).__name__
            continue
        if issubclass(value, Enum):  # its constructor is Python's
            found[name] = {one.name: one.value for one in value}
            continue
        methods = {key: one for key, one in inspect.getmembers(value, inspect.isroutine) if not key.startswith("_")}
        # From Python 3.13 on a cached property counts as a routine, with the module of its function.
        methods = {key: one for key, one in methods.items() if callable(one)}
        own = {key: one for key, one in methods.items() if (getattr(one, "__module__", "") or "").startswith("rbdata")}
        found[name] = {"()": signature_of(value), **{key: signature_of(one) for key, one in own.items()}}
    check("signatures", "public", found, "torch", "tensordict", "gymnasium")


def test_errors():
    """The code and exit code of every error, and what it may be caught as."""
    kinds = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, RbdataError)]
    bases = {kind.__name__: [base.__name__ for base in kind.__mro__[1:-1]] for kind in kinds}
    found = {kind.__name__: [kind.code, kind.exit_code, bases[kind.__name__]] for kind in kinds}
    check("signatures", "errors", found)


# -- the command line ------------------------------------------------------------------------------------------------

#: Of a JSON answer only the keys of these are frozen: times, versions, prose, hashes of source code.
LOOSE = {"seconds", "created", "rbdata_version", "gymnasium_version", "version", "versions", "environment", "engine"}
LOOSE |= {"message", "hint", "notes", "note", "citation", "licence", "problem", "what", "free_bytes"}
LOOSE |= {"date", "figures", "tags"}  # of the catalogue
LOOSE |= {"source_sha256", "file_sha256", "fingerprint"}


@pytest.fixture
def root(tmp_path) -> Path:
    for folder, dataset in {"low": "gymnasium/CartPole-v1", "frames": "gymnasium/frozen/Frames-v0"}.items():
        shutil.copytree(FOLDERS / folder, tmp_path / "root" / dataset)
    return tmp_path / "root"


def test_commands(root, capsys, monkeypatch):
    """Exit codes and JSON answers, one command after the other on one root."""
    monkeypatch.setenv("RBDATA_ROOT", str(root))
    monkeypatch.delenv("RBDATA_PROCS")
    found = {}
    for number, line in enumerate((FROZEN / "commands.txt").read_text().splitlines()):
        words = line.replace("DATA", str(DATA)).replace("MIRROR", f"{root.parent}/mirror").split()
        if words[:1] == ["damage"]:
            with (root / words[1]).open("r+b") as file:
                file.write(b"damaged")
            continue
        capsys.readouterr()
        code = command_line([*words, "--json"])
        answer = capsys.readouterr().out.replace(str(root), "ROOT").replace(str(DATA), "DATA")
        answer = answer.replace(str(root.parent), "PARENT")
        document = json.loads(answer) if answer.startswith("{") else answer.strip() and "text"
        assert all(datetime.fromisoformat(one.replace("Z", "+00:00")) for one in times(document))  # ISO 8601
        loose = LOOSE | ({"bytes"} if words[:1] == ["delete"] else set())  # how many depends on the disk
        found[f"{number:02} {line}"] = [code, lasting(document, loose, 5)]
    check("commands", "commands", found, "torch", "zstandard")


def test_the_program(root):
    """As a process, nobody at its terminal."""
    words = [Path(sys.executable).with_name("rbdata"), "delete", "CartPole-v1", "--root", root]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(list(root.rglob("rbdata.json"))) == 2
