"""n-step returns against loops, `MultiStep` and TorchRL."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from effort import examples
from function_tools import GAMMA, check_refused
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import UsageError
from rbdata.preprocess.functions import n_step, relabel_rewards, subsample
from ted_tools import arrays, episode, ted_problems


@settings(deadline=None, max_examples=examples(60))
@given(
    length=st.integers(1, 40), n=st.integers(1, 60), gamma=GAMMA, outcome=st.sampled_from(["terminated", "truncated"])
)
def test_n_step(length, n, gamma, outcome):
    td = episode(length, outcome=outcome)
    out, was = arrays(n_step(td, n=n, gamma=gamma)), arrays(td)
    for step in range(length):
        taken = min(n, length - step)
        last = step + taken - 1
        total = sum(gamma**k * float(was["next/reward"][step + k, 0]) for k in range(taken))
        assert out["next/reward"][step, 0] == pytest.approx(total, rel=1e-6, abs=1e-6)
        assert out["steps_to_next_obs"][step] == taken
        assert out["gamma"][step] == np.float32(gamma**taken)
        assert out["next/original_reward"][step] == was["next/reward"][step]
        assert (out["next/observation"][step] == was["next/observation"][last]).all()
        assert (out["observation"][step] == was["observation"][step]).all()
        assert out["next/terminated"][step] == was["next/terminated"][last]
        if n > 1:
            assert out["next/done"][step]
            assert out["next/truncated"][step] != out["next/terminated"][step]
    assert ted_problems(n_step(td, n=n, gamma=gamma)) == []


def test_rewards_that_are_not_summed_are_refused():
    td = episode(5)
    td["next", "agents"] = {"reward": td["next", "reward"].expand(5, 3)}
    with pytest.raises(UsageError, match="n_step sums next/reward alone, not next/agents/reward"):
        n_step(td, n=2)
    assert n_step(td, n=1)["next", "agents", "reward"].shape == (5, 3)


def test_n_step_beside_torchrl():
    post = pytest.importorskip("torchrl.data.postprocs")
    td = episode(23)
    theirs = post.MultiStep(gamma=0.9, n_steps=4)(td.unsqueeze(0).clone())[0]
    ours = n_step(td, n=4, gamma=0.9)
    assert torch.equal(ours["next", "observation"], theirs["next", "observation"])
    assert torch.equal(ours["steps_to_next_obs"], theirs["steps_to_next_obs"].reshape(-1).long())
    assert torch.allclose(ours["next", "reward"], theirs["next", "reward"], atol=1e-5)
    assert torch.allclose(ours["gamma"], theirs["gamma"].reshape(-1))


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"n": 0}, "n must be at least 1"),
        ({"n": True}, "whole number"),
        ({"n": 3, "gamma": -0.1}, "more than 0"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(n_step, args, why)


@pytest.mark.parametrize("name", ["steps_to_next_obs", "gamma", ("next", "original_reward")])
def test_what_the_data_have_is_not_replaced(name):
    """The kept reward of `relabel_rewards`, or what an n_step before this one has made."""
    td = episode(9)
    td[name] = torch.zeros(9, 1)
    with pytest.raises(UsageError, match="already, which would be replaced"):
        n_step(td, n=3)
    with pytest.raises(UsageError, match="already, which would be replaced"):
        relabel_rewards(td, rule="even", keep=True) if isinstance(name, tuple) else subsample(td, every=3)
    subsample(td, every=3) if isinstance(name, tuple) else relabel_rewards(td, rule="even", keep=True)
