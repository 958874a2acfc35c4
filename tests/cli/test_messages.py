"""Messages that say what is so, and hints that work: never the command that was typed, no temporary names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rbdata
from rbdata.cli import run as command_line
from rbdata.errors import UsageError

ALONE = "def act(observation):\n    return int(observation[2] > 0) if observation.shape == (4,) else {}['one']\n"


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "root"


@pytest.fixture
def said(capsys):
    def run(*words: object, code: int = 1) -> str:
        capsys.readouterr()
        assert command_line(list(map(str, words))) == code
        return capsys.readouterr().err

    return run


def dataset(name: str, **observation: np.ndarray) -> Path:
    (steps,) = {len(rows) for rows in observation.values()}
    arrays = {f"observation/{key}": rows for key, rows in observation.items()}
    arrays |= {"action": np.zeros(steps), "reward": np.zeros(steps), "episode": np.arange(steps) // 51}
    return rbdata.from_arrays(arrays, name)


def test_several_files_are_to_be_given_as_their_folder(said, tmp_path):
    told = said("convert", tmp_path / "a.npz", tmp_path / "b.npz", "--name", "my/x", code=2)
    assert "of several files give the folder" in told


def test_other_options_are_stated_with_both_values(said):
    assert command_line(["download", "gymnasium/CartPole-v1", "--steps", "30", "-q"]) == 0
    assert "steps (30 there, 40 asked for)" in said("download", "gymnasium/CartPole-v1", "--steps", 40)


def test_slices_longer_than_the_episodes_say_how_long_these_are(said):
    dataset("my/short", a=np.zeros((102, 2)))
    told = said("sample", "my/short", "--slice-len", 1000, code=2)
    assert "1,000 steps" in told and "--slice-len 50 or less" in told
    for length in (50, 7, 1):  # any length gives whole slices
        assert command_line(["sample", "my/short", "--slice-len", str(length), "-q"]) == 0


def test_common_leaves_are_not_advised_where_no_observation_is_common():
    one, other = dataset("my/one", a=np.zeros((60, 2))), dataset("my/other", b=np.zeros((60, 2)))
    with pytest.raises(UsageError) as refused:
        rbdata.concat([one, other])
    assert "no observation in common" in str(refused.value) and "keys=" not in str(refused.value)
    both = dataset("my/both", a=np.zeros((60, 2)), b=np.zeros((60, 2)))
    with pytest.raises(UsageError, match='keys="common"'):
        rbdata.concat([one, both])


def test_a_policy_for_one_environment_is_told_that_observations_are_stacked(said):
    Path("pol.py").write_text(ALONE)
    words = ("download", "gymnasium/CartPole-v1", "--policy", "pol.py:act", "--steps", 40)
    assert "2 observations stacked, and returns 2 actions" in said(*words, "--num-envs", 2)
    assert command_line([*map(str, words), "-q"]) == 0


def test_a_changed_file_is_not_answered_with_the_command_that_was_typed(said, monkeypatch):
    """An unfinished run whose function was edited: the same words do not continue it."""
    Path("fn.py").write_text("def half(td):\n    return td.set('observation', td['observation'] / 2)\n")
    rbdata.from_arrays(
        {
            "observation": np.zeros((90, 80, 80), np.uint8),
            "action": np.zeros(90),
            "reward": np.zeros(90),
            "episode": np.zeros(90),
        },
        "my/frames",
    )
    words = ("preprocess", "my/frames", "--fn", "fn.py:half", "--dest", "my/half", "--procs", "1")
    with monkeypatch.context() as patched:
        patched.setattr(
            "rbdata.datasets.ingest.pipeline.begin_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert command_line(list(words)) == 130
    Path("fn.py").write_text("def half(td):\n    return td.set('observation', td['observation'] / 3)\n")
    told = said(*words)
    assert "unfinished" in told and "--force" in told and "rbdata preprocess" not in told and "undo" in told


def test_a_dry_run_in_a_pipe_says_what_is_assumed(tmp_path, capsys):
    """As on a terminal."""
    columns = {"observation": np.arange(10.0).reshape(5, 2), "action": np.zeros(5), "reward": np.zeros(5)}
    np.savez(tmp_path / "own.npz", done=np.arange(5) == 4, **columns)
    words, assumed = ["convert", str(tmp_path / "own.npz"), "--dry-run"], "done is taken as terminated"
    assert command_line(words) == 0 and assumed in capsys.readouterr().out
    assert command_line([*words, "--json"]) == 0 and assumed in capsys.readouterr().out
