"""Helpers for the tests of built-in preprocessing functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from rbdata.errors import UsageError
from rbdata.preprocess.functions.traits import Traits
from ted_tools import episode
from tensordict import TensorDict

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=6)
GAMMA = st.sampled_from([1.0, 0.99, 0.5, 1e-3])


def traits_of(function: Any) -> Traits:
    """What a built-in function declares about itself. (mypy takes the function for the module of its name.)"""
    found: Traits = function.traits
    return found


def fit(function: Callable[..., Any], parts: Any, **args: Any) -> dict[str, Any]:
    """The statistics of a function over several parts, as a first pass computes them."""
    fit = traits_of(function).fit
    assert fit is not None
    collected = [fit.collect(part, **args) for part in parts]
    merged = collected[0]
    for one in collected[1:]:
        merged = fit.merge(merged, one)
    return fit.finish(merged, **args)


def check_refused(function: Callable[..., Any], args: dict[str, Any], why: str) -> None:
    """Invalid arguments raise UsageError, both before a run and when the function is called."""
    with pytest.raises(UsageError, match=why):
        traits_of(function).check(**args)
    with pytest.raises(UsageError, match=why):
        function(episode(4), **args)


def make_frames(shape: tuple[int, ...], count: int = 6, seed: int = 0) -> np.ndarray:
    """Smooth frames with noise, so that errors of both kinds are visible."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (count, *shape))
    ramp = np.linspace(0, 255, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return np.where(rng.random((count, *shape)) < 0.5, noise, ramp).astype("uint8")


def as_td(rows: np.ndarray) -> TensorDict:
    """Steps with ``rows`` as the observation ``pixels`` and as its successor."""
    return TensorDict({"pixels": torch.from_numpy(rows), "next": {"pixels": torch.from_numpy(rows)}}, [len(rows)])
