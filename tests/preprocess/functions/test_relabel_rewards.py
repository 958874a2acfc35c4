"""Rewards by rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from function_tools import check_refused, fit
from rbdata.errors import UsageError
from rbdata.preprocess.functions import relabel_rewards
from ted_tools import episode


def test_relabel_rules():
    td, cut = episode(8), episode(8, outcome="truncated", seed=1)
    reward = td["next", "reward"].numpy().astype("f8")[:, 0]
    got = {
        rule: relabel_rewards(td, rule=rule)["next", "reward"].numpy()[:, 0]
        for rule in ("success", "steps_to_goal", "delayed", "even")
    }
    np.testing.assert_array_equal(got["success"], [0] * 7 + [1])
    np.testing.assert_array_equal(got["steps_to_goal"], [-1] * 7 + [0])
    np.testing.assert_allclose(got["delayed"], [0] * 7 + [reward.sum()], rtol=1e-6)
    np.testing.assert_allclose(got["even"], [reward.mean()] * 8, rtol=1e-6)
    assert not relabel_rewards(cut, rule="success")["next", "reward"].any()
    statistics = fit(relabel_rewards, [td, cut], rule="return_range")
    returns = [td["next", "reward"].double().sum().item(), cut["next", "reward"].double().sum().item()]
    scaled = relabel_rewards(td, rule="return_range", statistics=statistics)["next", "reward"].numpy()[:, 0]
    np.testing.assert_allclose(scaled, reward * 1000 / abs(returns[0] - returns[1]), rtol=1e-6)
    with pytest.raises(UsageError, match="range of rule=return_range is zero"):
        fit(relabel_rewards, [td, td], rule="return_range")
    with pytest.raises(UsageError, match="no statistics"):
        relabel_rewards(td, rule="return_range")


def test_the_old_reward_is_kept():
    td = episode(6)
    out = relabel_rewards(td, rule="even", keep=True)
    assert out["next", "reward"].dtype == torch.float32
    assert torch.equal(out["next", "original_reward"], td["next", "reward"])


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "needs rule"),
        ({"rule": "dense"}, "rule is 'dense'"),
        ({"rule": "even", "keep": 3}, "must be true or false"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(relabel_rewards, args, why)
