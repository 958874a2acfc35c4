"""Dry runs write nothing."""

from __future__ import annotations

import json

import pytest
from preprocess_tools import make_input
from rbdata.cli import run as command
from rbdata.storage.dataset import Dataset


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    root = tmp_path_factory.mktemp("windows")
    for layout in ("flat", "zstd"):
        make_input(root, layout, id=f"my/{layout}")
    return root


class TestDryRun:
    def test_writes_nothing(self, shared, capsys):
        words = ["preprocess", "my/zstd", "--fn", "rbdata:resize_frames", "--dest", "my/dry", "--root", str(shared)]
        words += ["--args", "height=12", "--args", "width=12", "--dry-run", "--json"]
        before = sorted(path.name for path in (shared / "my").iterdir())
        assert command(words) == 0
        assert sorted(path.name for path in (shared / "my").iterdir()) == before
        answer = json.loads(capsys.readouterr().out)["dry_run"]
        shapes = {leaf["name"]: leaf["shape"] for leaf in answer["output"]}
        assert shapes["observation"] == shapes["next/observation"] == [12, 12, 3]
        assert answer["estimated"]["steps"] == len(Dataset(shared / "my" / "zstd"))
        assert answer["estimated"]["bytes"] > 0

    def test_with_a_first_pass(self, shared, capsys):
        words = ["preprocess", "my/flat", "--fn", "rbdata:normalize_observations", "--dest", "my/dry"]
        assert command([*words, "--root", str(shared), "--dry-run"]) == 0
        assert "tried\t" in capsys.readouterr().out
