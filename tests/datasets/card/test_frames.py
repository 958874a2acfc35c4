"""Frames: which leaf, which steps, how large."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from rbdata.datasets.card.frames import (
    choose_strips,
    draw_sheet,
    encode_image,
    encode_video,
    enlarged,
    leaves_with_frames,
    picture,
    read_pictures,
)
from rbdata.errors import UsageError
from rbdata.storage.dataset import Dataset
from storage_tools import Recipe, make_episodes


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    episodes = make_episodes([3, 50, 1, 9], vector=((4,), "float32"), observation=((24, 20, 3), "uint8"))
    return Dataset(Recipe(episodes, {"vector": "flat", "observation": "zstd"}).write(tmp_path_factory.mktemp("frames")))


@pytest.mark.parametrize(
    ("shape", "dtype", "mode"),
    [
        ((7, 7), "uint8", "L"),
        ((7, 5, 1), "uint8", "L"),
        ((7, 5, 3), "uint8", "RGB"),
        ((3, 7, 5), "uint8", "RGB"),
        ((4, 7, 5), "uint8", "L"),
        ((20, 17), "float32", "L"),
    ],
)
def test_rows_are_pictures(shape, dtype, mode):
    row = (np.arange(np.prod(shape)).reshape(shape) % 200).astype(dtype)
    made = picture(row)
    height = next(size for size in shape if size in (7, 20))
    assert (made.mode, made.height) == (mode, height)
    if dtype == "float32":
        assert np.ptp(np.asarray(made)) == 255


def test_grids_of_codes_are_not_black():
    assert np.asarray(picture(np.full((7, 7, 3), 10, "uint8"))).max() == 170
    assert np.asarray(picture(np.full((84, 84), 10, "uint8"))).max() == 10


def test_what_is_no_picture_is_named(tmp_path):
    vectors = Dataset(Recipe(make_episodes([3], shape=(4,))).write(tmp_path))
    with pytest.raises(UsageError, match="no frames") as error:
        leaves_with_frames(vectors)
    assert "observation float32 [4]" in error.value.hint


@pytest.mark.parametrize(("size", "result"), [((84, 84), (168, 168)), ((7, 5), (168, 120)), ((640, 320), (168, 84))])
def test_small_frames_are_enlarged_by_whole_factors(size, result):
    assert enlarged(Image.new("L", size), 168).size == result


def test_which_steps_are_on_the_sheet(dataset):
    spread = choose_strips(dataset)
    assert [strip.episode for strip in spread] == [0, 1, 2, 3]
    assert [len(strip.steps) for strip in spread] == [3, 8, 1, 8]
    assert (spread[1].steps[0], spread[1].steps[-1]) == (3, 52)
    (strip,) = choose_strips(dataset, [1])
    assert strip.steps == list(range(3 + 9, 3 + 9 + 32))
    assert [len(strip.steps) for strip in choose_strips(dataset, [1, 3, 1])] == [16, 9]
    for wrong in ([4], list(range(17))):
        with pytest.raises(UsageError):
            choose_strips(dataset, wrong)


def test_the_sheet(dataset):
    sheet = draw_sheet(dataset, choose_strips(dataset, [1, 2]))
    assert sheet.mode == "RGB" and sheet.width > 8 * 140
    for suffix in (".png", ".jpg"):
        data = encode_image(sheet, suffix)
        assert Image.open(BytesIO(data)).size == sheet.size


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    """Two cameras of different shapes: what the first sees is black, what the second sees is white."""
    cameras = {"observation__front": ((48, 64, 3), "uint8"), "observation__wrist": ((30, 30, 3), "uint8")}
    episodes = make_episodes([5, 2], **cameras)
    for one in episodes:
        one.states["observation/front"][:] = 0
        one.states["observation/wrist"][:] = 255
    return Dataset(Recipe(episodes, "zstd").write(tmp_path_factory.mktemp("robot")))


def test_the_sheet_has_a_row_of_pictures_for_each_camera(robot):
    sheet = np.asarray(draw_sheet(robot, choose_strips(robot, [0, 1])).convert("L"))
    black = (sheet == 0).sum()
    assert black == 7 * 144 * 192, "7 steps of 48 x 64, three times as large"
    marks = np.flatnonzero((sheet[:, 16:30] == 0).all(1))
    assert len(marks) == 2 * 144 and np.diff(marks).max() > 150, "the white pictures are between the black ones"


def test_the_video_has_the_cameras_side_by_side(robot, tmp_path):
    av = pytest.importorskip("av")
    (tmp_path / "play.mp4").write_bytes(encode_video(robot, [1]))
    with av.open(str(tmp_path / "play.mp4")) as container:
        shown = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    assert len(shown) == 2
    assert shown[0].shape[1] >= 192 + 180
    assert shown[0][:, :190].mean() < 20 and shown[0][:140, 195:370].mean() > 235


def test_the_video(dataset, tmp_path):
    """Every step of the episodes, in order."""
    av = pytest.importorskip("av")
    (tmp_path / "play.mp4").write_bytes(encode_video(dataset, [2, 0]))
    with av.open(str(tmp_path / "play.mp4")) as container:
        assert container.streams.video[0].average_rate == 30
        shown = [frame.to_ndarray(format="rgb24").astype(int) for frame in container.decode(video=0)]
    table = dataset.episodes
    steps = [int(table.starts[one]) + step for one in (2, 0) for step in range(int(table.lengths[one]))]
    (leaf,) = leaves_with_frames(dataset)
    wanted = [np.asarray(enlarged(one, 168).convert("RGB")).astype(int) for one in read_pictures(dataset, leaf, steps)]
    assert len(shown) == len(wanted) == 4
    assert max(np.abs(one - other).mean() for one, other in zip(shown, wanted)) < 12
