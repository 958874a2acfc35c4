"""Datasets that grow: by episodes and by recordings, whatever kills them, and what is refused."""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium_envs
import numpy as np
import pytest
import rbdata
from rbdata.cli import run as command_line
from rbdata.datasets import own_data
from rbdata.datasets.ingest.request import Request
from rbdata.datasets.repair import repair
from rbdata.datasets.sources.arrays.reader import TablesUnit
from rbdata.errors import DamagedDatasetError, DatasetExistsError, UsageError
from rbdata.storage import join, part_file

gymnasium_envs.register()


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "root"


def episodes(first: int, count: int, frames: bool = False, **more: Any) -> Iterator[dict[str, Any]]:
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        length = 1 + number % 7
        states = rng.normal(size=(length + 1, 3))
        pixels = rng.integers(0, 9, (length + 1, 40, 40), np.uint8)
        yield {
            "observation": {"pixels": pixels, "state": states} if frames else states,
            "action": rng.normal(size=(length, 2)).astype(np.float32),
            "reward": rng.normal(size=length).astype(np.float32),
            "terminated": bool(number % 2),
            "truncated": not number % 2,
            **more,
        }


def assert_same(made: str, wanted: str) -> None:
    """The same values, episodes and statistics; all checksums are right."""
    one, other = rbdata.open_dataset(made), rbdata.open_dataset(wanted)
    assert len(one) == len(other) and one.manifest.schema.leaves == other.manifest.schema.leaves
    for name in ("starts", "lengths", "returns", "outcomes", "midway"):
        np.testing.assert_array_equal(getattr(one.episodes, name), getattr(other.episodes, name))
    for number in range(len(one.episodes)):
        steps, same = one.episode(number), other.episode(number)
        assert (steps == same).all()
    for name in ("returns", "lengths", "spaces", "counts", "notes"):
        assert getattr(one.manifest, name) == getattr(other.manifest, name)
    assert one.manifest.states == sum(part["states"] for part in one.manifest.parts)
    assert rbdata.verify(made).ok


FORMS: dict[str, dict[str, Any]] = {
    "small": {},
    "raw": {"frames": True, "codec": "raw"},
    "zstd": {"frames": True},
    "ted": {"frames": True, "layout": "ted"},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_dataset_grows_by_episodes(form: str, root: Path) -> None:
    options = dict(FORMS[form])
    frames = options.pop("frames", False)
    rbdata.from_episodes(episodes(0, 60, frames), "my/whole", **options)
    rbdata.from_episodes(episodes(0, 20, frames), "my/x", append=True, **options)
    before = rbdata.open_dataset("my/x")
    files = before.manifest.files
    rbdata.from_episodes(episodes(20, 30, frames), "my/x", append=True)  # is stored as the rows that are there
    rbdata.from_episodes(episodes(50, 10, frames), "my/x", append=True)
    assert_same("my/x", "my/whole")
    manifest = rbdata.open_dataset("my/x").manifest
    assert [one["episodes"] for one in manifest.source["appended"]] == [30, 10]
    assert manifest.parts[1]["first_state"] == before.manifest.states
    assert [part["number"] for part in manifest.parts] == [0, 1, 2]
    if frames and form != "ted":  # each run's frames have a range of their own
        name = next(name for name in files if "pixels" in name)
        assert len(manifest.files[name]) == 3 and manifest.files[name][:1] == files[name]
    # What was open still reads what there was.
    for number, one in enumerate(episodes(0, 20, frames)):
        np.testing.assert_array_equal(before.episode(number)["action"], one["action"])


def test_what_was_added_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    rbdata.from_episodes(episodes(0, 20), "my/x", environment="CartPole-v1")
    old = rbdata.open_dataset("my/x").manifest
    rbdata.from_episodes(episodes(20, 5), "my/x", append=True, identity="tuesday", unknown_next="zero")
    manifest = rbdata.open_dataset("my/x").manifest
    (added,) = manifest.source["appended"]
    assert added["identity"] == "tuesday" and added["options"]["unknown_next"] == "zero"
    assert added["steps"] == manifest.steps - old.steps and added["from"] == manifest.provenance["location"]
    assert added["created"] == manifest.provenance["created"]
    kept = {name: value for name, value in manifest.source.items() if name not in ("appended", "objects")}
    assert kept == {name: value for name, value in old.source.items() if name != "objects"}
    assert command_line(["inspect", "my/x"]) == 0
    assert f"1 time, {added['steps']} steps in 5 episodes" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(DatasetExistsError, match="identity 'tuesday' already"):
        rbdata.from_episodes(episodes(30, 5), "my/x", append=True, identity="tuesday")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda one: {"goal": np.zeros(len(one["reward"]))}, "goal is missing there"),
        (lambda one: {"action": one["action"].astype(float)}, r"action is float32 \[2\], raw, per step there, float64"),
        (lambda one: {"observation": one["observation"][:, :2]}, r"float64 \[3\].* float64 \[2\]"),
    ],
)
def test_other_leaves_are_refused(change: Any, told: str, root: Path) -> None:
    rbdata.from_episodes(episodes(0, 5), "my/x")
    before = contents(root)
    with pytest.raises(UsageError, match=told):
        rbdata.from_episodes((one | change(one) for one in episodes(5, 3)), "my/x", append=True)
    assert contents(root) == before


def test_an_order_of_keys_is_no_difference() -> None:
    rbdata.from_episodes(episodes(0, 9), "my/whole")
    rbdata.from_episodes(episodes(0, 5), "my/x")
    rbdata.from_episodes((dict(reversed(one.items())) for one in episodes(5, 4)), "my/x", append=True)
    assert_same("my/x", "my/whole")


def test_another_codec_is_refused_and_force_excludes_append() -> None:
    rbdata.from_episodes(episodes(0, 5, frames=True), "my/x")
    with pytest.raises(UsageError, match=r"observation/pixels is uint8 .*zstd, per state there, .*raw"):
        rbdata.from_episodes(episodes(5, 5, frames=True), "my/x", append=True, codec="raw")
    with pytest.raises(UsageError, match="force replaces"):
        Request("my/x", append=True, force=True)


def test_nothing_is_appended_to_a_damaged_dataset(root: Path) -> None:
    path = rbdata.from_episodes(episodes(0, 50, frames=True), "my/x")
    for file in ("action.memmap", "observation/pixels/offsets", "observation/pixels/blob", "episodes/length.memmap"):
        found = path / file
        content = found.read_bytes()
        found.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
        with pytest.raises(DamagedDatasetError, match="nothing is appended"):
            rbdata.from_episodes(episodes(50, 5, frames=True), "my/x", append=True)
        found.write_bytes(content)
        assert [one.name for one in path.parent.iterdir() if "writing" in one.name] == []
    rbdata.from_episodes(episodes(50, 5, frames=True), "my/x", append=True)


def test_what_is_appended_to_converted_files_cannot_be_fetched(tmp_path: Path) -> None:
    made = list(episodes(0, 5))
    joined = {key: np.concatenate([one[key] for one in made]) for key in ("action", "reward")}
    joined["observation"] = np.concatenate([one["observation"][:-1] for one in made])
    joined["terminated"] = np.append(np.zeros(len(joined["reward"]) - 1, bool), True)
    np.savez(tmp_path / "own.npz", **joined)
    path = rbdata.convert(tmp_path / "own.npz", "my/x")
    added = [{key: value for key, value in one.items() if key != "truncated"} for one in episodes(5, 5)]
    rbdata.from_episodes(added, "my/x", append=True)
    (path / "action.memmap").write_bytes(bytes((path / "action.memmap").stat().st_size))
    with pytest.raises(DamagedDatasetError, match="was appended to on this machine"):
        repair(path, rbdata.verify(path).problems)


# -- kills -----------------------------------------------------------------------------------------------------------------


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def in_a_child(action: Any) -> int:
    """The exit code of an action in a forked child, which need not import everything again."""
    pid = os.fork()
    if pid == 0:
        try:
            part_file._encoder.cache_clear()  # its threads are not here
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dying(action: Any, when: Any) -> Any:
    """The action, but a kill where ``when`` its arguments are so."""

    def called(*args: Any) -> Any:
        if when(*args):
            os.kill(os.getpid(), signal.SIGKILL)
        return action(*args)

    return called


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rbdata.from_episodes(episodes(0, 120, frames=True), "my/whole", root=tmp_path_factory.mktemp("whole"))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("where", ["parts", "join", "in the swap"])
def test_a_killed_append_leaves_the_dataset_and_is_continued(
    where: str, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TablesUnit, "keep_seconds", 0)
    monkeypatch.setattr(own_data, "_TOGETHER_EPISODES", 20)
    path = rbdata.from_episodes(episodes(0, 30, frames=True), "my/x")
    before, asked = contents(path), list[int]()

    def made(first: int, kill: int = -1) -> Iterator[dict[str, Any]]:
        asked.append(first)
        for number, one in enumerate(episodes(30 + first, 90 - first, frames=True), first):
            if number == kill:
                os.kill(os.getpid(), signal.SIGKILL)
            yield one

    def killed() -> None:
        calls = iter([False] * 5 + [True])
        if where == "join":
            monkeypatch.setattr(join, "_copy_range", dying(join._copy_range, lambda *_: next(calls)))
        if where == "in the swap":
            monkeypatch.setattr(Path, "rename", dying(Path.rename, lambda one, to: one.name == ".x.writing"))
        given = partial(made, kill=80) if where == "parts" else made
        rbdata.from_episodes(given, "my/x", append=True, identity="v1")

    assert in_a_child(killed) == -signal.SIGKILL
    if where != "in the swap":
        assert contents(path) == before
    if where == "in the swap":  # all was written: the next writer ends it
        with pytest.raises(DatasetExistsError, match="identity 'v1' already"):
            rbdata.from_episodes(made, "my/x", append=True, identity="v1")
    else:
        rbdata.from_episodes(made, "my/x", append=True, identity="v1")
    assert_same("my/x", str(whole))
    if where == "parts":
        assert 0 < asked[-1] <= 80
    assert {one.name for one in path.parent.iterdir()} <= {"x", ".x.lock"}


def test_an_interrupted_append_is_not_continued_onto_another_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_data, "_TOGETHER_EPISODES", 20)

    def failing(first: int) -> Iterator[dict[str, Any]]:
        yield from episodes(first, 50 - first)
        raise ZeroDivisionError

    path = rbdata.from_episodes(episodes(0, 5), "my/x")
    with pytest.raises(ZeroDivisionError):
        rbdata.from_episodes(failing, "my/x", append=True, identity="v1")
    shutil.rmtree(path)
    rbdata.from_episodes(episodes(7, 5), "my/x", root="elsewhere")
    Path("elsewhere/my/x").rename(path)
    with pytest.raises(DatasetExistsError):
        rbdata.from_episodes(failing, "my/x", append=True, identity="v1")


# -- recordings ------------------------------------------------------------------------------------------------------------


def test_a_recording_grows_by_others(root: Path) -> None:
    (Path.cwd() / "leans.py").write_text("def lean(observation):\n    return int(observation[2] > 0)\n")
    first = rbdata.record("CartPole-v1", name="x", steps=60, append=True)
    rbdata.record("CartPole-v1", name="y", steps=60)
    rbdata.record("CartPole-v1", "leans.py:lean", name="z", episodes=3, seed=5)
    before = rbdata.open_dataset(first)
    rbdata.record("CartPole-v1", "leans.py:lean", name="x", episodes=3, seed=5, append=True)
    grown, y, z = (rbdata.open_dataset(f"CartPole-v1@{name}") for name in "xyz")
    assert len(grown) == 60 + len(z) and len(before) == 60
    for key in ("observation", "action", "next/reward", "next/observation"):
        np.testing.assert_array_equal(grown[key], np.concatenate([y[key], z[key]]))
    np.testing.assert_array_equal(grown.episodes.returns, [*y.episodes.returns, *z.episodes.returns])
    manifest = grown.manifest
    assert manifest.source["options"] == y.manifest.source["options"]
    (added,) = manifest.source["appended"]
    assert added["options"] == z.manifest.source["options"] and added["policy_files"]
    assert manifest.counts["cut_episodes"] == 1 and manifest.counts["environments"] == 1
    assert rbdata.verify("CartPole-v1@x").ok
    with pytest.raises(DatasetExistsError, match="more recordings appended"):
        rbdata.record("CartPole-v1", name="x", steps=60)
    assert command_line(["download", "gymnasium/CartPole-v1@x", "-q"]) == 0  # it is there


def test_a_seed_is_used_once(root: Path) -> None:
    rbdata.record("CartPole-v1", steps=40, num_envs=4)
    rbdata.record("CartPole-v1", steps=40, seed=12, append=True)
    before = contents(root)
    for seed, num_envs in ((0, 1), (3, 1), (11, 2), (9, 5)):
        with pytest.raises(DatasetExistsError, match=r"with seed \d+ already") as raised:
            rbdata.record("CartPole-v1", steps=40, seed=seed, num_envs=num_envs, append=True)
        assert raised.value.hint == "give another seed, such as seed=13"
    assert contents(root) == before
    rbdata.record("CartPole-v1", steps=40, seed=13, append=True)
    assert len(rbdata.open_dataset("CartPole-v1")) == 120


def test_objects_grow_a_recording_and_other_spaces_are_refused() -> None:
    def make() -> gymnasium.Env:
        return gymnasium.make("CartPole-v1")

    def act(observation: Any) -> int:
        return int(observation[0] > 0)

    rbdata.record(make, act, name="x", episodes=2, version="a", append=True)
    rbdata.record(make, lambda observation: 1, name="x", episodes=2, seed=1, version="b", append=True)
    with gymnasium.make("CartPole-v1") as env:
        rbdata.record(env, "random", name="x", episodes=2, seed=2, append=True)
    dataset = rbdata.open_dataset("CartPole-v1@x")
    assert len(dataset.episodes) == 6
    appended = dataset.manifest.source["appended"]
    assert [one.get("version") for one in appended] == ["b", None]
    assert [one["options"]["seed"] for one in appended] == [1, 2]
    with pytest.raises(DatasetExistsError, match="more recordings appended"):
        rbdata.record(make, act, name="x", episodes=2, version="a")

    class Wider(gymnasium.Wrapper):
        def __init__(self) -> None:
            super().__init__(make())
            self.observation_space = gymnasium.spaces.Box(-9, 9, (4,), np.float32)

    with pytest.raises(UsageError, match="another observation space"):
        rbdata.record(Wider, act, name="x", episodes=1, seed=3, append=True)
