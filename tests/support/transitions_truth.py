"""Transitions that a dataset must hold, and the comparison with it.

truth = Truth.of_file(DATA / "vd4rl/truth/x.npz")
truth.check(dataset, "observation/image")
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Truth:
    """Episode by episode, a list of ``(obs, action, reward, next_obs)`` and how it ends: "terminated", "truncated" or "cut"."""

    episodes: list[tuple[list[tuple[Any, Any, float, Any]], str]] = field(default_factory=list)

    @classmethod
    def of_file(cls, path: Path) -> Truth:
        """The transitions in an archive of the fixtures; every episode there is terminated or truncated."""
        found = dict(np.load(path))
        truth, at = cls(), 0
        for length in found["lengths"]:
            rows = range(at, at + length)
            steps = [tuple(found[key][row] for key in ("obs", "action", "reward", "next_obs")) for row in rows]
            end = rows[-1]
            assert found["terminated"][end] ^ found["truncated"][end]
            truth.episodes.append((steps, "terminated" if found["terminated"][end] else "truncated"))
            at += length
        return truth

    def add(self, states: Any, actions: Any, rewards: Any, end: str) -> None:
        """An episode of n + 1 states; without a step there is none."""
        steps = [(states[t], actions[t], rewards[t], states[t + 1]) for t in range(len(rewards))]
        if steps:
            self.episodes.append((steps, end))

    def check(self, dataset: Any, observation: str = "observation", action: str = "action") -> None:
        """Compare values, dtypes, episodes and flags."""
        assert dataset.episodes.lengths.tolist() == [len(steps) for steps, _ in self.episodes]
        every = [step for steps, _ in self.episodes for step in steps]
        columns = [np.stack(column) for column in zip(*every)]
        for key, wanted in zip((observation, action, "next/reward", f"next/{observation}"), columns):
            found = dataset[key].numpy()
            if key == "next/reward":
                found, wanted = found[:, 0], wanted.astype(np.float32)
            elif wanted.ndim == 1:
                wanted = wanted[:, None] if found.ndim == 2 else wanted
            assert found.dtype == wanted.dtype.newbyteorder("="), key
            assert np.array_equal(found, wanted, equal_nan=wanted.dtype.kind == "f"), key
        ends = np.cumsum([len(steps) for steps, _ in self.episodes]) - 1
        terminated, truncated = np.zeros(len(every), bool), np.zeros(len(every), bool)
        terminated[ends] = [end == "terminated" for _, end in self.episodes]
        truncated[ends] = [end != "terminated" for _, end in self.episodes]
        for key, wanted in {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}.items():
            assert np.array_equal(dataset[f"next/{key}"][:, 0].numpy(), wanted), key
        counted = [sum(end == kind for _, end in self.episodes) for kind in ("terminated", "truncated", "cut")]
        names = ("terminated_episodes", "time_limit_episodes", "cut_episodes")
        assert [dataset.manifest.counts[name] for name in names] == counted
