"""Dry runs write nothing."""

from __future__ import annotations

import json

from rbdata.cli import run as command
from rbdata.storage.dataset import Dataset


class TestDryRun:
    def test_writes_nothing(self, inputs, capsys):
        words = ["preprocess", "my/zstd", "--fn", "rbdata:resize_frames", "--dest", "my/dry", "--root", str(inputs)]
        words += ["--args", "height=12", "--args", "width=12", "--dry-run", "--json"]
        before = sorted(path.name for path in (inputs / "my").iterdir())
        assert command(words) == 0
        assert sorted(path.name for path in (inputs / "my").iterdir()) == before
        answer = json.loads(capsys.readouterr().out)["dry_run"]
        shapes = {leaf["name"]: leaf["shape"] for leaf in answer["output"]}
        assert shapes["observation"] == shapes["next/observation"] == [12, 12, 3]
        assert answer["estimated"]["steps"] == len(Dataset(inputs / "my" / "zstd"))
        assert answer["estimated"]["bytes"] > 0

    def test_with_a_first_pass(self, inputs, capsys):
        words = ["preprocess", "my/flat", "--fn", "rbdata:normalize_observations", "--dest", "my/dry"]
        assert command([*words, "--root", str(inputs), "--dry-run"]) == 0
        assert "tried  " in capsys.readouterr().out
