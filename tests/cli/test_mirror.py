"""``rbdata mirror``, ``rbdata config`` and the options of single sources."""

from __future__ import annotations

import json
import re

import pytest
import rbdata
from rbdata.cli import run
from rbdata.cli.console import Console


@pytest.fixture
def answer(capsys):
    """Run a command line; returns (exit code, stdout, stderr)."""

    def ask(*words):
        code = run([str(word) for word in words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return ask


@pytest.fixture
def root(tmp_path, answer):
    where = tmp_path / "here"
    code, _, told = answer("download", "gymnasium/CartPole-v1", "--steps", 300, "--seed", 1, "--root", where)
    assert code == 0, told
    return where


def test_a_round_trip_through_a_mirror(root, tmp_path, answer, monkeypatch):
    monkeypatch.setattr(Console, "on_terminal", property(lambda self: True))
    mirror, there = tmp_path / "mirror", tmp_path / "there"
    assert answer("mirror", "push", "CartPole-v1", mirror, "--root", root)[0] == 0
    code, listed, _ = answer("mirror", "ls", mirror, "--json")
    assert code == 0
    assert "gymnasium/CartPole-v1" in listed
    json.loads(listed)
    code, shown, told = answer(
        "download", "gymnasium/CartPole-v1", "--steps", 300, "--seed", 1, "--mirror", mirror, "--root", there
    )
    assert code == 0, told
    assert "Downloaded gymnasium/CartPole-v1 in " in shown  # it was recorded elsewhere
    assert answer("verify", "CartPole-v1", "--root", there)[0] == 0
    one, other = rbdata.open_dataset("CartPole-v1", root=root), rbdata.open_dataset("CartPole-v1", root=there)
    assert bool((one.to_tensordict() == other.to_tensordict()).all())


def test_an_empty_mirror_and_one_that_is_not_there(tmp_path, answer):
    (tmp_path / "empty").mkdir()
    assert answer("mirror", "ls", tmp_path / "empty")[0] == 0
    for words in (("ls",), ("rm", "CartPole-v1", "--yes")):
        code, _, told = answer("mirror", *words, tmp_path / "nowhere")
        assert code == 1
        assert told.startswith(f"error: no such folder: {tmp_path}/nowhere\nhint: check the spelling")
    assert not (tmp_path / "nowhere").exists()


def test_what_is_removed_from_a_mirror_is_a_row_in_a_pipe(root, tmp_path, answer):
    assert answer("mirror", "push", "CartPole-v1", tmp_path / "m", "--root", root)[0] == 0
    for option, verb in (("--dry-run", "would delete"), ("--yes", "deleted")):
        code, row, told = answer("mirror", "rm", "CartPole-v1", tmp_path / "m", option)
        name, files, size, where = re.split(r" {2,}", row.splitlines()[1].strip())
        assert (code, name, where) == (0, "gymnasium/CartPole-v1", str(tmp_path / "m"))
        assert int(files) > 10 and size.endswith("kB")
        assert told.startswith(f"{verb} gymnasium/CartPole-v1, {files} files")


def test_config_says_where_each_setting_comes_from(tmp_path, answer, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "by-environment"))
    code, told, _ = answer("config", "--json")
    assert code == 0
    assert "by-environment" in json.dumps(json.loads(told))
    code, told, _ = answer("config")
    assert code == 0
    assert "RBDATA_ROOT" in told


def test_options_of_other_sources_are_refused(tmp_path, answer):
    code, _, told = answer("download", "gymnasium/CartPole-v1", "--one-hot", "--root", tmp_path)
    assert code == 2
    assert "one_hot" in told
    code, _, told = answer("download", "Pong/5", "--steps", 5, "--root", tmp_path, "--mirror", tmp_path)
    assert code == 2
    assert "steps" in told


def test_the_same_in_python(tmp_path):
    path = rbdata.download("gymnasium/CartPole-v1", root=tmp_path, steps=50, seed=2)
    assert len(rbdata.open_dataset(path)) == 50
