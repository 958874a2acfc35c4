"""Environments whose every value is known, for the tests of recording."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTHS = (3, 1, 7, 2, 12)


class Counter(gymnasium.Env):
    """Observes (number of the episode, time in it, last action); episodes last as ``lengths`` say, in turn.

    Every third episode ends truncated, every fifth terminated and truncated, the others terminated. The reward is the time.
    """

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(5, start=-2)

    def __init__(self, lengths: Sequence[int] = LENGTHS) -> None:
        self.lengths = itertools.cycle(lengths)
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time, self.length = self.episode + 1, 0, next(self.lengths)
        return self._observe(0), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time == self.length
        truncated = over and self.episode % 5 in (2, 4)
        terminated = over and self.episode % 5 != 2
        return self._observe(action), float(self.time), terminated, truncated, {}

    def _observe(self, action: Any) -> Any:
        return np.array([self.episode, self.time, action], np.float32)


class Everything(Counter):
    """All kinds of spaces, nested; values follow the counter."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (40, 32, 3), np.uint8),
            "inner": spaces.Dict({"a.b": spaces.Box(-1, 1, (), np.float64), "kind": spaces.Discrete(9, start=3)}),
            "many": spaces.MultiDiscrete(np.array([[3, 5], [7, 200]])),
            "bits": spaces.MultiBinary(6),
            "pair": spaces.Tuple((spaces.Box(0, 60000, (2,), np.uint16), spaces.Discrete(2))),
            "words": spaces.Text(8, min_length=0, charset="abcé0123456789"),
        }
    )
    action_space = spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32), "pick": spaces.MultiDiscrete([2, 3])})

    def _observe(self, action: Any) -> Any:
        value = self.episode * 31 + self.time
        return {
            "camera": np.full((40, 32, 3), value % 256, np.uint8) + np.arange(3, dtype=np.uint8),
            "inner": {"a.b": np.float64(value / 1000), "kind": 3 + value % 9},
            "many": np.array([[value % 3, value % 5], [value % 7, value % 200]]),
            "bits": np.array([value >> bit & 1 for bit in range(6)], np.int8),
            "pair": (np.array([value, 60000 - value], np.uint16), value % 2),
            "words": f"é{value}" if value % 4 else "",
        }


class Frames(Counter):
    """84x84 frames with a moving square on noise that stays the same."""

    observation_space = spaces.Box(0, 255, (84, 84), np.uint8)
    background = np.random.default_rng(0).integers(0, 50, (84, 84), np.uint8)

    def _observe(self, action: Any) -> Any:
        frame = self.background.copy()
        row, column = (self.time * 3) % 70, (self.episode * 7) % 70
        frame[row : row + 10, column : column + 10] = 255
        return frame


class Broken(Counter):
    """Fails at the fourth step, in the way that ``how`` names."""

    def __init__(self, how: str = "raise", lengths: Sequence[int] = (100,)) -> None:
        super().__init__(lengths)
        self.how = how

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, *flags, info = super().step(action)
        if self.time == 4:
            if self.how == "raise":
                raise RuntimeError("the simulation blew up")
            if self.how == "shape":
                observation = observation[:2]
            if self.how == "dtype":
                observation = observation.astype(complex)
            if self.how == "reward":
                reward = float("nan")
            if self.how == "vector reward":
                reward = np.zeros(3)
        return observation, reward, *flags, info


class Unstorable(Counter):
    observation_space = spaces.Sequence(spaces.Discrete(3))


class Doubles(Counter):
    """Says float32, gives float64: what many environments do."""

    def _observe(self, action: Any) -> Any:
        return super()._observe(action).astype(np.float64) + 0.5


def register() -> None:
    for kind in (Counter, Everything, Frames, Broken, Unstorable, Doubles):
        name = f"tests/{kind.__name__}-v0"
        if name not in gymnasium.registry:
            entry = f"{__name__}:{kind.__name__}"  # by name, as Minari writes it down
            gymnasium.register(name, entry, disable_env_checker=True, order_enforce=False)
    if "tests/Limited-v0" not in gymnasium.registry:
        gymnasium.register("tests/Limited-v0", f"{__name__}:Counter", max_episode_steps=5, disable_env_checker=True)


register()
