"""Grey frames against Pillow."""

from __future__ import annotations

import numpy as np
import pytest
from function_tools import as_td, check_refused, make_frames
from PIL import Image
from rbdata.errors import UsageError
from rbdata.preprocess.functions import grayscale


def test_grayscale_is_pillows():
    rows = make_frames((30, 20, 3))
    truth = np.stack([np.asarray(Image.fromarray(row).convert("L")) for row in rows])
    np.testing.assert_array_equal(grayscale(as_td(rows))["next", "pixels"], truth)
    planes = np.ascontiguousarray(np.moveaxis(rows, -1, 1))
    np.testing.assert_array_equal(grayscale(as_td(planes))["pixels"], truth)
    kept = grayscale(as_td(planes), keep_channel=True)["pixels"]
    assert kept.shape == (6, 1, 30, 20)
    np.testing.assert_array_equal(kept[:, 0], truth)
    assert grayscale(as_td(rows), keep_channel=True)["pixels"].shape == (6, 30, 20, 1)
    alpha = np.concatenate([rows, rows[..., :1]], -1)
    np.testing.assert_array_equal(grayscale(as_td(alpha))["pixels"], truth)
    np.testing.assert_array_equal(grayscale(as_td(rows[..., :1]))["pixels"], rows[..., 0])
    real = grayscale(as_td(rows.astype("f4")), keys="pixels")["pixels"]
    assert np.abs(real.numpy() - truth).max() <= 0.51


def test_grayscale_refuses():
    for rows in (make_frames((4, 8, 8)), make_frames((8, 8))):  # a stack of frames, and one that is grey
        with pytest.raises(UsageError, match="no observation holds colour frames"):
            grayscale(as_td(rows))
        with pytest.raises(UsageError, match="without 3 colour channels"):
            grayscale(as_td(rows), keys="pixels")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"keep_channel": "yes"}, "must be true or false"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(grayscale, args, why)
