"""Every k-th step against a loop; fractions of episodes."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from function_tools import GAMMA, check_refused, fit
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import UsageError
from rbdata.preprocess.functions import subsample
from ted_tools import arrays, episode, episodes, ted_problems


@settings(deadline=None, max_examples=examples(60))
@given(
    length=st.integers(1, 40),
    every=st.integers(1, 45),
    gamma=GAMMA,
    outcome=st.sampled_from(["terminated", "truncated"]),
)
def test_every_kth_step(length, every, gamma, outcome):
    td = episode(length, outcome=outcome)
    result = subsample(td, every=every, gamma=gamma)
    assert ted_problems(result) == []
    out, was = arrays(result), arrays(td)
    assert len(result) == -(-length // every)
    for row in range(len(result)):
        first, end = row * every, min((row + 1) * every, length)
        total = sum(gamma**k * float(was["next/reward"][first + k, 0]) for k in range(end - first))
        assert out["next/reward"][row, 0] == pytest.approx(total, rel=1e-6, abs=1e-6)
        assert out["action"][row] == was["action"][first]
        assert (out["observation"][row] == was["observation"][first]).all()
        assert (out["next/observation"][row] == was["next/observation"][end - 1]).all()
        assert out["next/terminated"][row] == was["next/terminated"][end - 1]
        assert out["next/truncated"][row] == was["next/truncated"][end - 1]
        assert out["steps_to_next_obs"][row] == end - first
        assert out["gamma"][row] == np.float32(gamma ** (end - first))
    if gamma == 1:
        assert out["next/reward"].sum() == pytest.approx(was["next/reward"].sum(), rel=1e-5, abs=1e-5)


def test_a_fraction_of_the_episodes():
    all_of_them = episodes([3 + number % 5 for number in range(100)])

    def kept(fraction, seed=0, order=None):
        parts = all_of_them if order is None else [all_of_them[at] for at in order]
        statistics = fit(subsample, parts, fraction=fraction, seed=seed)
        places = [
            at
            for at, td in enumerate(parts)
            if subsample(td, fraction=fraction, seed=seed, statistics=statistics) is not None
        ]
        assert statistics["kept"] == len(places)
        return {at if order is None else order[at] for at in places}

    assert len(kept(0.1)) == 10
    assert kept(0.1) < kept(0.3) < kept(1.0) == set(range(100))
    assert kept(0.1) != kept(0.1, seed=1)
    assert len(kept(1e-6)) == 1
    assert kept(0.3) == kept(0.3, order=np.random.default_rng(0).permutation(100).tolist())
    # Any episode has the same chance: over many seeds each comes about as often.
    times = np.zeros(100)
    for seed in range(20):
        times[list(kept(0.5, seed))] += 1
    assert abs(times.mean() - 10) < 1e-9
    assert times.std() == pytest.approx(np.sqrt(20 * 0.25), rel=0.25)
    with pytest.raises(UsageError, match="no statistics"):
        subsample(all_of_them[0], fraction=0.5)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "either every"),
        ({"every": 2, "fraction": 0.5}, "either every"),
        ({"every": 0}, "at least 1"),
        ({"fraction": 1.1}, "must lie in"),
        ({"fraction": 0.5, "gamma": 0.9}, "gamma goes with every"),
        ({"fraction": 0.5, "seed": -1}, "seed must be at least 0"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(subsample, args, why)
