"""Frames of videos: every codec, any order, and files that are not what they should be."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
import torch
from rbdata.datasets.formats.video import DEPTH, Video, resize
from rbdata.errors import CorruptSourceError
from video_tools import decoded, moving_frames, write_video


@pytest.mark.parametrize("codec", ["h264", "h264-b", "hevc", "av1"])
def test_frames_are_those_of_pyav_in_any_order(tmp_path, codec):
    file = tmp_path / "a.mp4"
    write_video(file, moving_frames(30, 64, 96), codec)
    expected, video = decoded(file), Video(file, "a.mp4")
    assert (video.frames, video.shape, video.dtype) == (30, (64, 96, 3), np.uint8)
    assert np.allclose(video.times, np.arange(30) / 10)
    assert np.array_equal(np.concatenate(list(video.read(0, 30))), expected)
    for number in np.random.default_rng(0).permutation(30).tolist():
        assert np.array_equal(np.concatenate(list(video.read(number, number + 1))), expected[number : number + 1])
    assert np.array_equal(np.concatenate(list(video.read(7, 25))), expected[7:25])
    video.close()


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="asked for of the system")
def test_encoders_leave_the_priority_of_the_process(tmp_path):
    """SVT-AV1 raises that of its caller: a test process with it would hold up everything else on the machine."""
    before = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    write_video(tmp_path / "a.mp4", moving_frames(3, 64, 96), "av1")
    assert (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) == before
    list(Video(tmp_path / "a.mp4", "a.mp4").read(0, 3))
    assert (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) == before


def test_depth_is_read_as_it_was_written(tmp_path):
    codes = np.random.default_rng(0).integers(0, 4096, (5, 64, 96)).astype(np.uint16)
    write_video(tmp_path / "d.mp4", codes, "depth")
    video = Video(tmp_path / "d.mp4", "d.mp4", DEPTH)
    assert video.shape == (64, 96, 1)
    assert np.array_equal(np.concatenate(list(video.read(0, 5)))[..., 0], codes)


def test_more_frames_than_there_are_is_an_error_with_the_number(tmp_path):
    write_video(tmp_path / "a.mp4", moving_frames(6, 32, 32))
    with pytest.raises(CorruptSourceError, match=r"a\.mp4 .* frame 6 is wanted, and it has 6"):
        list(Video(tmp_path / "a.mp4", "a.mp4").read(0, 7))


@pytest.mark.parametrize("kept", [0, 3, 20, 0.5])
def test_a_file_that_is_cut_is_an_error(tmp_path, kept):
    file = tmp_path / "a.mp4"
    write_video(file, moving_frames(6, 32, 32))
    data = file.read_bytes()
    file.write_bytes(data[: int(kept * len(data)) if kept == 0.5 else kept])
    with pytest.raises(CorruptSourceError, match=r"a\.mp4"):
        list(Video(file, "a.mp4").read(0, 6))


def test_a_file_that_lacks_its_last_bytes_is_an_error_or_has_all_frames(tmp_path):
    file = tmp_path / "a.mp4"
    write_video(file, moving_frames(6, 32, 32))
    data, whole = file.read_bytes(), np.concatenate(list(Video(file, "a.mp4").read(0, 6)))
    for cut in (1, 8, 50, 200, len(data) // 20):
        file.write_bytes(data[:-cut])
        with contextlib.suppress(CorruptSourceError):
            assert np.array_equal(np.concatenate(list(Video(file, "a.mp4").read(0, 6))), whole)


@pytest.mark.parametrize("codec", ["h264-b", "av1"])
def test_damage_is_an_error_or_changes_pixels_and_never_the_number_of_frames(tmp_path, codec):
    file, rng = tmp_path / "a.mp4", np.random.default_rng(1)
    write_video(file, moving_frames(12, 32, 48), codec)
    data, errors = file.read_bytes(), 0
    for _ in range(60):
        damaged = bytearray(data)
        damaged[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        try:
            video = Video(file, "a.mp4")
            rows = sum(len(block) for block in video.read(0, video.frames))
            assert rows == video.frames
        except CorruptSourceError as error:
            errors += "a.mp4" in str(error)
    assert errors > 10


@pytest.mark.parametrize("content", [b"", b"not a video at all" * 100, b"\x00\x00\x00\x08ftyp"])
def test_what_is_no_video_is_an_error(tmp_path, content):
    (tmp_path / "a.mp4").write_bytes(content)
    with pytest.raises(CorruptSourceError, match=r"a\.mp4"):
        Video(tmp_path / "a.mp4", "a.mp4")


def test_frames_larger_than_a_row_may_be_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr("rbdata.datasets.formats.limits.LARGEST_ROW", 64 * 64 * 3 - 1)
    write_video(tmp_path / "a.mp4", np.zeros((1, 64, 64, 3), np.uint8))
    with pytest.raises(CorruptSourceError, match="one row has"):
        Video(tmp_path / "a.mp4", "a.mp4")


def test_resized_frames_are_those_of_a_triangle_filter():
    frames = moving_frames(3, 48, 64)
    channels_first = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
    wanted = torch.nn.functional.interpolate(channels_first, (20, 32), mode="bilinear", antialias=True)
    wanted = wanted.permute(0, 2, 3, 1).numpy()
    assert np.abs(resize(frames, (20, 32)) - wanted).max() <= 1.5  # Pillow rounds after each of its two passes
    assert resize(frames, (48, 64)) is frames


def test_depth_is_resized_to_depths_that_are_there():
    depths = np.array([[1, 1, 900, 900]] * 4, np.uint16)[None, :, :, None]
    assert set(resize(depths, (2, 2)).reshape(-1).tolist()) == {1, 900}
    assert resize(depths, (8, 8)).shape == (1, 8, 8, 1)
