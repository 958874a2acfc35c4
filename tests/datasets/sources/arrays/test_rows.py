"""Rows as episodes: every form of the same episodes against plain Python, and statements that contradict each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import rbdata
from hypothesis import given
from hypothesis import strategies as st
from rbdata.datasets.sources.arrays.roles import find_roles
from rbdata.datasets.sources.arrays.rows import columns_of, end_episodes, transition_table
from rbdata.datasets.sources.arrays.tables import memory_table
from rbdata.errors import CorruptSourceError, UsageError

TERMINATED, TRUNCATED, BOTH, CUT = 1, 2, 3, 4

#: Steps of each episode, and how it ends.
EPISODES = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([TERMINATED, TRUNCATED, BOTH])), min_size=1, max_size=6
)


def make(episodes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Episodes with n + 1 observations; every number occurs once."""
    made, number = [], 0
    for length, end in episodes:
        states = np.arange(number, number + length + 1, dtype=np.float32)[:, None] * [1, 1000]
        number += length + 1
        actions = -states[:-1, 0]
        made.append({"states": states.astype(np.float32), "actions": actions, "rewards": actions / 2, "end": end})
    return made


def flat(episodes: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """A row per step."""
    ends = [[0] * (len(one["actions"]) - 1) + [one["end"]] for one in episodes]
    end = np.concatenate([np.array(one) for one in ends])
    return {
        "obs": np.concatenate([one["states"][:-1] for one in episodes]),
        "act": np.concatenate([one["actions"] for one in episodes]),
        "rew": np.concatenate([one["rewards"] for one in episodes]),
        "terminated": (end == TERMINATED) | (end == BOTH),
        "truncated": (end == TRUNCATED) | (end == BOTH),
    }


def read(arrays: dict[str, Any], most_rows: int = 1 << 16, unknown_next: str = "truncate", **given: Any) -> Any:
    """The episodes of arrays, as `make` has them."""
    table = memory_table(arrays)
    roles = find_roles(table.arrays, given, table.name)
    columns = columns_of(roles, table.arrays)
    layout = end_episodes(table, roles, unknown_next=unknown_next)
    parts = list(transition_table(table, roles, len(layout.keep)).blocks(columns, layout, most_rows))
    found = {column.key: np.concatenate([rows[at] for rows, _, _ in parts]) for at, column in enumerate(columns)}
    states, actions = found["observation"], found["action"]
    rewards, end = (np.concatenate([part[which] for part in parts]) for which in (1, 2))
    episodes, first, state = [], 0, 0
    if "next/observation" in found:  # beside the observation, per step
        ends = np.flatnonzero(end)
        states = np.insert(states, ends + 1, found["next/observation"][ends], axis=0)
        inside = np.flatnonzero(end == 0)
        np.testing.assert_array_equal(found["next/observation"][inside], found["observation"][inside + 1])
    for last in np.flatnonzero(end).tolist():
        length = last + 1 - first
        episodes.append(
            {
                "states": states[state : state + length + 1],
                "actions": actions[first : last + 1],
                "rewards": rewards[first : last + 1],
                "end": end[last],
            }
        )
        first, state = last + 1, state + length + 1
    assert (first, state) == (len(actions), len(states))
    return episodes, layout.counts


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        for key in one:
            np.testing.assert_array_equal(one[key], other[key], err_msg=key)


@given(EPISODES, st.integers(1, 9))
def test_rows_with_their_successors(drawn: list[tuple[int, int]], most_rows: int) -> None:
    episodes = make(drawn)
    arrays = flat(episodes) | {"next_obs": np.concatenate([one["states"][1:] for one in episodes])}
    found, counts = read(arrays, most_rows)
    assert_same(found, episodes)
    assert counts["given_up_steps"] == 0


@given(EPISODES, st.integers(1, 9), st.sampled_from(["episode_lengths", "episode_ends", "episode", "flags"]))
def test_a_row_more_per_episode(drawn: list[tuple[int, int]], most_rows: int, by: str) -> None:
    episodes = make(drawn)
    arrays = flat(episodes) | {"obs": np.concatenate([one["states"] for one in episodes])}
    lengths = np.array([length for length, _ in drawn])
    stated = {
        "episode_lengths": lengths,
        "episode_ends": np.cumsum(lengths),
        "episode": np.repeat(np.arange(len(lengths)) * 7 + 3, lengths),
    }
    found, _ = read(arrays | {by: stated[by]} if by in stated else arrays, most_rows)
    assert_same(found, episodes)


@given(EPISODES, st.integers(1, 9))
def test_rows_without_successors_are_given_up_where_nothing_tells_them(
    drawn: list[tuple[int, int]], most_rows: int
) -> None:
    episodes = make(drawn)
    wanted = []
    for one in episodes:
        whole, length = one["end"] != TRUNCATED, len(one["actions"])
        kept = length if whole else length - 1
        if kept:
            states = one["states"].copy() if whole else one["states"][:-1]
            if whole:
                states[-1] = 0  # nothing follows
            wanted.append(
                {
                    "states": states,
                    "actions": one["actions"][:kept],
                    "rewards": one["rewards"][:kept],
                    "end": one["end"],
                }
            )
    if not wanted:
        return
    found, counts = read(flat(episodes), most_rows)
    assert_same(found, wanted)
    assert counts["given_up_steps"] == sum(one["end"] == TRUNCATED for one in episodes)


def test_zeros_for_unknown_successors_are_asked_for() -> None:
    found, counts = read(flat(make([(2, TRUNCATED), (1, TERMINATED)])), unknown_next="zero")
    assert [len(one["actions"]) for one in found] == [2, 1]
    assert (found[0]["states"][-1] == 0).all()
    assert found[0]["end"] == TRUNCATED
    assert (counts["rows"], counts["given_up_steps"], counts["unknown_next_steps"]) == (3, 0, 1)


def test_a_stated_successor_that_is_not_the_next_row_ends_the_episode() -> None:
    arrays = flat(make([(4, TRUNCATED)]))
    arrays["next_obs"] = arrays["obs"] + np.float32([1, 1000])
    arrays["next_obs"][1] = 99
    found, counts = read(arrays)
    assert [(len(one["actions"]), int(one["end"])) for one in found] == [(2, CUT), (2, TRUNCATED)]
    assert (found[0]["states"][-1] == 99).all()
    assert counts["seams"] == 1


@pytest.mark.parametrize("with_flag", ["terminated", "truncated"])
def test_done_says_the_other_flag(with_flag: str) -> None:
    episodes = make([(2, TERMINATED), (3, TRUNCATED), (2, TERMINATED)])
    arrays = flat(episodes)
    arrays["next_obs"] = np.concatenate([one["states"][1:] for one in episodes])
    arrays["done"] = arrays["terminated"] | arrays["truncated"]
    del arrays["terminated" if with_flag == "truncated" else "truncated"]
    assert_same(read(arrays)[0], episodes)


def test_an_array_with_the_name_of_a_key_goes_there() -> None:
    """Not one of another name that becomes the same key, though it comes first."""
    arrays = flat(make([(2, TERMINATED), (3, TERMINATED)]))
    arrays |= {name: np.arange(5.0) for name in ("a b", "a_b", "a-b", "Cost", "cost", "x y", "x-y")}
    roles = find_roles(memory_table(arrays).arrays, {}, "a")
    assert roles.extra == {"info/a_b": "a_b", "info/Cost": "Cost", "info/x_y": "x y"}
    assert sorted(roles.left_out) == ["a b", "a-b", "cost", "x-y"]


def test_done_alone_is_taken_as_terminated_and_said() -> None:
    arrays = flat(make([(2, TERMINATED), (3, TERMINATED)]))
    arrays["dones"] = arrays.pop("terminated")
    del arrays["truncated"]
    roles = find_roles(memory_table(arrays).arrays, {}, "a")
    assert (roles.terminated, roles.done) == ("dones", None)
    assert "truncated" in roles.assumed[0]
    stated = find_roles(memory_table(arrays).arrays, {"truncated": "dones"}, "a")
    assert (stated.terminated, stated.truncated, stated.assumed) == (None, "dones", ())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"done": np.array([0, 1, 0, 0, 0], bool)}, "row 4"),
        ({"episode": np.array([0, 0, 1, 1, 0])}, "not next to each other"),
        ({"episode_lengths": np.array([2, 2])}, "4 of 5 rows"),
        ({"episode_ends": np.array([2, 2, 5])}, "5 of 5 rows"),
        ({"obs": np.zeros((6, 2))}, "6 rows"),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], text: str) -> None:
    arrays = flat(make([(2, TERMINATED), (3, TRUNCATED)]))
    with pytest.raises(UsageError, match=text):
        read(arrays | change)


@pytest.mark.parametrize(
    "stated",
    [
        {"episode": np.array([0, 0, 0, 1, 1])},
        {"episode_lengths": np.array([3, 2])},
        {"episode_ends": np.array([3, 5])},
    ],
)
def test_flags_inside_episodes_that_numbers_state_end_nothing(stated: dict[str, np.ndarray]) -> None:
    arrays = flat(make([(2, TERMINATED), (3, TRUNCATED)])) | stated
    table = memory_table(arrays)
    roles = find_roles(table.arrays, {}, table.name)
    rows = end_episodes(table, roles, unknown_next="zero")
    assert rows.last.tolist() == [False, False, True, False, True]
    assert (rows.terminated | rows.truncated).tolist() == rows.last.tolist() and not rows.terminated.any()
    assert rows.counts["inner_flags"] == 1


def test_nothing_that_says_where_episodes_end_is_refused() -> None:
    arrays = flat(make([(2, TERMINATED)]))
    del arrays["terminated"], arrays["truncated"]
    with pytest.raises(UsageError, match="where episodes end"):
        read(arrays)


@pytest.mark.parametrize(("key", "value"), [("terminated", 2), ("rew", np.nan), ("rew", 1e39)])
def test_values_that_are_no_flags_or_rewards_name_their_row(key: str, value: float) -> None:
    arrays = flat(make([(2, TERMINATED), (3, TRUNCATED)]))
    arrays[key] = arrays[key].astype(float)
    arrays[key][3] = value
    with pytest.raises(CorruptSourceError, match=rf"{key}.* 3 "):
        read(arrays)


@pytest.mark.parametrize("orders", [(">f4", "<f4"), ("<f4", ">f4"), (">i2", "<i2"), ("<i8", ">i8")])
def test_the_order_of_bytes_is_no_other_dtype(tmp_path, orders):
    rng = np.random.default_rng(0)
    states = (100 * rng.normal(size=(21, 3))).astype(orders[0][1:])
    arrays = {"action": rng.normal(size=(20, 1)), "reward": rng.normal(size=20), "terminated": np.arange(20) == 19}
    arrays |= {"observation": states[:-1].astype(orders[0]), "next_observation": states[1:].astype(orders[1])}
    dataset = rbdata.open_dataset(rbdata.from_arrays(arrays, "my/orders", root=tmp_path))
    assert len(dataset.episodes) == 1
    assert np.array_equal(dataset["observation"], states[:-1])
    assert np.array_equal(dataset["next", "observation"], states[1:])


@pytest.mark.parametrize(
    ("name", "other", "role"),
    [
        ("obs", "Obs", "observation"),
        ("obs", "data/obs", "observation"),
        ("obs/a", "OBS/a", "observation"),
        ("rew", "Rew", "reward"),
        ("terminated", "Terminated", "terminated"),
        ("next/reward", "Next/reward", "reward"),
    ],
)
def test_names_that_differ_in_case_or_by_their_outer_group_are_ambiguous(name: str, other: str, role: str) -> None:
    arrays = flat(make([(2, TERMINATED), (3, TRUNCATED)]))
    values = arrays.pop({"observation": "obs", "reward": "rew", "terminated": "terminated"}[role])
    for first, second in ((name, other), (other, name)):
        with pytest.raises(UsageError, match=f"may each be the {role}"):
            read({**arrays, first: values, second: values})
