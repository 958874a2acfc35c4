"""Every snippet of docs/sources/gymnasium.md, in order: files are written, commands and Python run."""

from __future__ import annotations

import contextlib
import io
import re
import sys

from paths import DATA
from rbdata.cli import run as command_line

PAGE = DATA.parents[1] / "docs" / "sources" / "gymnasium.md"
#: Commands that need what is not here, or take long.
LEFT_OUT = ("my_package", "ALE/", "download gymnasium/CartPole-v1\n")


def test_every_snippet(tmp_path, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(code) == 5
    (tmp_path / "pol.py").write_text(code[0])
    commands = re.findall(r"^rbdata (.*\n)", page, re.M)
    ran = [words for words in commands if not any(part in "rbdata " + words for part in LEFT_OUT)]
    assert len(ran) == 5
    for words in ran:
        assert command_line([*words.split("#")[0].split(), "-q"]) == 0, words
    for policy, more in (("lean_all", ["--num-envs", "8"]), ("Alternate", [])):
        words = [
            "download",
            "gymnasium/CartPole-v1",
            "--name",
            policy,
            "--policy",
            f"pol.py:{policy}",
            "--steps",
            "90",
            *more,
        ]
        assert command_line([*words, "-q"]) == 0
    names: dict = {}
    for block in code[1:]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, str(PAGE), "exec"), names)
        assert printed.getvalue().splitlines() == re.findall(r"print\(.*\)  # (.*)", block)
    sys.modules.pop("pol", None)
