"""Normalized observations against numpy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from effort import examples
from function_tools import LENGTHS, check_refused, fit
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import UsageError
from rbdata.preprocess.functions import normalize_observations
from ted_tools import episode, episodes, ted_problems
from tensordict import TensorDict


@settings(deadline=None, max_examples=examples(40))
@given(
    lengths=LENGTHS,
    cuts=st.lists(st.integers(1, 200), max_size=5),
    final=st.booleans(),
    dtype=st.sampled_from(["float32", "float64", "uint8"]),
)
def test_normalize_does_not_depend_on_the_cuts(lengths, cuts, final, dtype):
    whole = torch.cat(episodes(lengths, dtype=dtype))
    bounds = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    parts = [whole[low:high] for low, high in pairwise(bounds)]
    statistics = fit(normalize_observations, parts, final=final)["observation"]
    states = whole["observation"].numpy().astype("f8")
    if final:
        states = np.concatenate(
            [states, whole["next", "observation"][whole["next", "done"].squeeze(1)].numpy().astype("f8")]
        )
    assert statistics["count"] == len(states) == len(whole) + (len(lengths) if final else 0)
    np.testing.assert_allclose(statistics["mean"], states.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(statistics["std"], states.std(0), rtol=1e-9, atol=1e-12)
    out = normalize_observations(whole, statistics={"observation": statistics}, clip=2.0)
    assert ted_problems(out) == []
    truth = np.clip(
        (whole["next", "observation"].numpy().astype("f8") - states.mean(0)) / (states.std(0) + 1e-3), -2, 2
    )
    np.testing.assert_allclose(out["next", "observation"], truth, rtol=1e-5, atol=1e-6)
    assert out["observation"].dtype == torch.float32


def test_normalize_keeps_its_digits_far_from_zero():
    rng = np.random.default_rng(0)
    values = 1e8 + rng.standard_normal((4000, 2))  # sums of squares would lose all of it
    td = TensorDict(
        {"observation": torch.from_numpy(values), "next": {"observation": torch.from_numpy(values)}}, [4000]
    )
    statistics = fit(normalize_observations, td.split(7))["observation"]
    np.testing.assert_allclose(statistics["std"], values.std(0), rtol=1e-7)
    np.testing.assert_allclose(statistics["mean"], values.mean(0), rtol=1e-14)


def test_normalize_frames_by_one_mean():
    td = episode(20, pixels=(6, 6, 3))
    statistics = fit(normalize_observations, td.split(3))
    frames = td["observation", "pixels"].numpy().astype("f8")
    assert statistics["observation/pixels"]["mean"] == pytest.approx(frames.mean(), rel=1e-12)
    assert statistics["observation/pixels"]["std"] == pytest.approx(frames.std(), rel=1e-9)
    assert np.shape(statistics["observation/vector"]["mean"]) == (3,)
    each = fit(normalize_observations, [td], over="element", keys="observation/pixels")
    np.testing.assert_allclose(each["observation/pixels"]["std"], frames.std(0), rtol=1e-9)
    assert list(each) == ["observation/pixels"]
    out = normalize_observations(td, statistics=each, keys="observation/pixels")
    truth = (frames - frames.mean(0)) / (frames.std(0) + 1e-3)
    np.testing.assert_allclose(out["observation", "pixels"], truth, rtol=1e-4, atol=1e-4)
    assert torch.equal(out["observation", "vector"], td["observation", "vector"])


def test_normalize_a_live_observation():
    td = episode(30)
    statistics = fit(normalize_observations, [td])
    live = TensorDict({"observation": td["observation"][:2]}, [2])
    assert torch.equal(
        normalize_observations(live, statistics=statistics)["observation"],
        normalize_observations(td, statistics=statistics)["observation"][:2],
    )


def test_normalize_refuses():
    td = episode(5)
    with pytest.raises(UsageError, match="no statistics"):
        normalize_observations(td)
    td["observation"][2, 1] = float("nan")
    with pytest.raises(UsageError, match="observation holds NaN or infinite values"):
        fit(normalize_observations, [td])
    td["observation"][:] = 3.0
    with pytest.raises(UsageError, match="constant elements"):
        normalize_observations(td, statistics=fit(normalize_observations, [td]), eps=0)
    assert torch.equal(
        normalize_observations(td, statistics=fit(normalize_observations, [td]))["observation"], torch.zeros(5, 3)
    )


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"eps": -1}, "eps must lie in"),
        ({"clip": 0}, "clip must be more than 0"),
        ({"over": "batch"}, "over is 'batch'"),
        ({"final": 1}, "must be true or false"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(normalize_observations, args, why)
