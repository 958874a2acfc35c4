"""What the command line says and asks for the sources beside Atari: plans, options, listings, nothing to convert."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from atari_truth import write_run as write_ring
from d4rl_truth import make, write
from minari_hub import hub
from minari_tools import FIXTURES
from openml_server import openml_server
from paths import DATA
from rbdata.cli import run
from rbdata.cli.options import parse_key_values
from rbdata.datasets import fetch
from rbdata.errors import UsageError
from rlu_writer import make_episodes
from rlu_writer import write_run as write_episodes
from servers import closed_port, http_server

D4RL = DATA / "d4rl"
FILE = D4RL / "gym_mujoco_v2" / "halfcheetah_random-v2.hdf5"


@pytest.fixture
def call(capsys):
    """Run a command line; returns (exit code, stdout, stderr)."""

    def ask(*words):
        capsys.readouterr()
        code = run([str(word) for word in words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return ask


# -- before and after ------------------------------------------------------------------------------------------------


def test_a_whole_file_is_announced_before_it_is_fetched_and_counted_when_it_is_read(tmp_path, call):
    words = ["download", "halfcheetah-random-v2", "--root", tmp_path]
    with http_server(D4RL) as server:
        code, answer, told = call(*words, "--mirror", server.url, "--dry-run", "--json")
        (planned,) = json.loads(answer)["datasets"]
        assert code == 0 and planned["steps"] is None and planned["episodes"] is None
        assert planned["plan"]["fetch_bytes"] == planned["bytes"] == FILE.stat().st_size
        code, answer, told = call(*words, "--mirror", server.url)
    assert code == 0
    lines = told.splitlines()
    assert lines[1].startswith("  from http://127.0.0.1")
    assert lines[2] == "  fetch 379 kB in 1 file, then read it"
    assert lines[3].startswith("  write 1,485 steps, 15 episodes, about 468 kB to ")
    assert " 0 bytes" not in told and " 0 parts" not in told


@pytest.mark.parametrize("source", ["d4rl", "openml", "minari"])
def test_what_will_be_written_is_said_within_a_few_percent(source, tmp_path, call):
    """Trap 64, where there are no frames: the estimate is about what is written then."""
    with openml_server() as server:
        places = {"d4rl": ("d4rl/hopper-full-replay-v2", D4RL), "openml": ("openml/3", server.url)}
        name, mirror = places.get(source, ("minari/mujoco/hopper-v0", FIXTURES))
        code, _, told = call("download", name, "--mirror", mirror, "--root", tmp_path)
        assert code == 0, told
    amount, unit = told.split("about ")[1].split(" to ")[0].split()
    files = [path for path in (tmp_path / name).rglob("*") if path.is_file() and path.suffix != ".json"]
    written = sum(path.stat().st_size for path in files if path.stat().st_blocks)  # zeros everywhere are holes
    assert float(amount) * {"kB": 1e3, "MB": 1e6}[unit] == pytest.approx(written, rel=0.02)


# -- options -----------------------------------------------------------------------------------------------------------


FOREIGN = {
    "Pong/5": ("--steps", "3"),
    "hopper-medium-v2": ("--upstream", "auto"),
    "minari/D4RL/door/human-v2": ("--horizon", "3"),
    "openml/61": ("--seed", "3"),
    "CartPole-v1": ("--target", "x"),
    "d4rl/hopper-medium-v2": ("--shards", "0"),
    "gymnasium/CartPole-v1": ("--shards", "0"),
}


@pytest.mark.parametrize("dataset", FOREIGN)
def test_options_of_other_sources_are_refused_before_anything_is_asked(dataset, tmp_path, call, monkeypatch):
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("a place is looked at")

    for name in ("acquire.open_location", "acquire.open_mirror", "copies.open_location", "published.open_location"):
        monkeypatch.setattr(f"rbdata.datasets.{name}", opened)
    for mirror in ((), ("--mirror", "gs://lab/x")):
        code, _, told = call("download", dataset, *FOREIGN[dataset], *mirror, "--root", tmp_path)
        assert code == 2 and "hint: " in told and ("has no option" in told or "have no shards" in told)
    assert not list(tmp_path.iterdir())


def test_options_of_other_sources_are_refused_where_the_dataset_is_complete(tmp_path, call):
    words = ("--source", "d4rl", "--name", "my/x", "--root", tmp_path)
    assert call("convert", FILE, *words)[0] == 0
    assert call("convert", FILE, *words)[0] == 0
    code, _, told = call("convert", FILE, *words, "--target", "x")
    assert code == 2 and "d4rl has no option target for convert" in told


def test_parse_env_args():
    words = ["map_name=8x8", "is_slippery=False", "size=[2, 3]", "label=a=b", "gain=0.5", "none=null", "empty="]
    assert parse_key_values(words, "--env-arg") == {
        "map_name": "8x8",
        "is_slippery": False,
        "size": [2, 3],
        "label": "a=b",
        "gain": 0.5,
        "none": None,
        "empty": "",
    }
    for bad in (["gain"], ["=1"], ["a b=1"], ["x=1", "x=2"]):
        with pytest.raises(UsageError, match="--env-arg"):
            parse_key_values(bad, "--env-arg")


def test_keys_of_a_map_may_have_levels(tmp_path, call):
    arrays = {"x/pos": np.zeros((4, 2)), "act": np.zeros(4), "r": np.zeros(4), "done": np.arange(4) == 3}
    np.savez(tmp_path / "own.npz", **arrays)
    words = ["--name", "my/own", "--root", tmp_path / "root", "--map", "observation/pos/0=x/pos"]
    assert call("convert", tmp_path / "own.npz", *words, "--map", "next/reward=r")[0] == 0
    code, _, told = call("convert", tmp_path / "own.npz", *words, "--map", "=r")
    assert code == 2 and "for example: --map observation/state=obs" in told


def test_parse_env_args_reach_the_environment(tmp_path, call):
    words = ["download", "gymnasium/FrozenLake-v1", "--steps", 400, "--root", tmp_path]
    assert call(*words, "--env-arg", "map_name=8x8", "--env-arg", "is_slippery=false")[0] == 0
    manifest = json.loads((tmp_path / "gymnasium" / "FrozenLake-v1" / "rbdata.json").read_text())
    assert manifest["source"]["options"]["env_args"] == {"map_name": "8x8", "is_slippery": False}
    assert manifest["spaces"]["observation"]["n"] == 64
    code, _, told = call(*words, "--env-arg", "map_name=4x4")
    assert code == 1 and "env_args" in told  # another recording than the one that is there
    code, _, told = call(*words, "--env-arg", "size=9", "--force")
    assert code == 2 and "does not take" in told and "--env-arg" in told
    assert call(*words, "--env-arg", "size", "--force")[0] == 2
    assert call("download", "openml/61", "--env-arg", "a=1", "--mirror", tmp_path)[0] == 2


# -- listings ------------------------------------------------------------------------------------------------------


def test_list_asks_only_when_told_to_and_remembers(tmp_path, call, monkeypatch):
    words = ["list", "minari", "--root", tmp_path, "--json"]
    with hub({"farama-minari": FIXTURES}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        assert "minari/cartpole/dict-v0" not in call(*words)[1]
        assert not server.faults.requests
        code, answer, _ = call(*words, "--refresh")
        assert code == 0 and server.faults.requests
    with closed_port() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        code, again, _ = call(*words)
    assert code == 0 and json.loads(again) == json.loads(answer)
    document = json.loads(answer)
    entry = next(one for one in document["datasets"] if one["id"] == "minari/cartpole/random-v0")
    assert (entry["state"], entry["steps"], entry["episodes"]) == ("absent", 443, 20) and entry["bytes"] > 10_000
    assert document["remotes"]["minari"]["remote"] == "hf://farama-minari"
    assert document["remotes"]["minari"]["date"].endswith("Z")
    code, rows, _ = call(*words[:-1], "--match", "cartpole/random*")
    assert rows.splitlines()[1].split()[:2] == ["minari/cartpole/random-v0", "443"]


def test_list_refresh_where_nobody_answers(tmp_path, call, monkeypatch):
    monkeypatch.setattr(fetch, "FetchOptions", partial(fetch.FetchOptions, attempts=1))
    with closed_port() as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("RBDATA_OPENML_MIRROR", url)
        code, answer, told = call("list", "--refresh", "--match", "*iris*", "--root", tmp_path)
        assert code == 0 and answer.splitlines()[1].startswith("openml/iris ")  # the rest is listed all the same
        assert "minari: " in told and "openml: " in told
        assert call("list", "minari", "--refresh", "--root", tmp_path)[0] == 1
    code, _, told = call("list", "d4rl", "--refresh", "--root", tmp_path)
    assert code == 2 and "no remote listing" in told


# -- nothing to convert --------------------------------------------------------------------------------------------


def empty_d4rl(top: Path) -> list:
    arrays = make([1, 1], ["timeout", "timeout"])
    write(top / "x.hdf5", {key: value[:0] for key, value in arrays.items()})
    return ["convert", top, "--source", "d4rl", "--name", "my/x"]


def unknown_d4rl(top: Path) -> list:
    write(top / "x.hdf5", make([1, 1], ["timeout", "timeout"]))
    return ["convert", top, "--source", "d4rl", "--name", "my/x"]


def empty_openml(top: Path) -> list:
    (top / "x.arff").write_text("@relation t\n@attribute x real\n@attribute y {a,b}\n@data\n")
    return ["convert", top, "--source", "openml", "--name", "my/x", "--target", "y"]


def empty_minari(top: Path) -> list:
    import h5py

    with h5py.File(top / "main_data.hdf5", "w") as file:
        file.attrs["total_episodes"] = 0
    spaces = '{"type": "Discrete", "dtype": "int64", "n": 3, "start": 0}'
    about = {"data_format": "hdf5", "observation_space": spaces, "action_space": spaces, "minari_version": "0.5.4"}
    (top / "metadata.json").write_text(json.dumps({**about, "total_episodes": 0, "total_steps": 0}))
    return ["convert", top, "--source", "minari", "--name", "my/x"]


def empty_shards(top: Path) -> list:
    write_ring(top / "dqn" / "Qbert" / "2" / "replay_logs", 20, [1], still_open=True)
    return ["download", "Qbert/2", "--mirror", top]


def empty_episodes(top: Path) -> list:
    write_episodes(top, [make_episodes([[1, 1]], cut=[(0, 0), (0, 1)])])
    return ["download", "Qbert/1", "--mirror", top]


def empty_recording(top: Path) -> list:
    return ["download", "gymnasium/CartPole-v1", "--steps", 0]


EMPTY = {
    empty_d4rl: "holds no rows",
    unknown_d4rl: "no step whose successor is known",
    empty_openml: "holds no rows",
    empty_minari: "holds no episodes",
    empty_shards: "no complete step",
    empty_episodes: "no complete step",
    empty_recording: "steps is 0",
}


@pytest.mark.parametrize("build", EMPTY)
def test_no_dataset_of_no_steps(build, tmp_path, call):
    """There are none: raw data without a single step are refused, in words, and leave nothing behind."""
    raw, root = tmp_path / "raw", tmp_path / "root"
    raw.mkdir()
    code, answer, told = call(*build(raw), "--root", root, "--procs", 1)
    assert code == (2 if build is empty_recording else 1) and not answer
    assert EMPTY[build] in told and "Traceback" not in told
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_ids_that_differ_in_case_alone(tmp_path, call):
    """On a disk that does not tell them apart, the second is refused; here its folder is renamed by hand."""
    write(tmp_path / "raw" / "x.hdf5", make([5, 6], ["terminal", "terminal"]))
    words = ["convert", tmp_path / "raw", "--source", "d4rl", "--root", tmp_path, "--name"]
    assert call(*words, "my/Run")[0] == 0
    assert call(*words, "my/run")[0] == 0  # this disk tells them apart
    assert np.array_equal(*[np.fromfile(tmp_path / "my" / name / "action.memmap", "f4") for name in ("Run", "run")])
    (tmp_path / "my" / "Run").rename(tmp_path / "my" / "RUN")
    code, _, told = call(*words, "my/RUN")
    assert code == 1 and "differ in case alone" in told
