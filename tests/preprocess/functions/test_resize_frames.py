"""Resized frames against Pillow and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from function_tools import as_td, check_refused, make_frames
from PIL import Image
from rbdata.errors import UsageError
from rbdata.preprocess.functions import resize_frames
from ted_tools import episode


def by_pillow(rows: np.ndarray, how: Image.Resampling, height: int, width: int) -> np.ndarray:
    return np.stack([np.asarray(Image.fromarray(row).resize((width, height), how)) for row in rows])


# Pillow's box weighs a pixel fully or not at all: it is the mean of what is covered where sizes divide.
@pytest.mark.parametrize(
    ("mode", "size"),
    [
        *[("area", size) for size in [(42, 42), (28, 21), (84, 42), (12, 7), (1, 1)]],
        *[("bilinear", size) for size in [(42, 42), (28, 21), (84, 42), (50, 33), (64, 100), (1, 1), (120, 130)]],
    ],
)
@pytest.mark.parametrize("channels", [(), (3,)])
def test_resize_is_pillows(mode, size, channels):
    rows = make_frames((84, 84, *channels))
    out = resize_frames(as_td(rows), height=size[0], width=size[1], mode=mode)
    assert out["pixels"].dtype == torch.uint8
    assert out["pixels"].shape == (6, *size, *channels)
    truth = by_pillow(rows, {"area": Image.Resampling.BOX, "bilinear": Image.Resampling.BILINEAR}[mode], *size)
    # Pillow rounds twice (columns, then rows), in fixed point.
    assert np.abs(out["next", "pixels"].numpy().astype(int) - truth).max() <= 1


def test_area_is_the_mean_of_what_is_covered():
    rows = make_frames((84, 60), count=1)
    for height, width in [(42, 30), (50, 37), (100, 90), (21, 60), (17, 7)]:
        out = resize_frames(as_td(rows), height=height, width=width)["pixels"].numpy()
        # Every pixel repeated as often as the new size asks for, then plain means.
        fine = rows.repeat(height, 1).repeat(width, 2).astype("f8")
        truth = fine.reshape(1, height, 84, width, 60).mean((2, 4))
        assert np.abs(out - truth).max() <= 0.501, (height, width)


@pytest.mark.parametrize("tile", [(2, 2), (3, 3), (4, 2), (7, 12), (84, 84)])
def test_tiles_are_exact(tile):
    rows = make_frames((84, 84))
    out = resize_frames(as_td(rows), height=84 // tile[0], width=84 // tile[1])["pixels"].numpy()
    sums = rows.astype(int).reshape(6, 84 // tile[0], tile[0], 84 // tile[1], tile[1]).sum((2, 4))
    size = tile[0] * tile[1]
    np.testing.assert_array_equal(out, (2 * sums + size) // (2 * size))


def test_resize_layouts():
    rows = make_frames((20, 24, 3))
    truth = resize_frames(as_td(rows), height=7, width=9)["pixels"]
    planes = torch.from_numpy(rows).movedim(-1, 1).contiguous()
    assert torch.equal(resize_frames(as_td(planes.numpy()), height=7, width=9)["pixels"].movedim(1, -1), truth)
    stack = np.stack([rows[..., 0], rows[..., 1]], 1)
    assert torch.equal(resize_frames(as_td(stack), height=7, width=9)["pixels"][:, 1], truth[..., 1])
    cameras = np.stack([rows, rows], 1)
    assert torch.equal(resize_frames(as_td(cameras), height=7, width=9)["pixels"][:, 1], truth)
    narrow = make_frames((20, 3))  # two dimensions are never channels
    assert resize_frames(as_td(narrow), height=10, width=2)["pixels"].shape == (6, 10, 2)
    odd = make_frames((20, 24, 3))
    assert resize_frames(as_td(odd), height=12, width=2, channels="first")["pixels"].shape == (6, 20, 12, 2)
    real = resize_frames(as_td(rows.astype("f4") / 255), height=7, width=9, keys="pixels")["pixels"]
    assert real.dtype == torch.float32
    assert np.abs(real.numpy() * 255 - truth.numpy()).max() < 0.51


def test_resize_refuses():
    with pytest.raises(UsageError, match="no observation holds frames") as caught:
        resize_frames(episode(3), height=4, width=4)
    assert "observation [3]" in caught.value.hint
    with pytest.raises(UsageError, match="which are no frames"):
        resize_frames(episode(3), height=4, width=4, keys="observation")
    with pytest.raises(UsageError, match=r"dtype torch\.int16"):
        resize_frames(as_td(make_frames((8, 8)).astype("int16")), height=4, width=4, keys="pixels")
    with pytest.raises(UsageError, match="without a dimension for channels"):
        resize_frames(as_td(make_frames((8, 8))), height=4, width=4, channels="last")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"height": 0, "width": 4}, "height must be at least 1"),
        ({"height": 4, "width": 4.5}, "width must be a whole number"),
        ({"height": 4, "width": 4, "mode": "nearest"}, "mode is 'nearest'"),
        ({"height": 4, "width": 4, "channels": "hwc"}, "channels is 'hwc'"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(resize_frames, args, why)
