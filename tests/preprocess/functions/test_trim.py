"""Episodes without their idle ends."""

from __future__ import annotations

import numpy as np
import pytest
import rbdata
import torch
from preprocess_tools import make_input, run
from rbdata.cli import run as command
from rbdata.errors import UsageError
from storage_tools import contents
from ted_rules import check_invariants


def idle(lengths, moves, *, terminated=False):
    """Episodes of these lengths, in which the steps ``moves[i]`` (first, last) move."""
    for length, (first, last) in zip(lengths, moves):
        action = np.full((length, 2), 0.01, "f4")
        action[first : last + 1] = 1
        ends = np.arange(length) == length - 1
        yield {
            "observation": np.arange(length + 1, dtype="f4")[:, None],
            "action": action,
            "reward": np.ones(length, "f4"),
            "terminated": ends & terminated,
            "truncated": ends & (not terminated),
        }


@pytest.fixture
def trimmed(tmp_path):
    """Makes what is left of episodes as of `idle`."""

    def make(*args, threshold=0.05, **options):
        rbdata.from_episodes(idle(*args, **options), "my/robot", root=tmp_path, force=True)
        given = {"source": "my/robot", "args": {"threshold": threshold}, "force": True}
        return run(tmp_path, "rbdata:trim", **given)

    return make


def test_idle_beginnings_and_ends(trimmed):
    made = trimmed([10, 6, 5, 4], [(2, 7), (0, 5), (5, 5), (1, 1)])
    assert made.episodes.lengths.tolist() == [6, 6, 1]  # nothing moves in the third
    assert made["observation"].view(-1).tolist() == [*range(2, 8), *range(6), 1]
    assert made["next/observation"].view(-1).tolist() == [*range(3, 9), *range(1, 7), 2]
    assert made.episodes.outcomes.tolist() == [2, 2, 2]
    assert check_invariants(made.path, made.manifest) == []


def test_the_option_is_the_function(trimmed, tmp_path):
    made = trimmed([10, 6], [(2, 7), (0, 5)])
    words = ["preprocess", "my/robot", "--trim", "0.05", "--dest", "my/option", "--root", str(tmp_path)]
    assert command(words) == 0
    assert contents(tmp_path / "my/option")["observation.memmap"] == contents(made.path)["observation.memmap"]


def test_an_episode_that_terminated_keeps_its_end(trimmed):
    made = trimmed([10], [(2, 7)], terminated=True)
    assert made.episodes.lengths.tolist() == [8] and bool(made["next/terminated"][-1])


def test_the_norm_is_of_all_numbers_and_inclusive(trimmed):
    threshold = float(torch.full((2,), 0.01).double().norm())
    for given, length in ((threshold, 2), (threshold * 0.99, 4)):
        assert trimmed([4], [(1, 2)], threshold=given).episodes.lengths.tolist() == [length]


def test_actions_that_are_choices_are_refused(tmp_path):
    make_input(tmp_path)
    with pytest.raises(UsageError, match="trim needs actions of floating-point numbers, and action is int64"):
        run(tmp_path, "rbdata:trim")
    with pytest.raises(UsageError, match="threshold must lie in"):
        run(tmp_path, "rbdata:trim", args={"threshold": -1})
