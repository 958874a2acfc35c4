"""Leaves that are computed when they are read, normalised observations, scaled rewards: by value, against NumPy."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import rbdata
import torch
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rbdata.errors import UsageError
from rbdata.preprocess.functions.rewards import returns_to_go
from rbdata.storage.episodes import TERMINATED
from storage_tools import columns, make_episodes, write_dataset

EXTRA = ["is_first", "step", "return_to_go", "discount"]
LENGTHS = [7, 3, 12, 1, 7, 5]


def as_read(buffer):
    """The dataset by which the buffer reads."""
    assert isinstance(buffer.storage, rbdata.DatasetStorage)
    return buffer.storage.dataset


def truth_of(episodes):
    """Every leaf of ``extra`` by loops, ``[steps, 1]``."""
    found = {name: [] for name in EXTRA}
    for episode in episodes:
        rewards, n = episode.steps["next/reward"].astype(np.float64).reshape(-1), len(episode)
        for t in range(n):
            found["is_first"].append(t == 0)
            found["step"].append(t)
            found["return_to_go"].append(np.float32(sum(rewards[n - 1 - i] for i in range(n - t))))
            found["discount"].append(0.0 if t == n - 1 and episode.outcome == TERMINATED else 1.0)
    return {name: np.array(values)[:, None] for name, values in found.items()}


@pytest.fixture(scope="module", params=["flat", "zstd"])
def made(request, tmp_path_factory):
    episodes = make_episodes(LENGTHS)
    return write_dataset(tmp_path_factory.mktemp("made"), episodes, request.param), episodes


def test_extra_leaves_by_value(made):
    folder, episodes = made
    truth = truth_of(episodes)
    batch = rbdata.load(folder, batch_size=500, extra=EXTRA, seed=0).sample()
    index = batch["index"].numpy()
    for name in EXTRA:
        assert batch[name].shape == (500, 1)
        assert np.array_equal(batch[name].numpy(), truth[name][index]), name
    dtypes = {"is_first": torch.bool, "step": torch.int64, "return_to_go": torch.float32, "discount": torch.float32}
    assert {name: batch[name].dtype for name in EXTRA} == dtypes
    assert np.array_equal(rbdata.load(folder, extra="step")[:]["step"].numpy(), truth["step"])


def test_returns_to_go_are_those_of_preprocess(made):
    folder, _ = made
    dataset = rbdata.open_dataset(folder)
    expected = torch.cat([returns_to_go(episode)["return_to_go"] for episode in dataset.iter_episodes()])
    assert torch.equal(rbdata.load(dataset, extra="return_to_go")[:]["return_to_go"], expected)


def test_extra_leaves_in_slices_and_n_step(made):
    folder, episodes = made
    truth = truth_of(episodes)
    sliced = rbdata.load(folder, batch_size=30, slice_len=3, extra=EXTRA, seed=1).sample()
    for name in EXTRA:
        assert np.array_equal(sliced[name].numpy(), truth[name][sliced["index"].numpy()])
    ahead = rbdata.load(folder, batch_size=300, n_step=3, extra=EXTRA, seed=1, frame_stack=2).sample()
    assert torch.equal(ahead["discount"], 1 - ahead["next", "terminated"].float())
    assert np.array_equal(ahead["return_to_go"].numpy(), truth["return_to_go"][ahead["index"].numpy()])
    assert not torch.equal(ahead["discount"], torch.ones(300, 1))


@settings(max_examples=examples(20), deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9), draws=st.lists(st.integers(0, 10**6), max_size=20))
def test_any_order_of_reads_gives_the_same_returns(tmp_path_factory, lengths, draws):
    episodes = make_episodes(lengths)
    truth = truth_of(episodes)["return_to_go"]
    buffer = rbdata.load(write_dataset(tmp_path_factory.mktemp("d"), episodes, "flat"), extra="return_to_go")
    for draw in draws:
        step = draw % sum(lengths)
        assert buffer.sample_at(step)["return_to_go"].item() == truth[step, 0]


@pytest.mark.parametrize(
    "options", [{"prefetch": 2}, {"replacement": False}, {"shuffle": "blocks", "replacement": False}]
)
def test_extra_leaves_with_other_options(made, options):
    folder, episodes = made
    truth = truth_of(episodes)
    buffer = rbdata.load(folder, batch_size=5, extra=EXTRA, normalize="observation", seed=3, **options)
    for _ in range(4):
        batch = buffer.sample()
        for name in EXTRA:
            assert np.array_equal(batch[name].numpy(), truth[name][batch["index"].numpy()])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_loader_workers_and_pickles(made):
    folder, episodes = made
    truth = truth_of(episodes)
    buffer = rbdata.load(folder, batch_size=5, extra=EXTRA, normalize="observation", seed=3)
    copied = pickle.loads(pickle.dumps(as_read(buffer)))
    assert torch.equal(copied["return_to_go"], torch.from_numpy(truth["return_to_go"]).float())
    for batch in buffer.as_iterable(4).loader(num_workers=1, multiprocessing_context="fork"):
        assert np.array_equal(batch["return_to_go"].numpy(), truth["return_to_go"][batch["index"].numpy()])


@pytest.mark.parametrize("options", [{"extra": True}, {"normalize": True}, {"normalize": 5}])
def test_values_that_name_no_leaves(made, options):
    with pytest.raises(UsageError, match="or several"):
        rbdata.load(made[0], **options)


def test_what_extra_refuses(made):
    folder, _ = made
    with pytest.raises(UsageError, match="no extra leaf 'steps'") as caught:
        rbdata.load(folder, extra=["steps"])
    assert "is_first, step, return_to_go, discount" in str(caught.value.hint)


# -- normalize -------------------------------------------------------------------------------------------------------------


def moments_of(episodes):
    states = columns(episodes)["observation"].astype(np.float64)
    return states.mean(0), states.std(0) + 1e-3


def test_normalised_observations(made):
    folder, episodes = made
    mean, std = moments_of(episodes)
    buffer = rbdata.load(folder, batch_size=200, normalize="observation", seed=0)
    assert np.allclose(buffer.statistics["observation"]["mean"], mean, rtol=1e-12)
    used = buffer.statistics["observation"]
    assert np.allclose(used["std"], columns(episodes)["observation"].astype(np.float64).std(0), rtol=1e-12)
    assert used["eps"] == 1e-3
    again = rbdata.load(folder, batch_size=200, normalize={"observation": used}, seed=0)
    assert torch.equal(
        again.sample()["observation"],
        rbdata.load(folder, batch_size=200, normalize="observation", seed=0).sample()["observation"],
    )
    batch, truth = buffer.sample(), columns(episodes)
    index = batch["index"].numpy()
    for key in ("observation", "next/observation"):
        found = batch[tuple(key.split("/"))]
        assert found.dtype == torch.float32
        assert np.allclose(found.numpy(), (truth[key][index] - mean) / std, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, np.float64])
def test_normalised_values_far_from_zero_keep_their_precision(tmp_path, dtype):
    """Time stamps, and positions far from the origin: float32 has no room for the stamps, nor for the mean of either."""
    steps, drawn = np.arange(40), np.random.default_rng(0).integers(0, 500, 40)
    stamp = (1_700_000_000 + drawn if np.issubdtype(dtype, np.integer) else 1e5 + drawn / 2048).astype(dtype)
    arrays = {
        "observation": steps[:, None].astype(np.float32),
        "action": steps[:, None].astype(np.float32),
        "reward": np.ones(40, np.float32),
        "terminated": steps % 8 == 7,
        "truncated": np.zeros(40, bool),
        "stamp": stamp,
    }
    folder = rbdata.from_arrays(arrays, "my/stamps", root=tmp_path)
    mean, std = stamp.astype(np.float64).mean(), stamp.astype(np.float64).std() + 1e-3
    expected = (stamp.astype(np.float64) - mean) / std
    given = {"mean": mean, "std": std}
    for normalize in ("info/stamp", [("info", "stamp")], {"info/stamp": given}, {("info", "stamp"): given}):
        found = rbdata.load(folder, normalize=normalize)[:]["info", "stamp"]
        assert found.dtype == (torch.float64 if dtype == np.float64 else torch.float32)
        assert np.allclose(found.numpy().reshape(-1), expected, rtol=1e-5, atol=1e-5)


def test_stacks_and_n_step_are_normalised(made):
    folder, episodes = made
    mean, std = moments_of(episodes)
    options = {"batch_size": 50, "frame_stack": 3, "n_step": 2, "seed": 5}
    plain = rbdata.load(folder, **options).sample()
    changed = rbdata.load(folder, normalize=["observation"], **options).sample()
    for key in ("observation", ("next", "observation")):
        before, after = plain[key].numpy(), changed[key].numpy()
        padding = (before == 0).all(-1, keepdims=True) & (after == 0).all(-1, keepdims=True)
        assert np.allclose(after, np.where(padding, 0, (before - mean) / std), atol=1e-5)


@pytest.mark.parametrize("kind, names", [("minmax", ("min", "max")), ("quantile", ("q01", "q99"))])
def test_extremes_and_percentiles_become_minus_one_and_one(made, kind, names):
    folder, episodes = made
    states = columns(episodes)["observation"].astype(np.float64)
    low, high = (states.min(0), states.max(0)) if kind == "minmax" else np.quantile(states, (0.01, 0.99), axis=0)
    buffer = rbdata.load(folder, batch_size=200, normalize={"observation": kind}, seed=0)
    used = buffer.statistics["observation"]
    assert tuple(used) == names and np.allclose(used[names[0]], low) and np.allclose(used[names[1]], high)
    plain, batch = rbdata.load(folder, batch_size=200, seed=0).sample(), buffer.sample()
    for key in ("observation", ("next", "observation")):
        wanted = 2 * (plain[key].double().numpy() - low) / (high - low) - 1
        assert np.allclose(batch[key].numpy(), wanted, atol=1e-5)
    assert batch["observation"].dtype == torch.float32
    if kind == "minmax":
        whole = buffer[:]["observation"]
        assert np.allclose(whole.amin(0), -1, atol=1e-6) and np.allclose(whole.amax(0), 1, atol=1e-6)
    given = rbdata.load(folder, batch_size=200, normalize={"observation": used}, seed=0)
    assert torch.equal(given.sample()["observation"], batch["observation"])


def test_a_component_of_one_value_becomes_zero(tmp_path):
    state = np.stack([np.arange(9.0), np.full(9, 7.0)], 1).astype(np.float32)
    steps = {"action": np.arange(8), "reward": np.ones(8, np.float32), "terminated": True, "truncated": False}
    place = rbdata.from_episodes([{"observation": state, **steps}], "my/still", root=tmp_path)
    for kind in ("minmax", "quantile"):
        batch = rbdata.load(place, normalize={"observation": kind, "action": "minmax"})[:]
        assert (batch["observation"][:, 1] == 0).all() and batch["observation"][0, 0] <= -1
        assert batch["action"].amin() == -1 and batch["action"].amax() == 1
    with pytest.raises(UsageError, match="is 'mean'"):
        rbdata.load(place, normalize={"observation": "mean"})


def test_given_statistics(made):
    folder, episodes = made
    given = {"observation": {"mean": np.arange(4.0), "std": [1.0, 2.0, 3.0, 4.0]}}
    batch = rbdata.load(folder, batch_size=20, normalize=given, seed=0).sample()
    raw = columns(episodes)["observation"][batch["index"].numpy()]
    assert np.allclose(batch["observation"].numpy(), (raw - np.arange(4)) / np.array([1, 2, 3, 4]), atol=1e-5)
    for bad in (
        {"observation": {"mean": [0.0] * 3, "std": 1.0}},
        {"observation": {"mean": 0.0}},
        {"observation": {"mean": 0.0, "std": 0.0}},
        {"observation": {"mean": np.nan, "std": 1.0}},
        {"observation": {"min": 1.0, "max": 0.0}},
        {"observation": {"min": 0.0, "max": 1.0, "eps": 0.1}},
        {"observation": {"q01": 0.0, "max": 1.0}},
        {"reward": "minmax"},
        "reward",
        ["next/reward"],
        "done",
    ):
        with pytest.raises(UsageError):
            rbdata.load(folder, normalize=bad)


@pytest.mark.parametrize("own", [True, False])
def test_statistics_that_the_program_changes(made, own):
    """Arrays given to `load`, and those of ``buffer.statistics``, are copies: batches stay as they are."""
    folder, _ = made
    mean, std = np.arange(4.0), np.full(4, 2.0)
    normalize = {"observation": {"mean": mean, "std": std}} if own else "observation"
    expected = rbdata.load(folder, batch_size=20, normalize=normalize, seed=0).sample()
    buffer = rbdata.load(folder, batch_size=20, normalize=normalize, seed=0)
    copied = pickle.dumps(buffer)
    for values in (mean, std, *buffer.statistics["observation"].values()):
        values *= 3.0
    for one in (buffer, pickle.loads(copied), pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        assert torch.equal(one.sample_at(expected["index"])["observation"], expected["observation"])


# -- rewards ---------------------------------------------------------------------------------------------------------------


def test_reward_scale(made):
    folder, episodes = made
    raw = columns(episodes)["next/reward"]
    returns = [episode.steps["next/reward"].sum(dtype=np.float64) for episode in episodes]
    factor = 1000 / (max(returns) - min(returns))
    for scale, expected in ((0.1, raw * 0.1), ("minus_one", raw - 1), ("return_range", raw * factor), (-2, raw * -2)):
        buffer = rbdata.load(folder, batch_size=64, reward_scale=scale, extra="return_to_go", seed=0)
        batch = buffer.sample()
        index = batch["index"].numpy()
        assert np.allclose(batch["next", "reward"].numpy(), expected[index], rtol=1e-5, atol=1e-5)
        last = np.cumsum([len(episode) for episode in episodes])[0] - 1
        assert np.allclose(buffer.sample_at(int(last))["return_to_go"], expected[last], rtol=1e-5, atol=1e-5)
    assert buffer.statistics["next/reward"] == {"scale": -2.0, "shift": 0.0}
    for bad in ("x", 0, True, np.inf, [1]):
        with pytest.raises(UsageError):
            rbdata.load(folder, reward_scale=bad)


def test_rewards_of_n_steps_are_scaled(made):
    folder, _ = made
    plain = rbdata.load(folder, batch_size=64, n_step=3, seed=0).sample()
    scaled = rbdata.load(folder, batch_size=64, n_step=3, seed=0, reward_scale=3.0).sample()
    assert torch.allclose(scaled["next", "reward"], 3 * plain["next", "reward"], atol=1e-5)


def test_nothing_asked_for_changes_nothing(made):
    folder, _ = made
    buffer = rbdata.load(folder, batch_size=4)
    assert type(as_read(buffer)) is rbdata.Dataset and buffer.statistics == {}


# -- where datasets lie ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goals", [None, rbdata.Goals(geometric=0.5, actor=rbdata.Goals(0, 0, 1))])
def test_remote_datasets_give_the_same_batches(made, tmp_path, goals):
    folder, _ = made
    options = {"batch_size": 8, "normalize": "observation", "seed": 4, "goals": goals}
    options |= {"extra": EXTRA, "reward_scale": "return_range"} if goals is None else {"extra": ["step", "discount"]}
    here = rbdata.load(folder, **options)
    there = rbdata.load(folder.as_uri(), cache_dir=tmp_path / "cache", **options)
    for _ in range(5):
        assert (here.sample() == there.sample()).all()
    assert np.array_equal(here.statistics["observation"]["mean"], there.statistics["observation"]["mean"])


@pytest.mark.parametrize("scale", [2.0, "return_range", "minus_one"])
def test_a_reward_scale_beside_goals_is_refused(made, scale):
    """Goals replace the rewards: the scale was ignored."""
    with pytest.raises(UsageError, match="goals replace the rewards"):
        rbdata.load(made[0], batch_size=8, reward_scale=scale, goals=rbdata.Goals())


def test_parts_of_a_dataset(made):
    folder, episodes = made
    dataset = rbdata.open_dataset(folder)
    part = dataset.select(episodes=[2, 0])
    truth = truth_of([episodes[2], episodes[0]])
    buffer = rbdata.load(part, batch_size=50, extra=EXTRA, normalize="observation", goals=None, seed=0)
    batch = buffer.sample()
    for name in EXTRA:
        assert np.array_equal(batch[name].numpy(), truth[name][batch["index"].numpy()]), name
    states = np.concatenate([episodes[2].states["observation"][:-1], episodes[0].states["observation"][:-1]])
    assert np.allclose(buffer.statistics["observation"]["mean"], states.mean(0))


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_returns_to_go_beside_another_default_dtype(made, default):
    folder, episodes = made
    torch.set_default_dtype(default)
    try:
        found = rbdata.load(folder, extra="return_to_go")[:]["return_to_go"]
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32 and np.array_equal(found.numpy(), truth_of(episodes)["return_to_go"])
