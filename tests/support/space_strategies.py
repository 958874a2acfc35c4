"""Gymnasium spaces of every kind that a dataset can hold, for property tests."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

_LETTERS = st.text("abcé ", min_size=1, max_size=5)
_BASIC = st.one_of(
    st.tuples(
        st.lists(st.integers(1, 4), max_size=3).map(tuple), st.sampled_from(["float32", "float64", "int16", "uint8"])
    ).map(lambda drawn: spaces.Box(0, 7, drawn[0], np.dtype(drawn[1]).type)),
    st.tuples(st.integers(1, 9), st.integers(-5, 5)).map(lambda drawn: spaces.Discrete(drawn[0], start=drawn[1])),
    st.lists(st.integers(1, 9), min_size=1, max_size=4).map(spaces.MultiDiscrete),
    st.integers(1, 9).map(spaces.MultiBinary),
    st.tuples(st.integers(1, 9), _LETTERS).map(lambda drawn: spaces.Text(drawn[0], charset=drawn[1])),
)
ANY_SPACE = st.recursive(
    _BASIC,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "c.d", "shape", "e f"]), inner, min_size=1, max_size=3).map(
            spaces.Dict
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda drawn: spaces.Tuple(tuple(drawn))),
    ),
    max_leaves=6,
)
