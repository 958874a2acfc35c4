"""Returns to go against a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from effort import examples
from function_tools import GAMMA, check_refused
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import SchemaError, UsageError
from rbdata.preprocess.functions import returns_to_go
from rbdata.preprocess.functions.rewards import discounted
from ted_tools import episode, ted_problems


@settings(deadline=None, max_examples=examples(40))
@given(length=st.integers(1, 300), gamma=GAMMA)
def test_returns_to_go(length, gamma):
    td = episode(length)
    out = returns_to_go(td, gamma=gamma)
    reward, later, truth = td["next", "reward"].numpy().astype("f8"), 0.0, np.zeros((length, 1))
    for step in reversed(range(length)):
        later = reward[step, 0] + gamma * later
        truth[step] = later
    np.testing.assert_allclose(out["return_to_go"], truth, rtol=1e-6, atol=1e-6)
    assert out["return_to_go"].dtype == torch.float32
    assert ted_problems(out) == []


def test_returns_to_go_of_long_episodes():
    reward = torch.ones(27_000, 1, dtype=torch.float64)
    for gamma in (0.5, 0.99, 0.9999):
        truth = (1 - gamma ** np.arange(27_000, 0, -1.0)) / (1 - gamma)
        np.testing.assert_allclose(discounted(reward, gamma)[:, 0], truth, rtol=1e-9)


def test_returns_to_go_under_another_name():
    td = episode(3)
    assert "rtg" in returns_to_go(td, key="rtg").keys()  # noqa: SIM118
    with pytest.raises(UsageError, match="'action' exists already"):
        returns_to_go(td, key="action")
    with pytest.raises(SchemaError):
        returns_to_go(td, key="return to go")
    with pytest.raises(SchemaError, match="no next/reward"):
        returns_to_go(td.exclude(("next", "reward")))


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"gamma": 0}, "gamma must be more than 0"),
        ({"gamma": 1.5}, "gamma must lie in"),
        ({"key": 3}, "must be a string"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(returns_to_go, args, why)
