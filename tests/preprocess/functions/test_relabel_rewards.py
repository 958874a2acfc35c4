"""Rewards by rules and by functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from function_tools import check_refused, fit, traits_of
from rbdata.errors import SchemaError, UsageError
from rbdata.preprocess.functions import relabel_rewards
from ted_tools import episode


def distance(td):
    return -td["observation"].norm(dim=-1)


def wrong(td):
    return td["observation"]


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


def test_relabel_by_a_function(tmp_path, monkeypatch):
    td = episode(6)
    out = relabel_rewards(td, fn=distance, keep=True)
    np.testing.assert_allclose(
        out["next", "reward"][:, 0], -np.linalg.norm(td["observation"].numpy(), axis=1), rtol=1e-6
    )
    assert out["next", "reward"].dtype == torch.float32
    assert torch.equal(out["next", "original_reward"], td["next", "reward"])
    (tmp_path / "mine_for_relabelling.py").write_text("def reward(td):\n    return td['observation'][:, :1] * 2\n")
    monkeypatch.chdir(tmp_path)
    named = relabel_rewards(td, fn="mine_for_relabelling.py:reward")
    assert torch.equal(named["next", "reward"], td["observation"][:, :1] * 2)
    with pytest.raises(SchemaError, match=r"tensor \[6\] or \[6, 1\] for 6 steps, not \[6, 3\]"):
        relabel_rewards(td, fn=wrong)
    with pytest.raises(UsageError):
        traits_of(relabel_rewards).check(fn="no_such_module_at_all:fn")


@pytest.mark.parametrize("outcome", ["terminated", "truncated"])
def test_shaping_leaves_returns_what_they_are_but_for_the_start(outcome):
    td, gamma = episode(12, outcome=outcome), 0.9
    shaped = relabel_rewards(td, rule="shaping", fn=distance, gamma=gamma)["next", "reward"].numpy().astype("f8")[:, 0]
    reward = td["next", "reward"].numpy().astype("f8")[:, 0]
    phi = -np.linalg.norm(td["observation"].numpy().astype("f8"), axis=1)
    after = -np.linalg.norm(td["next", "observation"].numpy().astype("f8"), axis=1)
    if outcome == "terminated":
        after[-1] = 0
    np.testing.assert_allclose(shaped, reward + gamma * after - phi, rtol=1e-5, atol=1e-6)
    # Telescoping: discounted sums differ by the potential at both ends.
    powers = gamma ** np.arange(12)
    assert (powers * (shaped - reward)).sum() == pytest.approx(gamma**12 * after[-1] - phi[0], abs=1e-5)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "a function or a rule"),
        ({"rule": "dense"}, "rule is 'dense'"),
        ({"rule": "shaping", "gamma": 0.9}, "needs a potential"),
        ({"rule": "shaping", "fn": len}, "needs the discount gamma"),
        ({"rule": "even", "gamma": 0.9}, "gamma goes with"),
        ({"rule": "even", "fn": len}, "takes no fn"),
        ({"fn": 3}, "must be a function"),
        ({"fn": len, "keep": 3}, "must be true or false"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(relabel_rewards, args, why)
