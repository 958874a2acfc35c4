"""Comparisons of rows."""

from __future__ import annotations

import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.preprocess.result import identical


@given(st.data())
@settings(max_examples=examples(200), deadline=None)
def test_identical(data):
    dtype = data.draw(st.sampled_from([torch.uint8, torch.bool, torch.int16, torch.float32, torch.float64]))
    rows, width, offset = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 20)), data.draw(st.integers(0, 3))
    whole = torch.randint(0, 2, (rows + offset, width)).to(dtype)
    a = whole[offset:]
    b = a.clone()
    assert identical(a, b)
    assert identical(a.T, b.T)
    b[data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, width - 1))] = 5
    assert not identical(a, b) or dtype == torch.bool
