"""``zstd:LEVEL``: what users may choose, and what becomes of it."""

from __future__ import annotations

import numpy as np
import pytest
import rbdata
from rbdata.errors import DatasetExistsError, UsageError
from rbdata.storage.codecs import level_of, resolve_choice
from rbdata.storage.dataset import Dataset
from rbdata.storage.integrity import verify


def test_choices():
    assert [resolve_choice(one) for one in ("auto", "zstd", "zstd:1", "zstd:22", "raw")] == ["zstd"] * 4 + ["raw"]
    assert [level_of(one) for one in ("auto", "zstd", "zstd:19")] == [None, None, 19]


@pytest.mark.parametrize("choice", ["zstd:", "zstd:0", "zstd:23", "zstd:x", "zstd:-3", "raw:3", "auto:3", "zstd:3:4"])
def test_no_such_level(choice):
    with pytest.raises(UsageError, match="levels"):
        resolve_choice(choice)


def test_plain_ted_excludes_it():
    with pytest.raises(UsageError, match="without codecs"):
        resolve_choice("zstd:9", plain=True)


def frames(count=3, steps=40):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 9, (8, 40, 40)).repeat(2, 1).astype("u1")
    for number in range(count):
        ends = np.arange(steps) == steps - 1
        yield {
            "observation": pictures[rng.integers(0, 8, steps + 1)],
            "action": np.full(steps, number),
            "reward": np.ones(steps, "f4"),
            "terminated": ends,
            "truncated": np.zeros(steps, bool),
        }


def test_own_frames(tmp_path):
    paths = {
        codec: rbdata.from_episodes(frames(), f"my/x{number}", root=tmp_path, codec=codec)
        for number, codec in enumerate(("zstd", "zstd:1", "zstd:19"))
    }
    blobs = {codec: (path / "observation/blob").read_bytes() for codec, path in paths.items()}
    assert len(set(blobs.values())) == 3 and len(blobs["zstd:19"]) < len(blobs["zstd:1"])
    values = [Dataset(path)["observation"].numpy().tobytes() for path in paths.values()]
    assert values[0] == values[1] == values[2]
    assert all(verify(path).ok for path in paths.values())
    assert {Dataset(path).schema["observation"].codec for path in paths.values()} == {"zstd"}


def test_a_recorded_dataset_is_extended_at_its_level(tmp_path):
    """What was asked for is in the options, so that the same command is complete and another level is another request."""
    path = rbdata.from_episodes(frames(), "my/x", root=tmp_path, codec="zstd:19")
    assert Dataset(path).manifest.source["options"]["codec"] == "zstd:19"
    with pytest.raises(DatasetExistsError, match="zstd:19 there, zstd asked for"):
        rbdata.from_episodes(frames(), "my/x", root=tmp_path, codec="zstd")
