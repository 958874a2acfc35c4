"""Leaves as floating-point numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from function_tools import check_refused
from rbdata.preprocess.functions import to_float
from ted_tools import episode


def test_to_float():
    td = episode(5, pixels=(4, 4), dtype="float64")
    out = to_float(td)
    assert out["observation", "vector"].dtype == torch.float32
    np.testing.assert_array_equal(
        out["next", "observation", "vector"], td["next", "observation", "vector"].numpy().astype("f4")
    )
    np.testing.assert_allclose(out["observation", "pixels"], td["observation", "pixels"].numpy() / 255, rtol=1e-6)
    assert out["action"].dtype == torch.int64
    half = to_float(td, keys="observation/pixels,action", dtype="float16")
    assert half["action"].dtype == half["next", "observation", "pixels"].dtype == torch.float16
    assert half["observation", "vector"].dtype == torch.float64
    assert float((half["observation", "pixels"].double() - td["observation", "pixels"] / 255).abs().max()) < 3e-4
    assert torch.equal(to_float(td, keys="action", scale=0.5)["action"], td["action"] * 0.5)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"dtype": "bfloat16"}, "not one of float16, float32, float64"),
        ({"scale": 0}, "scale=0"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(to_float, args, why)
