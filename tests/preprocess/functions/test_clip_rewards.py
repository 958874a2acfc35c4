"""Rewards limited to a range."""

from __future__ import annotations

import numpy as np
import pytest
from function_tools import check_refused
from rbdata.preprocess.functions import clip_rewards
from ted_tools import episode


def test_clip():
    td = episode(50)
    reward = td["next", "reward"].numpy()
    np.testing.assert_array_equal(clip_rewards(td)["next", "reward"], np.clip(reward, -1, 1))
    np.testing.assert_array_equal(clip_rewards(td, low=None, high=0.25)["next", "reward"], np.minimum(reward, 0.25))
    np.testing.assert_array_equal(clip_rewards(td, sign=True)["next", "reward"], np.sign(reward))


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"low": 2}, "low=2 is more than high=1"),
        ({"low": None, "high": None}, "low, high, or both"),
        ({"sign": True, "high": 5}, "do not apply"),
        ({"sign": 1}, "must be true or false"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(clip_rewards, args, why)
