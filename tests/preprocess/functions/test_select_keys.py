"""Leaves selected by key."""

from __future__ import annotations

import pytest
import torch
from function_tools import check_refused
from rbdata.errors import UsageError
from rbdata.preprocess.functions import select_keys
from ted_tools import arrays, episode


def test_select_keys():
    td = episode(4, pixels=(4, 4))
    td["info", "speed"] = torch.zeros(4)
    td["next", "cost"] = torch.zeros(4)
    flags = {"done", "terminated", "truncated", "next/done", "next/terminated", "next/truncated", "next/reward"}
    everything = set(arrays(td))
    pixels = {"observation/pixels", "next/observation/pixels"}
    vector = {"observation/vector", "next/observation/vector"}
    assert set(arrays(select_keys(td, keys="observation/pixels, action"))) == flags | pixels | {"action"}
    assert set(arrays(select_keys(td, keys=[("observation", "vector"), "cost"]))) == flags | vector | {"next/cost"}
    assert set(arrays(select_keys(td, keys="observation"))) == flags | pixels | vector
    assert set(arrays(select_keys(td, drop=["info", "cost"]))) == everything - {"info/speed", "next/cost"}
    with pytest.raises(UsageError, match="no key 'pixels'"):
        select_keys(td, drop="pixels")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "either keys or drop"),
        ({"keys": "action", "drop": "info"}, "either keys or drop"),
        ({"drop": ["reward", "done"]}, "cannot be dropped"),
    ],
)
def test_invalid_arguments(args, why):
    check_refused(select_keys, args, why)
