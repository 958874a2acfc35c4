"""Environments and policies of users, of every kind: what they did is what a recording holds, or there is an error.

`Journal` environments write down, as copies, what they get and what they return. They change actions in place, reuse the
arrays that they return, and give rewards and flags in every form.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import rbdata
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from rbdata.errors import RbdataError, UsageError
from rbdata.storage.integrity import verify

OBSERVATIONS: list[spaces.Space[Any]] = [
    spaces.Box(-np.inf, np.inf, (3,), np.float32),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    spaces.Box(0, 255, (20, 20, 3), np.uint8),
    spaces.Discrete(7, start=-3),
    spaces.MultiDiscrete([4, 5]),
    spaces.MultiBinary(5),
    spaces.Dict(b=spaces.Box(-9, 9, (), np.float32), a=spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 9, (2,), int)))),
]
ACTIONS: list[spaces.Space[Any]] = [
    spaces.Box(-1, 1, (2,), np.float32),
    spaces.Box(-5, 5, (), np.int32),
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([3, 2]),
    spaces.MultiBinary(3),
    spaces.Dict(m=spaces.Box(-1, 1, (2,), np.float64), k=spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2)))),
]
NUMBERS = [
    float,
    int,
    np.float64,
    np.float32,
    lambda value: np.array(value, float),
    lambda value: np.array([value], float),
    torch.tensor,
]
FLAGS = [bool, int, np.bool_, np.array, lambda value: np.array([value]), torch.tensor]


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """The arrays of a nested value by path."""
    if isinstance(value, dict):
        return {key: one for name in value for key, one in leaves(value[name], (*path, name)).items()}
    if isinstance(value, tuple):
        return {key: one for i, inner in enumerate(value) for key, one in leaves(inner, (*path, str(i))).items()}
    return {"/".join(path): value}


def fill(target: Any, value: Any) -> Any:
    """Change what can be changed in place of ``target`` to ``value``; returns the result."""
    if isinstance(target, dict):
        for key in reversed(list(target)):  # another order than the space has
            target[key] = fill(target.pop(key), value[key])
        return target
    if isinstance(target, tuple):
        return tuple(fill(*pair) for pair in zip(target, value))
    if isinstance(target, np.ndarray) and target.ndim:
        target[...] = value
        return target
    return value


class Journal(gymnasium.Env):
    """See the module. ``dice`` decides what kind of environment it is."""

    made: list[Journal] = []

    def __init__(self, dice: int) -> None:
        rng = np.random.default_rng(dice)
        self.observation_space = copy.deepcopy(OBSERVATIONS[rng.integers(len(OBSERVATIONS))])
        self.action_space = copy.deepcopy(ACTIONS[rng.integers(len(ACTIONS))])
        self.number = NUMBERS[rng.integers(len(NUMBERS))]
        self.flag = FLAGS[rng.integers(len(FLAGS))]
        self.reuses, self.spoils = bool(rng.integers(2)), bool(rng.integers(4))
        self.lengths = [1, *rng.integers(1, 9, 50).tolist()]
        self.log: list[list[dict[str, Any]]] = []
        self.observation: Any = None
        self.info: dict[str, Any] = {}
        self.made.append(self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.log.append([])
        return self._observe(), self.info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        row = {"observation": copy.deepcopy(self.true), "action": copy.deepcopy(action)}
        if self.spoils:
            for one in leaves(action).values():
                if isinstance(one, (np.ndarray, torch.Tensor)) and one.ndim:
                    one[...] = 1
        over = len(self.log[-1]) + 1 == self.lengths[len(self.log) - 1]
        row["reward"], row["terminated"] = len(self.log[-1]) + 1, over and len(self.log) % 3 > 0
        row["truncated"] = over and not row["terminated"]
        observation = self._observe()
        row["next"] = copy.deepcopy(self.true)
        self.log[-1].append(row)
        flags = self.flag(row["terminated"]), self.flag(row["truncated"])
        return observation, self.number(row["reward"]), *flags, self.info

    def _observe(self) -> Any:
        self.true = self.observation_space.sample()
        new = copy.deepcopy(self.true)
        self.observation = fill(self.observation, new) if self.reuses and self.observation is not None else new
        return self.observation

    def rows(self, steps: int | None = None) -> list[dict[str, Any]]:
        return [row for episode in self.log for row in episode][:steps]


class Policy:
    """Draws actions, returns one buffer again and again, and spoils the observations that it gets."""

    def __init__(self, space: spaces.Space[Any], tensors: bool, spoils: bool = False) -> None:
        self.space, self.tensors, self.spoils, self.buffer = space, tensors, spoils, space.sample()
        space.seed(7)
        self.seen: list[Any] = []
        self.copies: list[Any] = []

    def __call__(self, observation: Any) -> Any:
        self.seen.append(observation)
        self.copies.append(copy.deepcopy(observation))
        if self.spoils:
            for one in leaves(observation).values():
                if isinstance(one, np.ndarray) and one.ndim:
                    one[...] = 0
        self.buffer = fill(self.buffer, self.space.sample())
        return torch.from_numpy(self.buffer) if self.tensors and isinstance(self.buffer, np.ndarray) else self.buffer


def compare(path: Any, rows: list[dict[str, Any]]) -> None:
    """A dataset holds these rows."""
    assert verify(path).ok
    dataset = rbdata.open_dataset(path)
    assert len(dataset) == len(rows)
    last = set((dataset.episodes.starts + dataset.episodes.lengths - 1).tolist())
    whole = dataset[:]
    for step, row in enumerate(rows):
        stored = whole[step]
        for name in ("observation", "action", "next"):
            wanted, root = leaves(row[name]), stored["next"] if name == "next" else stored
            top = "observation" if name == "next" else name
            for key, value in wanted.items():
                path = (top, *filter(None, key.split("/")))
                found = root[path]
                value = np.asarray(value)
                assert np.array_equal(found.numpy().reshape(value.shape), value), (step, name, key)
        after = stored["next"]
        over = row["terminated"] or row["truncated"]
        assert float(after["reward"]) == row["reward"] and bool(after["terminated"]) == row["terminated"]
        assert bool(after["truncated"]) == (row["truncated"] or (step in last and not over))
        assert bool(after["done"]) == (step in last) and (not over or step in last)


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("RBDATA_ROOT", str(tmp_path / "root"))
    Journal.made.clear()
    return tmp_path / "root"


def policy_for(dice: int, count: int) -> Any:
    space = Journal(dice).action_space
    several = gymnasium.vector.utils.batch_space(space, count) if count > 1 else space
    Journal.made.clear()
    return "random" if dice % 3 == 0 else Policy(several, tensors=dice % 3 == 1, spoils=count == 1)


@pytest.mark.filterwarnings("error::DeprecationWarning")
@pytest.mark.parametrize(("count", "dice"), [(1, dice) for dice in range(12)] + [(3, dice) for dice in range(6)])
def test_a_recording_is_what_the_environment_got_and_gave(dice, count):
    made: list[Journal] = []

    def make() -> Journal:
        made.append(Journal(dice))
        return made[-1]

    policy = policy_for(dice, count)
    path = rbdata.record(make, policy, steps=31, num_envs=count, name="own")
    stepped = [env for env in made if env.log and env.log[0]][-count:]
    shares = [31 // count + (number < 31 % count) for number in range(count)]
    compare(path, [row for env, share in zip(stepped, shares) for row in env.rows(share)])
    if count > 1 and not isinstance(policy, str):  # observations that a policy keeps stay as they were
        for seen, copied in zip(policy.seen, policy.copies):
            assert all(np.array_equal(one, leaves(copied)[key]) for key, one in leaves(seen).items())


@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("dice", range(4))
def test_a_loop_of_ones_own(dice, mode):
    count = 1 if mode is None else 2
    made = [Journal(dice) for _ in range(count)]
    inner: Any = made[0]
    if mode is not None:
        for one in made:
            one.number, one.flag = float, bool  # Gymnasium's vector environments take no others
        inner = SyncVectorEnv([lambda: made[0], lambda: made[1]], copy=False, autoreset_mode=mode)
    act = Policy(inner.action_space, tensors=False)
    with rbdata.Recorder(inner, name="loop") as env:
        observation, _ = env.reset(seed=3)
        for _ in range(20):
            observation, _, terminated, truncated, _ = env.step(act(observation))
            over = np.asarray(terminated, bool) | np.asarray(truncated, bool)
            if mode is None and over:
                observation, _ = env.reset()
            elif mode == AutoresetMode.DISABLED and over.any():
                observation, _ = env.reset(options={"reset_mask": over})
    compare(env.path, [row for one in made for row in one.rows()])


# -- what environments return ------------------------------------------------------------------------------------------


class Returns(gymnasium.Env):
    """Returns what it is told to, in its third step."""

    observation_space: spaces.Space[Any] = spaces.Box(-9, 9, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, **told: Any) -> None:
        self.told, self.time = told, 0
        self.observation_space = told.get("space", self.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation = self.observation_space.sample()
        return observation if self.told.get("old") else (observation, {})

    def step(self, action: Any) -> Any:
        self.time += 1
        results = {
            "observation": self.observation_space.sample(),
            "reward": 1.0,
            "terminated": False,
            "truncated": False,
        }
        results |= self.told if self.time == 3 else {}
        values = [results[name] for name in ("observation", "reward", "terminated", "truncated")]
        return (*values[:3], {}) if results.get("short") else (*values, {})


HUGE = np.array([1e39, 0])
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"reward": 1e39}, r"reward as 1e\+39, not one finite number that float32 holds"),
    ({"reward": np.inf}, "reward as inf, not one finite number"),
    ({"reward": 10**400}, "reward as 10{58,60}.*, not one finite number"),
    ({"reward": None}, "reward as None, not one finite number"),
    ({"reward": "3"}, "reward as '3', not one finite number"),
    ({"reward": np.zeros(2)}, "not one finite number"),
    ({"reward": np.ma.masked_array(1.0, True)}, "it gave reward as masked_array"),
    ({"reward": [[1], [2, 3]]}, r"reward as \[\[1\], \[2, 3\]\], not one finite number"),
    ({"terminated": np.ma.masked_array(False, True)}, "it gave terminated as masked_array"),
    ({"terminated": 2}, "terminated as 2, which is neither true nor false"),
    ({"terminated": None}, "terminated as None"),
    ({"terminated": np.nan}, "terminated as nan"),
    ({"terminated": np.array([True, False])}, "terminated as array"),
    ({"truncated": "no"}, "truncated as 'no'"),
    ({"observation": HUGE}, r"observation with the value 1e\+39, which float32 does not hold"),
    ({"observation": np.zeros(3, np.float32)}, r"shape \(3,\), its space says \(2,\)"),
    ({"observation": None}, r"observation of shape \(\)"),
    ({"observation": [[1], [2, 3]]}, "is not an array"),
    ({"observation": np.ma.masked_array(np.zeros(2, np.float32), [True, False])}, "elements are masked"),
    ({"observation": np.zeros(2, complex)}, "as complex128"),
    ({"space": spaces.Box(0, 9, (2,), np.uint8), "observation": np.array([300, 1])}, "the value 300, which uint8"),
    ({"space": spaces.Box(0, 9, (2,), np.uint8), "observation": np.array([300, 1], np.uint16)}, "the value 300"),
    ({"space": spaces.Box(0, 9, (2,), np.uint8), "observation": np.array([0.5, 1])}, "the value 0.5, which uint8"),
    ({"space": spaces.Box(-9, 9, (2,), np.int8), "observation": np.array([-200, 1])}, "the value -200"),
    ({"space": spaces.Box(-9, 9, (2,), np.float32), "observation": np.array([2**25 + 1, 1])}, "the value 33554433"),
    ({"old": True}, r"it returned ndarray .*, not \(observation, info\)"),
    ({"short": True}, r"it returned 4 values"),
]


@pytest.mark.parametrize(
    ("told", "said", "way"),
    [(*wrong, way) for way, some in (("one", WRONG), ("two", WRONG[::5]), ("loop", WRONG[::3])) for wrong in some],
)
def test_results_that_cannot_be_stored_are_refused(told, said, way, root):
    if way != "loop":
        with pytest.raises(RbdataError, match=said):
            rbdata.record(lambda: Returns(**told), steps=8, num_envs=1 if way == "one" else 2, name="own")
        assert not [*root.rglob("*")]
        return
    env = rbdata.Recorder(Returns(**told), name="own")
    with pytest.raises(RbdataError, match=said):
        env.reset()
        for _ in range(3):
            env.step(0)
    if "old" not in told:
        with pytest.raises(UsageError, match="no episode"):  # this step is not in it, so that it cannot go on
            env.step(0)
        env.close()
        assert len(rbdata.open_dataset("my/own")) == 2 and verify(env.path).ok


def test_actions_that_the_dtype_of_the_space_does_not_hold():
    class Own(Returns):
        action_space = spaces.Box(0, 200, (1,), np.uint8)

    for action, said in ((300, "300 does not fit uint8"), (-1, "-1 does not fit"), (0.5, "0.5 does not fit uint8")):
        with pytest.raises(UsageError, match=said):
            rbdata.record(Own, lambda _, action=action: np.array([action]), steps=5, name="own")
        with rbdata.Recorder(Own(), name="loop") as env, pytest.raises(UsageError, match=said):
            env.reset()
            env.step(np.array([action]))
    rbdata.record(Own, lambda _: np.array([7.0]), steps=5, name="own")
    assert rbdata.open_dataset("my/own")["action"].tolist() == [[7]] * 5


class More(gymnasium.Env):
    """Its observations have more than its space says, from step ``since`` on."""

    observation_space = spaces.Dict(a=spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3))), b=spaces.Discrete(2))
    action_space = spaces.Dict(k=spaces.Discrete(2))

    def __init__(self, where, since):
        self.where, self.since = where, since

    def observation(self):
        observation = {"a": (1, 2), "b": 1}
        if self.steps < self.since:
            return observation
        more: dict[str, Any] = {"goal": np.ones(2)} if self.where == "goal" else {"a": (1, 2, 0)}
        return {**observation, **more}

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.observation(), {}

    def step(self, action):
        self.steps += 1
        return self.observation(), 1.0, False, False, {}


@pytest.mark.parametrize("where", ["goal", "a/2"])
@pytest.mark.parametrize("since", [0, 2])
def test_a_part_of_an_observation_that_its_space_has_not(where, since):
    """It was left out without a word."""
    said = f"gave observation/{where}, which its space has not"
    for count in (1, 2):
        with pytest.raises(RbdataError, match=said):
            rbdata.record(lambda: More(where, since), steps=8, num_envs=count, name="own")
    env = rbdata.Recorder(More(where, since), name="loop")
    with pytest.raises(RbdataError, match=said):
        env.reset()
        for _ in range(3):
            env.step({"k": 1})
    if since:
        env.close()
        assert len(rbdata.open_dataset("my/loop")) == 1


def test_one_environment_for_several():
    env = Returns()
    with pytest.raises(UsageError, match="the same environment again and again"):
        rbdata.record(lambda: env, steps=8, num_envs=2, name="own")
    sizes = iter(range(2, 9))
    with pytest.raises(UsageError, match="different spaces"):
        make = lambda: Returns(space=spaces.Box(0, 1, (next(sizes),), np.float32))  # noqa: E731
        rbdata.record(make, steps=8, num_envs=2, name="own")


def test_wrappers_of_gymnasium():
    """What wrappers return, with their own arrays and dtypes, is what is stored."""
    from gymnasium import wrappers

    def make() -> Any:
        env: Any = wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 12)
        env = wrappers.NormalizeObservation(wrappers.RecordEpisodeStatistics(env))
        return wrappers.TransformReward(wrappers.FrameStackObservation(env, 3), lambda reward: reward * 0.1)

    dataset = rbdata.open_dataset(rbdata.record(make, steps=80, seed=4, name="wrapped"))
    env = make()
    env.action_space.seed(4)
    observation, _ = env.reset(seed=4)
    for row in dataset[:]:
        assert np.array_equal(row["observation"], np.asarray(observation, np.float32))
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert np.array_equal(row["next", "observation"], np.asarray(observation, np.float32))
        assert float(row["next", "reward"]) == np.float32(reward) and bool(row["next", "terminated"]) == terminated
        if terminated or truncated:
            observation, _ = env.reset()


def test_a_vector_environment_says_when_it_resets():
    env = SyncVectorEnv([Returns, Returns])
    env.metadata = {}
    with pytest.raises(UsageError, match="does not say when it resets"):
        rbdata.Recorder(env, name="own")
    env.metadata = {"autoreset_mode": "NextStep"}
    with rbdata.Recorder(env, name="own") as recorder:
        recorder.reset()
        recorder.step(np.zeros(2, int))
    assert len(rbdata.open_dataset("my/own")) == 2
