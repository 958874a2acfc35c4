"""Episodes selected by return, length and outcome."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from function_tools import LENGTHS, check_refused, fit, traits_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import UsageError
from rbdata.preprocess.functions import filter_episodes
from ted_tools import episode, episodes


@settings(deadline=None, max_examples=examples(40))
@given(lengths=LENGTHS, low=st.floats(0, 1), high=st.floats(0, 1))
def test_filter_by_quantile(lengths, low, high):
    low, high = sorted([low, high])
    tds = episodes(lengths)
    returns = np.array([td["next", "reward"].numpy().astype("f8").sum() for td in tds])
    statistics = fit(filter_episodes, tds, min_quantile=low, max_quantile=high)
    kept = [filter_episodes(td, statistics=statistics, min_quantile=low, max_quantile=high) for td in tds]
    bounds = np.quantile(returns, [low, high])
    for value, td in zip(returns, kept):
        assert (td is not None) == (bounds[0] <= value <= bounds[1])
    assert statistics["episodes"] == len(tds)


def test_filter_by_the_rest():
    short, long = episode(3, outcome="truncated"), episode(9)
    assert filter_episodes(short, min_length=3) is short
    assert filter_episodes(short, min_length=4) is None
    assert filter_episodes(long, max_length=8) is None
    assert filter_episodes(long, outcome="terminated", min_length=9, max_length=9) is long
    assert filter_episodes(short, outcome="terminated") is None
    assert filter_episodes(short, outcome="truncated") is short
    total = float(short["next", "reward"].double().sum())
    assert filter_episodes(short, min_return=total, max_return=total) is short
    assert filter_episodes(short, min_return=total + 1e-6) is None
    with pytest.raises(UsageError, match="no statistics"):
        filter_episodes(short, min_quantile=0.5)
    assert not traits_of(filter_episodes).fit.needed(min_length=3)
    assert traits_of(filter_episodes).fit.needed(max_quantile=0.3)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "needs a condition"),
        ({"min_return": 2, "max_return": 1}, "nothing would be left"),
        ({"min_length": 2.5}, "whole number"),
        ({"min_quantile": 90}, r"must lie in \[0, 1\]"),
        ({"min_quantile": 0.9, "max_quantile": 0.1}, "nothing would be left"),
        ({"outcome": "success"}, "outcome is 'success'"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(filter_episodes, args, why)
