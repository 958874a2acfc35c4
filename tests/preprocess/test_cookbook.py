"""Every snippet and command of docs/cookbook.md, in order, over small datasets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import rbdata
import torch
from rbdata.cli import run as command
from storage_tools import make_episodes, write_dataset

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
BLOCK = re.compile(r"^```(python)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def make_inputs(root: Path) -> None:
    """The two datasets that the page describes."""
    rng = np.random.default_rng(0)
    walker = make_episodes(rng.integers(20, 40, 40).tolist(), shape=(8,))
    for episode in walker:
        episode.steps["action"] = rng.uniform(-1, 1, (len(episode), 2)).astype("float32")
    write_dataset(root, walker, "flat", id="my/walker")
    frames = make_episodes([60, 80, 90], shape=(84, 84), dtype="uint8")
    write_dataset(root, frames, "zstd", id="my/frames")


def test_the_cookbook(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    make_inputs(tmp_path)
    recipes = tmp_path / "recipes.py"
    blocks = BLOCK.findall(PAGE.read_text())
    recipes.write_text("\n".join(code for _, code in blocks if code.startswith("# recipes.py")))
    names: dict[str, Any] = {"rbdata": rbdata, "torch": torch}
    made: dict[str, rbdata.Dataset] = {}
    for language, code in blocks:
        if code.startswith("# recipes.py"):
            continue
        if language:
            exec(compile(code, str(PAGE), "exec"), names)
            continue
        for line in code.splitlines():
            program, *words = shlex.split(line)
            assert program == "rbdata"
            assert command([*words, "--quiet"]) == 0, (line, capsys.readouterr().err)
            dest = words[words.index("--dest") + 1]
            made[dest] = rbdata.open_dataset(dest)
    walker = rbdata.open_dataset("my/walker")
    assert made["my/frames42"]["observation"].shape[1:] == (42, 42)
    assert len(made["my/first200"]) == 200
    assert made["my/best"].manifest.episodes == 4
    assert made["my/discrete"]["action"].unique().tolist() == [0, 1, 2, 3, 4]
    assert made["my/train"].manifest.episodes + made["my/validation"].manifest.episodes == 40
    assert made["my/validation"].manifest.episodes > 0
    assert made["my/embedded"]["observation"].shape[1:] == (16,)
    assert made["my/cost"]["next/reward"].sum() < walker["next/reward"].sum()
    episode, shaped = walker.episode(0), made["my/shaped"].episode(0)["next", "reward"]
    after = episode["next", "observation"][-1, 0] * ~episode["next", "terminated"][-1]
    powers = 0.99 ** torch.arange(len(episode)).view(-1, 1)
    change = (powers * (shaped - episode["next", "reward"])).sum()  # telescoping: the potential at both ends
    torch.testing.assert_close(change, (0.99 ** len(episode) * after - episode["observation"][0, 0]).view(()))
