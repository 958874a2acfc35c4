"""Normalised scores: of datasets that are here, and of ids whose source knows them."""

from __future__ import annotations

import gymnasium
import gymnasium_envs
import numpy as np
import pytest
import rbdata
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from minari_tools import minari, with_root, write
from paths import DATA
from rbdata.datasets.scores import normalized_score, reference_scores
from rbdata.datasets.sources.atari.source import games
from rbdata.datasets.sources.human_scores import HUMAN_SCORES, game_of
from rbdata.errors import DatasetNotFoundError, UsageError

gymnasium_envs.register()


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


def test_d4rl_by_id():
    assert normalized_score("hopper-medium-v2", 3234.3) == 100.0
    assert normalized_score("d4rl/hopper-medium-v2", -20.272305) == 0.0
    assert normalized_score("kitchen-mixed-v0", [0, 2, 4]).tolist() == [0, 50, 100]
    assert normalized_score("pen-human-v1", np.float32(96.262799)).shape == ()
    assert normalized_score("kitchen-mixed-v0", torch.ones(2, 3)).shape == (2, 3)
    scores = reference_scores("antmaze-large-play-v2")
    assert (scores.low, scores.high, scores.high_policy) == (0.0, 1.0, "expert")
    with pytest.raises(DatasetNotFoundError):
        normalized_score("hopper-medium", 1)
    with pytest.raises(UsageError, match="no reference scores"):
        normalized_score("carla-town-render-v0", 1)


def test_humans_in_atari_games():
    assert len(HUMAN_SCORES) == 57
    assert normalized_score("Pong/5", [-20.7, 14.6]).tolist() == [0, 100]
    assert normalized_score("gymnasium/ALE/Breakout-v5", 30.5) == pytest.approx(100)
    assert "human" in reference_scores("atari/Seaquest/1").description
    without = {"AirRaid", "Carnival", "ElevatorAction", "JourneyEscape", "Pooyan"}
    assert set(games()) - set(HUMAN_SCORES) == without
    with pytest.raises(UsageError, match="no reference scores"):
        normalized_score("atari/Pooyan/1", 3)
    ids = {
        "ALE/MsPacman-v5": "MsPacman",
        "PongNoFrameskip-v4": "Pong",
        "ALE/Pong-ram-v5": "Pong",
        "CartPole-v1": "CartPole",
    }
    assert {name: game_of(name) for name in ids} == ids


def test_clipped_returns_are_no_scores(root):
    path = rbdata.download("Breakout/1", mirror=str(DATA / "atari"), codec="raw", shards="0")
    dataset = rbdata.open_dataset(path)
    assert dataset.normalized_score(30.5) == pytest.approx(100)
    with pytest.raises(UsageError, match="clipped"):
        _ = dataset.normalized_returns
    assert not reference_scores("Pong/1").caveat  # all its rewards are -1, 0 and 1


def test_a_d4rl_dataset_and_what_is_made_from_it():
    rbdata.download("d4rl/hopper-full-replay-v2", mirror=str(DATA / "d4rl"))
    dataset = rbdata.open_dataset("hopper-full-replay-v2")
    returns = np.asarray(dataset.episodes.returns)
    low, high = -20.272305, 3234.3
    whole = dataset.episodes.whole
    assert 0 < whole.sum() < len(whole) and np.isnan(dataset.normalized_returns[~whole]).all()
    assert np.allclose(dataset.normalized_returns[whole], 100 * (returns[whole] - low) / (high - low))
    assert dataset.normalized_returns.shape == (len(dataset.episodes),)
    kept = rbdata.open_dataset(
        rbdata.preprocess(dataset.path, "rbdata:filter_episodes", dest="my/kept", args={"min_length": 1})
    )
    assert np.allclose(kept.normalized_returns, dataset.normalized_returns, equal_nan=True)
    scaled = rbdata.preprocess(kept.path, "rbdata:scale_rewards", dest="my/scaled", args={"scale": 2})
    with pytest.raises(UsageError, match="preprocessing changed the rewards"):
        _ = rbdata.open_dataset(scaled).normalized_returns
    assert normalized_score("my/scaled", high) == 100


def double_late(td, step):
    td["next", "reward"][step >= 64] *= 2
    return td


def without_the_first_step(td):
    return td[1:] if len(td) > 1 else td


OTHER_RETURNS = {
    "later than the first batch": (double_late, {"batch_size": 16}),
    "shorter episodes": (without_the_first_step, {"per": "episode"}),
    "n_step": ("rbdata:n_step", {"args": {"n": 3}}),
    "success": ("rbdata:relabel_rewards", {"args": {"rule": "success"}}),
}
SAME_RETURNS = {
    "fewer episodes": ("rbdata:filter_episodes", {"args": {"min_length": 5}}),
    "the first steps": ((), {"num_frames": 100}),
}


@pytest.mark.parametrize("name", [*OTHER_RETURNS, *SAME_RETURNS])
def test_scores_are_those_of_the_returns_that_are_known(name):
    rbdata.download("d4rl/hopper-full-replay-v2", mirror=str(DATA / "d4rl"))
    fn, options = {**OTHER_RETURNS, **SAME_RETURNS}[name]
    made = rbdata.open_dataset(rbdata.preprocess("hopper-full-replay-v2", fn, dest="my/made", **options))
    if name in SAME_RETURNS:
        known = rbdata.open_dataset("hopper-full-replay-v2").normalized_returns
        scores = made.normalized_returns[~np.isnan(made.normalized_returns)]
        assert len(scores) and np.isclose(scores[:, None], known, rtol=1e-4).any(1).all()
        return
    for dataset in derived(made, rbdata.open_dataset("hopper-full-replay-v2")) if name == "slices" else [made]:
        with pytest.raises(UsageError, match="preprocessing changed the rewards"):
            _ = dataset.normalized_returns


def derived(dataset, plain):
    """The dataset, and what is made of it and of one with the same environment: copies, views, concatenations."""
    rbdata.preprocess(dataset, dest="my/copy")
    first = dataset.select(episodes=[0])
    both = [rbdata.concat([dataset, plain], keys="common"), rbdata.concat([plain, first], keys="common")]
    saved = rbdata.open_dataset(both[1].save("my/both"))
    return [dataset, first, dataset.select(steps=slice(0, 30)), rbdata.open_dataset("my/copy"), *both, saved]


def test_minari_states_its_own(tmp_path, monkeypatch):
    with pytest.raises(DatasetNotFoundError):
        normalized_score("minari/mujoco/hopper/expert-v0", 5)
    folder = with_root(monkeypatch, tmp_path / "minari")
    box = spaces.Box(-1, 1, (2,), np.float32)
    write("toy/box-v0", box, spaces.Discrete(2), [5, 9], env="CartPole-v1", ref_min_score=1.5, ref_max_score=20.0)
    write("toy/plain-v0", box, spaces.Discrete(2), [5])
    rbdata.download("minari/toy/box-v0", mirror=str(folder))
    mine = normalized_score("minari/toy/box-v0", np.array([1.5, 20.0, 7.0]))
    assert np.allclose(
        mine, 100 * minari().get_normalized_score(minari().load_dataset("toy/box-v0"), np.array([1.5, 20.0, 7.0]))
    )
    rbdata.download("minari/toy/plain-v0", mirror=str(folder))
    with pytest.raises(UsageError, match="no reference scores are known for minari/toy/plain-v0"):
        _ = rbdata.open_dataset("minari/toy/plain-v0").normalized_returns


def test_a_recording_without_scores():
    path = rbdata.download("gymnasium/tests/Counter-v0", steps=20)
    assert rbdata.open_dataset(path).reference_scores is None


def test_cut_episodes_have_no_score():
    """600 steps of Breakout are a piece of an episode: its return is no score."""
    pytest.importorskip("ale_py")
    from rbdata.datasets.card.overview import describe_episodes

    rbdata.record("ALE/Breakout-v5", steps=20, procs=0, name="cut", codec="raw")
    cut = rbdata.open_dataset("ALE/Breakout-v5@cut")
    assert cut.episodes.outcomes.tolist() == [3] and np.isnan(cut.normalized_returns).all()
    found = rbdata.inspect("ALE/Breakout-v5@cut")
    assert found.scores == {} and found.not_scored == 1
    score = dict(describe_episodes(cut.manifest, found))["score"]
    assert score == "of no episode; without 1 episode of which the data hold only a part"


@pytest.mark.parametrize("frames", [7, 100])
def test_scores_count_whole_episodes(frames):
    """Episodes that a time limit truncates are whole."""
    from rbdata.datasets.card.overview import describe_episodes

    def make():
        env = gymnasium_envs.Counter(lengths=(9, 3))
        env.spec = EnvSpec("ALE/Breakout-v5")
        return gymnasium.wrappers.TimeLimit(env, frames)

    dataset = rbdata.open_dataset(rbdata.record(make, steps=2 * min(frames, 9) + 3 + 1, name="some"))
    whole = np.array([True, True, True, False])
    returns = np.asarray(dataset.episodes.returns)
    assert dataset.episodes.whole.tolist() == whole.tolist()
    scores = dataset.reference_scores.normalize(returns[whole])
    assert np.isnan(dataset.normalized_returns[3]) and np.allclose(dataset.normalized_returns[whole], scores)
    found = rbdata.inspect(dataset.path)
    assert found.not_scored == 1
    assert found.scores == pytest.approx({"mean": scores.mean(), "min": scores.min(), "max": scores.max()})
    text = dict(describe_episodes(dataset.manifest, found))["score"]
    assert text.endswith("; without 1 episode of which the data hold only a part")


class Life(gymnasium.Wrapper):
    """Ends an episode early, as wrappers for training do when a life is lost."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or observation[0] % 3 == 2, truncated, info


class Halved(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward / 2


class Shown(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return observation


class Noops(gymnasium.Wrapper):
    def reset(self, **options):
        return self.env.reset(**options)


WRAPPED = gymnasium.wrappers
OF_OTHER_RETURNS = {
    "ClipReward": lambda env: WRAPPED.ClipReward(env, -1, 1),
    "TransformReward": lambda env: WRAPPED.TransformReward(env, lambda reward: 3 * reward),
    "NormalizeReward": WRAPPED.NormalizeReward,
    "Life": lambda env: Shown(Life(env)),
    "Halved": Halved,
}
OF_ITS_RETURNS = {
    "statistics": WRAPPED.RecordEpisodeStatistics,
    "stack": lambda env: WRAPPED.FrameStackObservation(env, 2),
    "shown": Shown,
    "noops": Noops,
    "limit": lambda env: WRAPPED.TimeLimit(env, 7),
}


def breakout(wrap=lambda env: env):
    env = gymnasium_envs.Counter(lengths=(9, 3))
    env.spec = EnvSpec("ALE/Breakout-v5")
    return wrap(env)


def loop(env, name):
    """The path of a recording of 40 steps of a loop."""
    with rbdata.Recorder(env, name=name) as recorder:
        recorder.reset(seed=0)
        for _ in range(40):
            *_, terminated, truncated, _ = recorder.step(recorder.action_space.sample())
            if np.ndim(terminated) == 0 and (terminated or truncated):
                recorder.reset()
    return recorder.path


@pytest.mark.parametrize(
    "how, name",
    [("policy", name) for name in (*OF_OTHER_RETURNS, *OF_ITS_RETURNS)]
    + [(how, name) for how in ("policies", "loop", "vector") for name in ("Life", "limit")],
)
def test_wrappers_that_may_change_returns_leave_no_scores(name, how):
    wrap = {**OF_OTHER_RETURNS, **OF_ITS_RETURNS}[name]
    if how == "loop":
        path = loop(breakout(wrap), "one")
    elif how == "vector":
        vector = gymnasium.vector.SyncVectorEnv([lambda: breakout(wrap)] * 2)
        vector.spec = EnvSpec("ALE/Breakout-v5")
        path = loop(vector, "one")
    else:
        path = rbdata.record(lambda: breakout(wrap), steps=40, num_envs=1 + (how == "policies"), name="one")
    dataset = rbdata.open_dataset(path)
    assert dataset.reference_scores.normalize(30.5) == pytest.approx(100)
    if name in OF_ITS_RETURNS:
        assert np.isfinite(dataset.normalized_returns).any()
        return
    plain = rbdata.open_dataset(rbdata.record(breakout, steps=40, name="plain"))
    for one in derived(dataset, plain) if how == "loop" else [dataset]:
        with pytest.raises(UsageError, match=f"cannot be normalised: {name} may have changed its rewards, or where"):
            _ = one.normalized_returns


def test_environments_that_step_in_their_own_way_leave_no_scores():
    """In other processes, or of another package: nothing tells which wrappers they have."""
    from rbdata.datasets.sources.gymnasium.environments import wrappers_of_returns

    env = object.__new__(gymnasium.vector.AsyncVectorEnv)  # without its processes
    env.closed = True
    assert wrappers_of_returns(env) == ["AsyncVectorEnv"]
    assert wrappers_of_returns(gymnasium.vector.VectorEnv()) == ["VectorEnv"]
