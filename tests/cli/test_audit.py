"""``rbdata audit``: what is printed where, and the exit codes."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from planted import play
from rbdata import cli


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def root(tmp_path):
    """A root with a clean dataset and one with a reward of NaN and an action that never varies."""
    play().write(tmp_path, "my/clean")
    spoilt = play(seed=1)
    spoilt["next/reward"][17] = np.nan
    spoilt["action"][:, 1] = 0
    spoilt.write(tmp_path, "my/spoilt")
    return tmp_path


@pytest.fixture
def call(root, capsys):
    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run(["audit", *map(str, words), "--root", str(root)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_findings_and_what_was_checked(call):
    code, answer, _ = call("my/spoilt")
    assert code == 0
    lines = answer.splitlines()
    assert lines[0] == "error reward_not_finite  next/reward" and "1,519 steps: 17" in lines[1]
    assert lines[2].startswith("  to a learner: ") and lines[3].startswith("note action_constant_column")
    assert lines[6].startswith("my/spoilt: 1 error, 1 note in ") and lines[7].startswith("  checked: ")
    code, answer, _ = call("my/clean")
    assert code == 0 and answer.startswith("my/clean: no findings in")


def test_strict_is_for_scripts(call):
    assert call("my/clean", "--strict")[0] == 0
    assert call("my/spoilt", "--strict")[0] == 1
    assert call("my/clean", "my/spoilt", "--strict", "-q")[:2] == (1, "my/spoilt\n")
    code, answer, _ = call("my/*", "--json", "--strict")
    document = json.loads(answer)
    assert (
        code == 1
        and document["ok"] is False
        and [one["id"] for one in document["datasets"]] == ["my/clean", "my/spoilt"]
    )
    assert document["findings"][0]["code"] == "reward_not_finite" and document["findings"][0]["first"] == [17]


def test_the_range_of_rewards_can_be_given(call):
    assert call("my/clean", "--strict", "--reward-range", "-100", "100")[0] == 0
    code, answer, _ = call("my/clean", "--strict", "--reward-range", "0", "1")
    assert code == 1 and "warning reward_out_of_range  next/reward" in answer and "outside 0 to 1 (as given)" in answer
    code, _, notes = call("my/clean", "--reward-range", "1", "0")
    assert code == 2 and "is empty" in notes


def test_what_cannot_be_audited_is_no_finding(call, root):
    for words in (["my/missing"], ["no/such/folder"], []):
        code, answer, notes = call(*words, "--strict")
        assert (code, answer) == (2, "") and notes.startswith("error: ")
    raw = root / "own.npz"
    np.savez(raw, observation=np.zeros((3, 2)))
    code, _, notes = call(raw)
    assert code == 2 and f"`rbdata convert {raw} --name my/own" in notes
    for file in (root / "my" / "spoilt").rglob("action.memmap"):
        file.write_bytes(b"")
    code, _, notes = call("my/spoilt", "--strict")
    assert code == 2 and "action.memmap" in notes


@pytest.mark.parametrize("width", [30, 60, 200])
def test_a_terminal_gets_sentences(root, monkeypatch, width):
    for name, value in (("TERM", "xterm"), ("COLUMNS", str(width)), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    terminal = Terminal()
    with redirect_stdout(terminal), redirect_stderr(terminal):
        assert cli.run(["audit", "my/clean", "my/spoilt", "--root", str(root)]) == 0
    shown = terminal.getvalue().rpartition("\x1b[2K")[2]  # what is left after the bar
    words = " ".join(shown.split())
    assert "error reward_not_finite my/spoilt, next/reward rewards are NaN or infinite (1 of" in words
    assert "to a learner: one such reward makes the loss, and then every weight, NaN" in words
    assert "my/clean: no findings in" in words and "checked: next/reward, flags, observation, action" in words
    assert max(map(len, shown.splitlines())) <= max(width, 45)
