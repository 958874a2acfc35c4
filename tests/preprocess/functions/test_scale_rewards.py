"""Affine maps of rewards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from function_tools import check_refused
from rbdata.preprocess.functions import scale_rewards
from ted_tools import episode


def test_scale():
    td = episode(50)
    reward = td["next", "reward"].numpy()
    out = scale_rewards(td, scale=4, shift=-2)["next", "reward"]
    assert out.dtype == torch.float32
    np.testing.assert_allclose(out, 4 * (reward - 0.5), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "needs a scale or a shift"),
        ({"scale": 0}, "scale=0"),
        ({"scale": "2"}, "must be a number, and is '2'"),
        ({"shift": float("nan")}, "must be a number"),
        ({"scale": True}, "must be a number"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(scale_rewards, args, why)
