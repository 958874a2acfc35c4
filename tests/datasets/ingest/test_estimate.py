"""What is said before a run about the size of its result: within a quarter. And what the disk must have room for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rbdata
from paths import DATA
from rbdata.cli.report import announcement
from rbdata.datasets.acquire import download
from rbdata.datasets.ingest.request import Estimate, Listener, Request
from rbdata.errors import DiskError
from rbdata.storage import folder
from rbdata.storage.codecs.zstd import ZstdCodec
from rbdata.storage.manifest import read_manifest

SOURCES = {
    "shards": {"dataset_id": "atari/Pong/5", "mirror": DATA / "atari"},
    "shards, raw": {"dataset_id": "atari/Pong/5", "mirror": DATA / "atari", "shards": "0", "codec": "raw"},
    "ordered episodes": {"dataset_id": "atari/Breakout/1", "mirror": DATA / "rl_unplugged"},
    "plain TED": {"dataset_id": "atari/Pong/5", "mirror": DATA / "atari", "shards": "0", "layout": "ted"},
    "D4RL": {"dataset_id": "d4rl/hopper-full-replay-v2", "mirror": DATA / "d4rl"},
    "a recording": {"dataset_id": "gymnasium/CartPole-v1", "steps": 1500},
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_said_is_that_of_the_dataset_within_a_quarter(name, tmp_path):
    plans: list[Estimate] = []
    made = rbdata.download(root=tmp_path, procs=1, listener=Listener(on_estimate=plans.append), **SOURCES[name])
    manifest = read_manifest(made)
    assert plans[-1].steps == pytest.approx(manifest.steps, rel=0.25)
    if not plans[-1].estimated:
        assert (plans[-1].steps, plans[-1].episodes) == (manifest.steps, manifest.episodes)
    dictionary = sum(file.stat().st_size for file in made.rglob("dictionary"))
    assert plans[-1].disk_bytes == pytest.approx(manifest.bytes - dictionary, rel=0.25)


def test_own_arrays(tmp_path):
    done = np.arange(400) % 50 == 49
    np.savez(
        tmp_path / "own.npz", observation=np.ones((400, 3), np.float32), reward=np.ones(400), action=done, done=done
    )
    plans: list[Estimate] = []
    made = rbdata.convert(tmp_path / "own.npz", "my/own", root=tmp_path, listener=Listener(on_estimate=plans.append))
    assert plans[-1].steps == len(rbdata.open_dataset(made))
    assert plans[-1].disk_bytes == pytest.approx(read_manifest(made).bytes, rel=0.25)


@pytest.mark.parametrize("name", ["Pong/5", "Breakout/1"])
def test_nothing_is_trained_for_a_dry_run(name, tmp_path, monkeypatch):
    monkeypatch.setattr(ZstdCodec, "train", None)
    mirror = DATA / ("atari" if name == "Pong/5" else "rl_unplugged")
    plan = download(Request(f"atari/{name}", root=tmp_path, mirror=str(mirror), dry_run=True)).estimate
    assert plan is not None and plan.steps and not list(tmp_path.iterdir())


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


def test_a_guess_refuses_nothing_that_may_fit(tmp_path, monkeypatch):
    """How much frames of a recording shrink is seen while it is recorded; what is certain must fit."""
    plans: list[Estimate] = []
    options = {"root": tmp_path, "steps": 60, "listener": Listener(on_estimate=plans.append)}
    monkeypatch.setattr(folder, "free_bytes", lambda path: (64 << 20) + 1000)
    with pytest.raises(DiskError):
        rbdata.download("gymnasium/ALE/Pong-v5", **options)
    monkeypatch.setattr(folder, "free_bytes", lambda path: (64 << 20) + plans[0].disk_bytes * 7 // 10)
    rbdata.download("gymnasium/ALE/Pong-v5", **options)
    size = read_manifest(tmp_path / "gymnasium/ALE/Pong-v5").bytes
    assert size / 3 < plans[0].disk_bytes < size * 3
