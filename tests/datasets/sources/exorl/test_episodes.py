"""ExORL: the rows of dm_env order, episodes by number, rewards of other tasks, archives that are not as they should be."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import rbdata
from effort import examples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from paths import DATA
from rbdata.errors import CorruptSourceError, MissingExtraError, UsageError
from transitions_truth import Truth

EXORL = DATA / "exorl"


def convert(path: Path, root: Path, **options) -> rbdata.Dataset:
    return rbdata.open_dataset(
        rbdata.convert(path, "my/x", root=root, source="exorl", progress=False, procs=0, **options)
    )


def packed(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def rows(n: int = 5, reward_columns: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "observation": rng.normal(size=(n, 4)).astype("f4"),
        "action": rng.normal(size=(n, 2)).astype("f4"),
        "reward": rng.random((n, reward_columns)).astype("f4"),
        "discount": np.ones((n, 1), "f4"),
        "physics": rng.normal(size=(n, 6)),
    }


@pytest.mark.parametrize("name", ["walker/rnd", "jaco/diayn"])
def test_transitions_are_those_that_were_meant(tmp_path, name):
    """Trap 79 for states: action and reward of a row led to its observation."""
    rbdata.download(f"exorl/{name}", root=tmp_path, mirror=EXORL, procs=0)
    dataset = rbdata.open_dataset(f"exorl/{name}", root=tmp_path)
    Truth.of_file(EXORL / f"truth/{name.replace('/', '-')}.npz").check(dataset)


def test_what_an_algorithm_adds_is_kept(tmp_path):
    dataset = convert(EXORL / "jaco" / "diayn.zip", tmp_path)
    with zipfile.ZipFile(EXORL / "jaco" / "diayn.zip") as archive, archive.open("buffer/episode_000000_40.npz") as file:
        stored = dict(np.load(file))
    assert np.array_equal(dataset["info", "skill"][:40], stored["skill"][1:])
    assert np.array_equal(dataset["info", "physics"][:40], stored["physics"][:-1])
    assert np.array_equal(dataset["next", "info", "physics"][:40], stored["physics"][1:])


@st.composite
def archives(draw):
    """Members of an archive in any order, some of them no episodes, and the transitions in the order of numbers."""
    truth, members, columns = Truth(), {}, draw(st.sampled_from([1, 3, 4]))
    for number in sorted(draw(st.lists(st.integers(0, 2000), min_size=1, max_size=5, unique=True))):
        arrays = rows(draw(st.integers(2, 8)), columns, number)
        if draw(st.booleans()):
            arrays["discount"][-1] = 0
        if columns == 1:
            arrays["reward"] = arrays["reward"].astype("f8")
        members[f"buffer/episode_{number:06d}_{len(arrays['action']) - 1}.npz"] = packed(**arrays)
        end = "truncated" if arrays["discount"][-1] else "terminated"
        truth.add(arrays["observation"], arrays["action"][1:], arrays["reward"][1:, 0], end)
    others = {"video/0.mp4": b"x", "buffer/": b"", "other/episode.npz": b"", "__MACOSX/._a": b"z"}
    return truth, dict(draw(st.permutations(sorted({**members, **others}.items()))))


@settings(max_examples=examples(8), phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
@given(archives())
def test_archives_of_any_shape(made):
    truth, members = made
    with TemporaryDirectory() as folder:
        dataset = convert(zipped(Path(folder) / "x.zip", members), Path(folder) / "root")
        truth.check(dataset)


# -- rewards ---------------------------------------------------------------------------------------------------------------


def test_rewards_of_the_maze_have_names(tmp_path):
    """Trap 82."""
    (tmp_path / "point_mass_maze").mkdir()
    arrays = rows(7, 4)
    zipped(tmp_path / "point_mass_maze" / "rnd.zip", {"buffer/episode_000000_6.npz": packed(**arrays)})
    how = {"root": tmp_path / "root", "mirror": tmp_path, "procs": 0}
    for task, column in ((None, 0), ("point_mass_maze_reach_bottom_left", 2)):
        rbdata.download("exorl/point_mass_maze/rnd", task=task, force=True, **how)
        dataset = rbdata.open_dataset("exorl/point_mass_maze/rnd", root=tmp_path / "root")
        assert np.array_equal(dataset["next/reward"][:, 0], arrays["reward"][1:, column])
        for number, name in enumerate(("top_left", "top_right", "bottom_left", "bottom_right")):
            assert np.array_equal(dataset[f"info/reward/point_mass_maze_reach_{name}"], arrays["reward"][1:, number])
        assert any("4 rewards a step" in note for note in dataset.manifest.notes)


def test_several_rewards_of_another_domain_are_numbered(tmp_path):
    arrays = rows(7, 3)
    dataset = convert(zipped(tmp_path / "x.zip", {"episode_000000_6.npz": packed(**arrays)}), tmp_path / "root")
    assert np.array_equal(dataset["info/reward/2"], arrays["reward"][1:, 2])


@pytest.mark.parametrize("task, message", [("cheetah_run", "not a task of walker"), ("walker_fly", "not a task whose")])
def test_a_task_of_another_domain_is_refused(tmp_path, task, message):
    with pytest.raises(UsageError, match=message):
        rbdata.download("exorl/walker/rnd", root=tmp_path, mirror=EXORL, task=task)


def test_without_dm_control_a_task_is_refused_before_anything_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(MissingExtraError, match="dm_control"):
        rbdata.download("exorl/walker/rnd", root=tmp_path, mirror=EXORL, task="walker_run")
    assert not (tmp_path / "exorl").exists()


@pytest.mark.parametrize("task", ["walker_run", "cartpole_swingup"])
def test_rewards_of_a_task_are_those_of_its_environment(tmp_path, task):
    """Trap 81: also where the reward depends on the control, which states do not have."""
    suite = pytest.importorskip("dm_control.suite")
    domain, name = task.split("_")
    env = suite.load(domain, name, task_kwargs={"random": 3}, environment_kwargs={"flat_observation": True})
    rng, spec = np.random.default_rng(0), env.action_spec()
    step, made = env.reset(), {"observation": [], "action": [], "reward": [], "discount": [], "physics": []}
    action = np.zeros(spec.shape, "f4")
    for _ in range(40):
        values = step.observation["observations"], action, [0.0], [1.0], env.physics.state()
        for key, value in zip(made, values):
            made[key].append(np.array(value, np.float64 if key == "physics" else np.float32))
        truth = made.setdefault("truth", [])
        truth.append(step.reward or 0.0)
        action = rng.uniform(spec.minimum, spec.maximum).astype("f4")
        step = env.step(action)
    truth = np.array(made.pop("truth"), np.float32)
    arrays = {key: np.stack(values) for key, values in made.items()}
    zipped(tmp_path / "x.zip", {"buffer/episode_000000_39.npz": packed(**arrays)})
    dataset = convert(tmp_path / "x.zip", tmp_path / "root", task=task)
    assert np.allclose(dataset["next/reward"][:, 0], truth[1:], atol=1e-6)
    assert dataset.manifest.counts["recomputed_rewards"] == 39


# -- what is not sound -----------------------------------------------------------------------------------------------------


def _with_a_pickle(arrays):
    arrays["action"] = np.array([[{}]] * 5)


CHANGES = {
    "rows": lambda arrays: arrays.update(action=arrays["action"][:4]),
    "key": lambda arrays: arrays.pop("discount"),
    "pickle": _with_a_pickle,
    "text": lambda arrays: arrays.update(observation=np.array(["a"] * 5)),
    "scalar": lambda arrays: arrays.update(reward=np.float32(1)),
    "discounts": lambda arrays: arrays.update(discount=np.ones((5, 2), "f4")),
    "reward": lambda arrays: arrays.update(reward=np.full((5, 1), np.nan, "f4")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_episode_that_is_not_sound_is_named(tmp_path, change):
    arrays = rows()
    CHANGES[change](arrays)
    file = io.BytesIO()
    np.savez(file, **arrays)
    zipped(tmp_path / "x.zip", {"buffer/episode_000000_4.npz": file.getvalue()})
    with pytest.raises(CorruptSourceError, match=r"episode_000000_4|episode 0"):
        convert(tmp_path / "x.zip", tmp_path / "root")
    assert not (tmp_path / "root" / "my").exists()


def test_archives_that_are_not_sound(tmp_path):
    whole = (EXORL / "walker" / "rnd.zip").read_bytes()
    bomb = {"buffer/episode_000000_1.npz": bytes(65 << 20)}
    for number, (content, message) in enumerate(
        {
            b"": "zip",
            whole[: len(whole) // 2]: "zip",
            whole[:2000] + b"\x55" * 40 + whole[2040:]: "episode_000000",
            zipped(tmp_path / "a", {"video/0.mp4": b"x"}).read_bytes(): "no episodes",
            zipped(tmp_path / "b", {"../episode_000000_1.npz": b"x"}).read_bytes(): "leads out",
            zipped(tmp_path / "c", bomb).read_bytes(): "unpacks to",
            zipped(tmp_path / "d", {"buffer/episode_000000_1.npz": b"no zip"}).read_bytes(): "episode_000000_1",
        }.items()
    ):
        (tmp_path / "x.zip").write_bytes(content)
        with pytest.raises(CorruptSourceError, match=message):
            convert(tmp_path / "x.zip", tmp_path / f"root{number}")
        assert not (tmp_path / f"root{number}" / "my").exists()
    (tmp_path / "x.zip").write_bytes(whole)
    assert len(convert(tmp_path / "x.zip", tmp_path / "root1")) == 341  # where it failed before
