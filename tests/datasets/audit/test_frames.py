"""Frames, of which a sample is read: black, of one colour, frozen, dark."""

from __future__ import annotations

import numpy as np
import pytest
import rbdata
from rbdata.storage.dataset import Dataset
from rbdata.storage.episodes import TRUNCATED
from storage_tools import Episode, write_dataset


def play(episodes: int = 20, size: int = 40) -> list[Episode]:
    """A bright square on a textured ground, moved by actions."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(episodes):
        actions = rng.integers(0, 2, (12, 2))
        at = np.concatenate([[[4, 4]], 4 + np.cumsum(actions, 0)])
        ground = rng.integers(20, 60, (size, size, 3))
        frames = np.repeat(ground[None], 13, 0).astype("uint8")
        for frame, (x, y) in zip(frames, at):
            frame[x : x + 6, y : y + 6] = 250
        steps = {"action": actions.astype("float32"), "next/reward": rng.random((12, 1)).astype("float32")}
        made.append(Episode({"observation": frames}, steps, TRUNCATED))
    return made


def camera_off(episodes):
    episodes[7].states["observation"][:] = 0


def dead_camera(episodes):
    episodes[7].states["observation"][:] = episodes[7].states["observation"][0]


def never_on(episodes):
    for episode in episodes:
        episode.states["observation"][:] = 0


def scaled_too_early(episodes):
    for episode in episodes:
        episode.states["observation"] = (episode.states["observation"] / 255).round().astype("uint8")


FAULTS = {
    camera_off: ("frame_constant", "warning"),
    dead_camera: ("frame_frozen", "warning"),
    never_on: ("frame_black_all", "error"),
    scaled_too_early: ("frame_dark", "warning"),
}


@pytest.mark.parametrize("layout", ["raw", "zstd", "ted"])
def test_clean_frames_have_no_findings(tmp_path, layout):
    report = rbdata.audit(write_dataset(tmp_path, play(), layout))
    assert report.findings == ()
    (one,) = report.datasets
    assert one.sampled == {"observation": 240} and "observation" not in one.checked


@pytest.mark.parametrize("change", FAULTS, ids=lambda change: change.__name__)
def test_a_planted_fault_is_named(change, tmp_path):
    episodes = play()
    change(episodes)
    (finding,) = rbdata.audit(Dataset(write_dataset(tmp_path, episodes, "zstd"))).findings
    assert (finding.code, finding.severity) == FAULTS[change]
    assert finding.leaf == "observation"
    if change is dead_camera:
        assert finding.first == (7,)


def test_a_single_black_frame_is_a_note(tmp_path):
    episodes = play()
    episodes[0].states["observation"][5] = 0
    (finding,) = rbdata.audit(write_dataset(tmp_path, episodes, "zstd")).findings
    assert (finding.code, finding.severity, finding.first) == ("frame_constant", "note", (5,))


def test_the_sample_is_bounded(tmp_path):
    one = Episode(
        {"observation": np.random.default_rng(0).integers(0, 255, (3001, 40, 40), dtype="uint8")},
        {"action": np.arange(3000), "next/reward": np.arange(3000, dtype="float32")[:, None] % 7},
        TRUNCATED,
    )
    report = rbdata.audit(write_dataset(tmp_path, [one], "raw"))
    assert report.ok and report.datasets[0].sampled == {"observation": 768}
