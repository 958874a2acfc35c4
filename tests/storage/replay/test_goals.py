"""Goals drawn from the dataset: distributions and values against a NumPy class written by OGBench's rule."""

from __future__ import annotations

import numpy as np
import pytest
import rbdata
import torch
from rbdata.errors import SchemaError, UnknownKeyError, UsageError
from storage_tools import columns, make_episodes, write_dataset
from torch.testing import assert_close

LENGTHS = [9, 4, 1, 17, 9]
ENDS = np.cumsum(LENGTHS) - 1
COUNT = sum(LENGTHS)


@pytest.fixture(scope="module", params=["flat", "zstd"])
def made(request, tmp_path_factory):
    episodes = make_episodes(LENGTHS)
    for number, state in enumerate(state for episode in episodes for state in episode.states["observation"]):
        state[0] = number  # tells states apart
    return write_dataset(tmp_path_factory.mktemp("made"), episodes, request.param), columns(episodes)


def step_of(states, truth):
    return np.searchsorted(truth["observation"][:, 0], states[..., 0].numpy())


def numpy_goals(rng, steps, current, trajectory, geometric):
    """The steps of goals by the published rule, one goal at a time."""
    final = ENDS[np.searchsorted(ENDS, steps)]
    if geometric is not None:
        later = np.minimum(steps + rng.geometric(1 - geometric, len(steps)), final)
    else:
        d = rng.random(len(steps))
        later = np.round(np.minimum(steps + 1, final) * d + final * (1 - d)).astype(int)
    if current == 1:
        return steps
    mixed = np.where(rng.random(len(steps)) < trajectory / (1 - current), later, rng.integers(0, COUNT, len(steps)))
    return np.where(rng.random(len(steps)) < current, steps, mixed)


@pytest.mark.parametrize(
    ("mixture", "geometric"),
    [
        ((0.2, 0.5, 0.3), 0.7),
        ((0.2, 0.5, 0.3), None),
        ((0, 1, 0), 0.5),
        ((0, 1, 0), None),
        ((1, 0, 0), 0.9),
        ((0, 0, 1), 0.9),
    ],
)
def test_distribution_of_each_pair_of_step_and_goal(tmp_path, mixture, geometric):
    episodes = make_episodes(LENGTHS)
    for number, state in enumerate(state for episode in episodes for state in episode.states["observation"]):
        state[0] = number
    folder, truth = write_dataset(tmp_path, episodes, "flat"), columns(episodes)
    current, trajectory, anywhere = mixture
    goals = rbdata.Goals(current, trajectory, anywhere, geometric)
    batch = rbdata.load(folder, batch_size=6000 * COUNT, goals=goals, seed=5).sample()
    steps, found = batch["index"], step_of(batch["goal"], truth)
    expected = numpy_goals(np.random.default_rng(1), steps.numpy(), mixture[0], mixture[1], geometric)
    pairs = [np.bincount(steps.numpy() * COUNT + each, minlength=COUNT * COUNT) for each in (found, expected)]
    seen = (pairs[0] + pairs[1]) > 0
    ours, theirs = (counts[seen].astype(float) for counts in pairs)
    often = ours + theirs >= 20
    statistic = ((ours - theirs)[often] ** 2 / (ours + theirs)[often]).sum()
    free = max(1, often.sum() - COUNT)
    assert statistic < free + 5 * np.sqrt(2 * free) + 1e-9
    assert (ours[~often].sum() + theirs[~often].sum()) < 0.01 * 2 * len(steps)


def test_values_of_a_batch(made):
    folder, truth = made
    goals = rbdata.Goals(geometric=0.8, actor=rbdata.Goals(0, 1, 0, geometric=None))
    batch = rbdata.load(folder, batch_size=4000, goals=goals, extra=["discount"], seed=0).sample()
    index, goal = batch["index"].numpy(), step_of(batch["goal"], truth)
    assert np.array_equal(batch["goal"].numpy(), truth["observation"][goal])
    success = torch.from_numpy(index == goal)[:, None]
    assert 0.1 < success.float().mean() < 0.5
    assert_close(batch["next", "reward"], success.float() - 1)
    assert torch.equal(batch["next", "terminated"], success)
    assert np.array_equal(batch["next", "truncated"].numpy(), truth["next/truncated"][index])
    assert torch.equal(batch["next", "done"], success | batch["next", "truncated"])
    assert torch.equal(batch["discount"], 1 - success.float())
    assert np.array_equal(batch["observation"].numpy(), truth["observation"][index])
    actor = step_of(batch["actor_goal"], truth)
    final = ENDS[np.searchsorted(ENDS, index)]
    assert ((actor > index) | (index == final)).all() and (actor <= final).all()


def test_positive_rewards_and_functions(made):
    folder, _ = made
    batch = rbdata.load(folder, batch_size=300, goals=rbdata.Goals(1, 0, 0, negative=False), seed=0).sample()
    assert bool((batch["next", "reward"] == 1).all())

    def distance(achieved, goal):
        return -(achieved - goal).abs().sum(-1)

    batch = rbdata.load(folder, batch_size=300, goals=rbdata.Goals(reward_fn=distance), seed=0).sample()
    assert_close(batch["next", "reward"][:, 0], distance(batch["observation"], batch["goal"]))
    assert not batch["next", "terminated"].any()

    def near(achieved, goal):
        close = (achieved[:, 0] - goal[:, 0]).abs() < 2
        return close.float() * 5, close

    batch = rbdata.load(folder, batch_size=300, goals=rbdata.Goals(reward_fn=near), seed=0).sample()
    assert torch.equal(batch["next", "terminated"][:, 0], (batch["observation"] - batch["goal"])[:, 0].abs() < 2)
    with pytest.raises(SchemaError, match="shape"):
        rbdata.load(folder, batch_size=3, goals=rbdata.Goals(reward_fn=lambda a, g: a), seed=0).sample()


def test_goals_are_normalised_as_observations_are(made):
    folder, truth = made
    options = {"batch_size": 100, "seed": 7, "goals": rbdata.Goals()}
    plain, changed = (
        rbdata.load(folder, **options).sample(),
        rbdata.load(folder, normalize="observation", **options).sample(),
    )
    mean, std = truth["observation"].mean(0), truth["observation"].astype(float).std(0) + 1e-3
    assert np.allclose(changed["goal"].numpy(), (plain["goal"].numpy() - mean) / std, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch": 3},
        {"replacement": False},
        {"slice_len": 2},
        {"replacement": False, "shuffle": "blocks"},
        {"alpha": 0.6, "beta": 0.4},
        {"replacement": False, "slice_len": 3, "strict_length": False, "pad_output": True},
    ],
)
def test_a_seed_repeats_goals_and_rules_hold(made, options):
    folder, truth = made
    base = {"batch_size": 6, "goals": rbdata.Goals(geometric=0.7, actor=rbdata.Goals(0, 1, 0)), "seed": 11, **options}
    first, second = rbdata.load(folder, **base), rbdata.load(folder, **{**base, "prefetch": None})
    for _ in range(5):
        one, two = first.sample(), second.sample()
        assert (one == two).all()
        success = torch.from_numpy(one["index"].numpy() == step_of(one["goal"], truth))[:, None]
        assert torch.equal(one["next", "terminated"], success)
    saved = first.state_dict()
    after = [first.sample() for _ in range(3)]
    again = rbdata.load(folder, **base)
    again.load_state_dict(saved)
    assert all((one == again.sample()).all() for one in after)


def test_loader_workers(made):
    folder, truth = made
    buffer = rbdata.load(folder, batch_size=6, goals=rbdata.Goals(), seed=2)
    batches = list(buffer.as_iterable(4).loader(num_workers=1, multiprocessing_context="forkserver"))
    for batch in batches:
        success = batch["index"].numpy() == step_of(batch["goal"], truth)
        assert np.array_equal(batch["next", "terminated"][:, 0].numpy(), success)


def test_what_is_refused(made):
    folder, _ = made
    for arguments in ({"current": 0.5}, {"current": -0.1, "random": 0.6}, {"geometric": 1.0}, {"geometric": 0}):
        with pytest.raises(UsageError):
            rbdata.Goals(**arguments)
    with pytest.raises(UsageError, match="actor"):
        rbdata.Goals(actor=rbdata.Goals(actor=rbdata.Goals()))
    for options in ({"n_step": 3}, {"extra": "return_to_go"}):
        with pytest.raises(UsageError):
            rbdata.load(folder, goals=rbdata.Goals(), **options)
    with pytest.raises(UsageError, match="no 'state'"):
        rbdata.load(folder, goals=rbdata.Goals(goal_key="state"))
    with pytest.raises(UsageError, match=r"rbdata.Goals"):
        rbdata.load(folder, goals=0.5)


def test_goals_of_leaves_that_batches_leave_out(made):
    folder, truth = made
    batch = rbdata.load(folder, batch_size=50, keys=["action"], goals=rbdata.Goals(), seed=0).sample()
    assert "observation" not in batch
    assert np.array_equal(
        step_of(batch["goal"], truth) == batch["index"].numpy(), batch["next", "terminated"][:, 0].numpy()
    )
    goals = rbdata.Goals(reward_fn=lambda achieved, goal: (achieved - goal).sum(-1))
    with pytest.raises(UnknownKeyError, match="observation"):
        rbdata.load(folder, batch_size=50, keys=["action"], goals=goals).sample()
