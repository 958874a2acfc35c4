"""What all built-in functions have in common, and what they declare about themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from function_tools import traits_of
from rbdata.errors import UsageError
from rbdata.preprocess.functions import BUILTIN, find_builtin, n_step, resize_frames, to_float
from ted_tools import arrays, episode, ted_problems
from tensordict import TensorDict

CALLS: dict[str, dict[str, Any]] = {
    "clip_rewards": {},
    "filter_episodes": {"min_length": 1},
    "grayscale": {"keys": "observation/pixels"},
    "identity": {},
    "n_step": {"n": 3},
    "normalize_observations": {"statistics": {"observation/vector": {"mean": [0.0] * 3, "std": [1.0] * 3, "count": 9}}},
    "relabel_rewards": {"rule": "even"},
    "resize_frames": {"height": 4, "width": 5},
    "returns_to_go": {},
    "scale_rewards": {"scale": 0.5},
    "select_keys": {"keys": "observation"},
    "subsample": {"every": 3},
    "to_float": {},
    "trim": {"key": "observation/vector", "threshold": 0.5},
}

#: Functions that can be applied to states that are stored once.
MAPS_STATES = ["grayscale", "normalize_observations", "resize_frames", "to_float"]


def unchanged(before: dict, td: TensorDict) -> bool:
    return all(np.array_equal(before[name], rows) for name, rows in arrays(td).items())


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_input_is_not_modified_and_output_is_ted(name):
    function = find_builtin(name)
    td = episode(11, pixels=(8, 10, 3), outcome="truncated")
    before = arrays(td)
    out = function(td, **CALLS[name])
    assert unchanged(before, td)
    assert ted_problems(out) == []
    assert out.batch_size == (len(out["action"]) if "action" in out.keys() else 11,)  # noqa: SIM118
    for path, rows in arrays(out).items():
        assert np.isfinite(rows).all(), path


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_traits(name):
    function = find_builtin(name)
    assert traits_of(function).name == name
    args = {key: value for key, value in CALLS[name].items() if key != "statistics"}
    traits_of(function).check(**args)
    with pytest.raises(UsageError, match="takes no argument nonsense"):
        traits_of(function).check(**args, nonsense=1)
    with pytest.raises(UsageError, match="takes no argument statistics"):
        traits_of(function).check(**args, statistics={})
    assert (traits_of(function).map_states is not None) == (name in MAPS_STATES)
    assert function.__doc__


def test_unknown_names_and_missing_arguments():
    with pytest.raises(UsageError, match="no built-in function 'resize'"):
        find_builtin("resize")
    with pytest.raises(UsageError, match="resize_frames needs height, width") as error:
        traits_of(resize_frames).check()
    assert error.value.hint == "on the command line: --args height=... --args width=..."


@pytest.mark.parametrize("name", MAPS_STATES)
def test_states_are_mapped_as_leaves_are(name):
    function, args = find_builtin(name), CALLS[name]
    td = episode(7, pixels=(8, 10, 3))
    out = function(td, **args)
    assert traits_of(function).applies_to_states(
        td, **{key: value for key, value in args.items() if key != "statistics"}
    )
    for leaf in ("observation/vector", "observation/pixels"):
        path = tuple(leaf.split("/"))
        after = ("next", *path)
        rows = torch.cat([td[path], td[after][-1:]])
        map_states = traits_of(function).map_states
        assert map_states is not None
        states = map_states(leaf, rows, **args)
        assert torch.equal(states[:-1], out[path])
        assert torch.equal(states[1:], out[after])


def test_keys_without_a_successor_do_not_apply_to_states():
    td = episode(4)
    assert not traits_of(to_float).applies_to_states(td, keys=["observation", "action"])
    assert traits_of(to_float).applies_to_states(td, keys=["observation"])
    assert not traits_of(n_step).applies_to_states(td)
    with pytest.raises(UsageError, match="no key 'pixels'"):
        traits_of(to_float).applies_to_states(td, keys="pixels")


@pytest.mark.parametrize("name", ["to_float", "resize_frames", "grayscale", "normalize_observations"])
def test_keys_are_checked(name):
    function = find_builtin(name)
    args = {key: value for key, value in CALLS[name].items() if key not in ("keys", "statistics")}
    for keys, why in [
        ("next/observation", "also selects its successor"),
        ([], "one key or several"),
        (3, "one key"),
        ([1], "must hold"),
    ]:
        with pytest.raises(UsageError, match=why):
            traits_of(function).check(**args, keys=keys)
    if name != "normalize_observations":
        with pytest.raises(UsageError, match="no key 'pixels'"):
            function(episode(3), **args, keys="pixels")
