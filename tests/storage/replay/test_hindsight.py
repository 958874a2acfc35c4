"""Hindsight experience replay: where goals come from, against plain NumPy; over memory, rings and datasets."""

from __future__ import annotations

import numpy as np
import pytest
import rbdata
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import SchemaError, UnknownKeyError, UsageError
from rbdata.storage.replay import (
    HERReplayBuffer,
    HindsightStrategy,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    SliceSampler,
)
from replay_tools import chi_square, equal
from storage_tools import columns, make_episodes, write_dataset
from tensordict import TensorDict

STRATEGIES = [strategy.value for strategy in HindsightStrategy]


def steps(lengths, width=1, flag="done"):
    """Episodes after each other, ``[steps]``: what is achieved counts all steps, goals are -1, rewards -99."""
    count = sum(lengths)
    ends = torch.zeros(count, 1, dtype=torch.bool)
    ends[torch.tensor(lengths).cumsum(0) - 1] = True
    achieved = torch.arange(count).float()[:, None].repeat(1, 2)
    wanted = torch.full((count, 2), -1.0)
    following = {
        "achieved_goal": achieved + 0.5,
        "desired_goal": wanted,
        "reward": torch.full((count, 1), -99.0),
        flag: ends,
    }
    return TensorDict({"achieved_goal": achieved, "desired_goal": wanted, "next": following}, [count])


def distance(batch):
    """A reward that names the goal and the step it was computed from."""
    return (batch["desired_goal"][..., :1] - batch["achieved_goal"][..., :1]).squeeze(-1)


def allowed(strategy, step, starts, count):
    """The steps whose state may be the goal of ``step``, by the paper's words."""
    episode = int(np.searchsorted(starts, step, side="right")) - 1
    low, high = starts[episode], [*starts, count][episode + 1]
    return {
        "future": range(step, high),
        "final": range(high - 1, high),
        "episode": range(low, high),
        "random": range(count),
    }[strategy]


def check(batch, ratio, strategy, lengths):
    starts, count = np.cumsum([0, *lengths[:-1]]), sum(lengths)
    relabelled = int(len(batch) * ratio)
    for number, (step, goal, after, reward) in enumerate(
        zip(
            batch["achieved_goal"][:, 0].tolist(),
            batch["desired_goal"][:, 0].tolist(),
            batch["next", "desired_goal"][:, 0].tolist(),
            batch["next", "reward"][:, 0].tolist(),
        )
    ):
        if number < relabelled:
            assert goal in allowed(strategy, int(step), starts, count)
            assert reward == goal - step and after == goal
        else:
            assert (goal, after, reward) == (-1, -1, -99)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    ratio=st.sampled_from([0, 0.3, 0.8, 1]),
    strategy=st.sampled_from(STRATEGIES),
    flag=st.sampled_from(["done", "terminated"]),
    seed=st.integers(0, 9),
)
def test_goals_come_from_where_the_strategy_says(lengths, ratio, strategy, flag, seed):
    storage = LazyTensorStorage(sum(lengths) + 3)
    buffer = HERReplayBuffer(distance, storage=storage, her_ratio=ratio, strategy=strategy, batch_size=7, seed=seed)
    buffer.extend(steps(lengths, flag=flag))
    for _ in range(3):
        check(buffer.sample(), ratio, strategy, lengths)


def test_goals_are_uniform():
    buffer = HERReplayBuffer(distance, storage=LazyTensorStorage(30), her_ratio=1, batch_size=3000, seed=0)
    buffer.extend(steps([5, 6]))
    batch = buffer.sample()
    goals = batch["desired_goal"][batch["achieved_goal"][:, 0] == 2][:, 0].long()
    assert chi_square(torch.bincount(goals - 2), torch.full((3,), len(goals) / 3)) < 4


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_ring_keeps_its_episodes_apart(strategy):
    """Also the one that lies across the end of the ring, and the one whose beginning is overwritten."""
    buffer = HERReplayBuffer(
        distance, storage=LazyTensorStorage(10), her_ratio=1, strategy=strategy, batch_size=20, seed=0
    )
    buffer.extend(steps([4, 4]))
    buffer.extend(steps([4, 4, 5])[8:])
    batch = buffer.sample()
    assert int(batch["achieved_goal"].min()) >= 3
    check(batch, 1, strategy, [4, 4, 5])


def test_environments_side_by_side_keep_their_goals():
    buffer = HERReplayBuffer(
        distance, storage=LazyTensorStorage(40, ndim=2), her_ratio=1, strategy="episode", batch_size=64
    )
    data = torch.stack([steps([4, 6]), steps([4, 6])])
    data["achieved_goal"][1] += 100
    buffer.extend(data)
    batch = buffer.sample()
    batch["desired_goal"] -= 100 * (batch["achieved_goal"] >= 100)
    batch["next", "desired_goal"] = batch["desired_goal"]
    batch["achieved_goal"] %= 100
    check(batch, 1, "episode", [4, 6])


@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_seed_repeats_goals(prefetch):
    """With and without prefetching, after a state was restored, and whatever was written in between."""

    def make(**options):
        buffer = HERReplayBuffer(distance, storage=LazyTensorStorage(50), batch_size=8, **options)
        buffer.extend(steps([9, 20, 3]))
        return buffer

    plain, other, third = make(seed=4), make(seed=4, prefetch=prefetch), make(seed=5)
    for _ in range(12):
        assert equal(plain.sample(), other.sample())
    third.load_state_dict(other.state_dict())
    for buffer in (plain, third):
        buffer.extend(steps([5]))
    assert all(equal(plain.sample(), third.sample()) for _ in range(4))
    other.close()


def test_slices_priorities_and_transforms():
    """Goals are chosen for what any sampler draws, and transforms see them."""
    buffer = HERReplayBuffer(
        distance,
        storage=LazyTensorStorage(50),
        sampler=SliceSampler(slice_len=3, truncated_key=None),
        batch_size=12,
        her_ratio=1,
    )
    buffer.extend(steps([9, 20, 3]))
    check(buffer.sample(), 1, "future", [9, 20, 3])
    buffer.set_sampler(PrioritizedSampler(50, 0.7, 0.5))
    buffer.append_transform(lambda batch: batch.set("goal_seen", batch["desired_goal"].clone()))
    batch = buffer.sample()
    assert "priority_weight" in batch and torch.equal(batch["goal_seen"], batch["desired_goal"])
    check(batch, 1, "future", [9, 20, 3])
    buffer.her_ratio, buffer.strategy = 0.5, "final"
    check(buffer.sample(), 0.5, "final", [9, 20, 3])


def test_lists_of_records():
    buffer = HERReplayBuffer(distance, storage=ListStorage(30), batch_size=8, strategy="final")
    buffer.extend(list(steps([4, 5]).unbind(0)))
    check(buffer.sample(), 0.8, "final", [4, 5])
    buffer.her_ratio = 0.01  # no step of 8 gets a new goal
    check(buffer.sample(), 0.01, "final", [4, 5])


@pytest.mark.parametrize("layout", ["flat", "raw"])
@pytest.mark.parametrize("achieved", [("observation", "achieved_goal"), ("next", "observation", "achieved_goal")])
def test_datasets_with_goals(tmp_path, layout, achieved):
    """The goal environments of Gymnasium-Robotics: goals below the observation, episodes from the table."""
    lengths = [6, 1, 9, 4]
    kinds = {f"observation__{name}": ((3,), "float32") for name in ("observation", "achieved_goal", "desired_goal")}
    episodes = make_episodes(lengths, **kinds)
    for number, episode in enumerate(episodes):
        episode.states["observation/achieved_goal"][:] = 100 * number + np.arange(lengths[number] + 1)[:, None]
    folder = write_dataset(tmp_path, episodes, layout)
    truth = columns(episodes)["/".join(achieved)][:, 0]
    buffer = HERReplayBuffer(
        lambda batch: batch["observation", "desired_goal"][:, 0],
        storage=rbdata.open_dataset(folder),
        goal_key=("observation", "desired_goal"),
        achieved_goal_key=achieved,
        her_ratio=1,
        batch_size=40,
        seed=0,
    )
    starts = np.cumsum([0, *lengths[:-1]])
    for batch in (buffer.sample(), buffer.sample()):
        for step, goal, reward in zip(
            batch["index"], batch["observation", "desired_goal"][:, 0], batch["next", "reward"]
        ):
            assert float(goal) in truth[list(allowed("future", int(step), starts, sum(lengths)))] and reward == goal
    stored = torch.as_tensor(columns(episodes)["observation/desired_goal"])
    assert torch.equal(buffer.dataset["observation/desired_goal"], stored)


def test_what_is_refused():
    make = lambda **options: HERReplayBuffer(distance, storage=LazyTensorStorage(9), batch_size=4, **options)  # noqa: E731
    for bad in ({"her_ratio": 1.5}, {"strategy": "past"}, {"n_step": 3}):
        with pytest.raises(UsageError):
            make(**bad)
    for missing in ("achieved_goal", "desired_goal", "reward"):
        buffer = make(reward_key="reward") if missing == "reward" else make()
        buffer.extend(steps([4]).exclude(missing))
        with pytest.raises(UnknownKeyError, match=missing.split("_")[0]):
            buffer.sample()
    buffer = make()
    buffer.extend(steps([4], flag="over"))
    with pytest.raises(UsageError, match="episodes end"):
        buffer.sample()
    buffer = make(end_key=("next", "over"))
    buffer.extend(steps([4], flag="over"))
    check(buffer.sample(), 0.8, "future", [4])
    buffer.reward_fn = lambda batch: torch.zeros(2)
    with pytest.raises(SchemaError, match="reward_fn"):
        buffer.sample()


@pytest.mark.parametrize(
    ("stored", "computed", "fits"),
    [
        (torch.uint8, torch.int64, False),  # -1 would be 255
        (torch.bool, torch.int64, False),
        (torch.int8, torch.int64, True),
        (torch.uint8, torch.float32, True),
        (torch.float16, torch.float32, True),
    ],
)
def test_rewards_that_the_stored_dtype_cannot_hold(stored, computed, fits):
    def make(goal, achieved, reward):
        data = steps([4, 3])
        data["desired_goal"], data["next", "desired_goal"] = (
            data[key].to(goal) for key in ("achieved_goal", "achieved_goal")
        )
        data["achieved_goal"] = -data["achieved_goal"].to(achieved)
        data["next", "reward"] = data["next", "reward"].abs().to(reward)
        fixed = torch.float32 if reward is torch.float32 else computed
        function = lambda batch: torch.full((len(batch),), -1, dtype=fixed)  # noqa: E731
        buffer = HERReplayBuffer(function, storage=LazyTensorStorage(7), batch_size=7, her_ratio=1.0, seed=0)
        buffer.extend(data)
        return buffer

    rewards = make(torch.float32, torch.float32, stored)
    goals = make(stored, computed, torch.float32)
    if not fits:
        for buffer in (rewards, goals):
            with pytest.raises(SchemaError, match="cannot hold"):
                buffer.sample()
        return
    assert rewards.sample()["next", "reward"].tolist() == [[-1]] * 7
    assert set(goals.sample()["desired_goal"].flatten().tolist()) <= {0, -1, -2, -3, -4, -5, -6}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_steps_that_reach_their_goal_terminate_where_it_is_wanted(prefetch):
    def reached(batch):
        return (batch["achieved_goal"] == batch["desired_goal"]).all(-1)

    def make(**options):
        return HERReplayBuffer(
            lambda batch: reached(batch).float(), storage=LazyTensorStorage(40), batch_size=40, seed=0, **options
        )

    data = steps([6, 7, 5])
    ended = torch.zeros(18, 1, dtype=torch.bool)
    ended[[2, 5, 17]] = True  # by the goals that are stored; the episode of 7 was cut
    truncated = torch.zeros(18, 1, dtype=torch.bool)
    truncated[[12, 17]] = True
    data["next", "terminated"], data["next", "truncated"] = ended, truncated
    data["next", "done"] = ended | truncated
    as_stored, buffer = make(), make(terminated_fn=reached, prefetch=prefetch)
    for each in (as_stored, buffer):
        each.extend(data)
    for _ in range(3):
        before, after = as_stored.sample(), buffer.sample()
        assert equal(
            before.exclude(("next", "done"), ("next", "terminated")),
            after.exclude(("next", "done"), ("next", "terminated")),
        )
        row, new = before["index"], torch.arange(40) < 32
        for key in ("done", "terminated"):
            assert torch.equal(before["next", key], data["next", key][row])  # as TorchRL
            assert torch.equal(after["next", key][~new], data["next", key][row[~new]])
        goal = after["next", "reward"][new].bool()
        assert torch.equal(after["next", "terminated"][new], goal) and 0 < int(goal.sum()) < 32
        assert torch.equal(after["next", "done"][new], goal | truncated[row[new]])


def test_flags_that_cannot_be_set():
    for fn, words in (
        (lambda batch: torch.zeros(2, dtype=torch.bool), "terminated_fn"),
        (lambda _: torch.zeros(3), "not bool"),
    ):
        buffer = HERReplayBuffer(distance, terminated_fn=fn, storage=LazyTensorStorage(9), batch_size=4)
        data = steps([4])
        data["next", "terminated"] = data["next", "done"].clone()
        buffer.extend(data)
        with pytest.raises(SchemaError, match=words):
            buffer.sample()
    buffer = HERReplayBuffer(distance, terminated_fn=lambda _: None, storage=LazyTensorStorage(9), batch_size=4)
    buffer.extend(steps([4]))
    with pytest.raises(UnknownKeyError, match="next/terminated"):
        buffer.sample()


def test_functions_and_keys_assigned_in_use():
    steps = torch.arange(64.0)[:, None]
    done = {"reward": torch.zeros(64, 1), "done": steps % 8 == 7, "terminated": steps < 0}
    goals = {"achieved_goal": steps, "other": steps + 1000, "desired_goal": torch.zeros(64, 1)}
    buffer = HERReplayBuffer(
        lambda batch: torch.ones(len(batch)), storage=LazyTensorStorage(64), batch_size=8, her_ratio=1.0, seed=0
    )
    buffer.extend(TensorDict({**goals, "next": done}, [64]))
    buffer.sample()
    buffer.reward_fn, buffer.achieved_goal_key = lambda batch: torch.full((len(batch),), 7.0), "other"
    buffer.terminated_fn = lambda batch: torch.ones(len(batch), dtype=torch.bool)
    batch = buffer.sample()
    assert (batch["next", "reward"] == 7).all() and (batch["desired_goal"] >= 1000).all()
    assert batch["next", "terminated"].all() and buffer.achieved_goal_key == "other"
