"""What is said before a run about the size of its result, and what the disk must have room for."""

from __future__ import annotations

from pathlib import Path

import pytest
import rbdata
from paths import DATA
from rbdata.cli.report import announcement
from rbdata.datasets.ingest.request import Estimate, Listener
from rbdata.errors import DiskSpaceError
from rbdata.storage import folder
from rbdata.storage.manifest import read_manifest

SOURCES = {
    "one shard": {"dataset_id": "atari/Pong/5", "mirror": DATA / "atari", "shards": "0"},
    "shards": {"dataset_id": "atari/Pong/5", "mirror": DATA / "atari"},
    "shards, raw": {"dataset_id": "atari/Pong/5", "mirror": DATA / "atari", "shards": "0", "codec": "raw"},
    "ordered episodes": {"dataset_id": "atari/Breakout/1", "mirror": DATA / "rl_unplugged"},
    "a recording": {"dataset_id": "gymnasium/CartPole-v1", "steps": 1500},
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_size_that_is_said_is_that_of_the_dataset(name, tmp_path):
    """Whatever lies beside it while it is made."""
    plans: list[Estimate] = []
    made = rbdata.download(root=tmp_path, procs=1, listener=Listener(on_estimate=plans.append), **SOURCES[name])
    size = read_manifest(made).bytes
    assert plans[-1].stored_bytes is not None
    assert plans[-1].stored_bytes[0] == plans[-1].stored_bytes[1] == pytest.approx(size, rel=0.1)


FRAMES = {
    "id": "a/b",
    "path": Path("/r"),
    "location": "here",
    "shards": 1,
    "fetch_bytes": 0,
    "steps": 10,
    "episodes": 1,
}


def test_words():
    def said(**facts):
        return announcement(Estimate(**FRAMES, free_bytes=10**9, done_parts=0, parts=1, **facts))[-1]

    assert "1 episode, about 70.0 MB to" in said(disk_bytes=70_000_000)
    assert "about 70.0 MB (132 MB while it is made) to" in said(
        disk_bytes=132_000_000, stored_bytes=(70_000_000, 70_000_000)
    )
    assert "3.00 MB to 20.0 MB to" in said(disk_bytes=15_000_000, stored_bytes=(3_000_000, 20_000_000), estimated=True)


def test_a_guess_refuses_nothing_that_may_fit(tmp_path, monkeypatch):
    """How much frames of a recording shrink is seen while it is recorded; what is certain must fit."""
    plans: list[Estimate] = []
    options = {"root": tmp_path, "steps": 300, "listener": Listener(on_estimate=plans.append)}
    rbdata.download("gymnasium/ALE/Pong-v5", **options)
    low, high = plans[0].stored_bytes
    assert low <= read_manifest(tmp_path / "gymnasium/ALE/Pong-v5").bytes <= high
    reserve = 64 << 20
    monkeypatch.setattr(folder, "free_bytes", lambda path: reserve + plans[0].disk_bytes * 7 // 10)
    rbdata.download("gymnasium/ALE/Pong-v5", force=True, **options)
    monkeypatch.setattr(folder, "free_bytes", lambda path: reserve + plans[0].disk_bytes // 20)
    with pytest.raises(DiskSpaceError):
        rbdata.download("gymnasium/ALE/Pong-v5", force=True, **options)
