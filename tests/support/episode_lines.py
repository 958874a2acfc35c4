"""A small format whose files hold whole episodes, a line of JSON each, and readers of it. Worker processes import it."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rbdata.datasets.ingest.block import LazyRows
from rbdata.datasets.ingest.episode_files import Episode, EpisodeReader, RawInput
from rbdata.errors import CorruptSourceError

#: Frames that compress, and are large enough to be filled part by part.
SIDE = 40


def episode_line(number: int, steps: int) -> dict[str, Any]:
    """One episode of the format, a line of JSON; its frames follow from its number."""
    rewards = [float(number + step) for step in range(steps)]
    return {"number": number, "steps": steps, "rewards": rewards, "end": ("goal", "clock", "")[number % 3]}


def frames(number: int, steps: int) -> np.ndarray:
    rows = np.zeros((steps + 1, SIDE, SIDE), np.uint8)
    rows[:, number % SIDE] = np.arange(steps + 1)[:, None]
    return rows


def expected(line: dict[str, Any]) -> Any:
    """An `Episode` whose rows are all arrays."""
    number, steps = int(line["number"]), int(line["steps"])
    states = {"observation/image": frames(number, steps), "observation/position": np.arange(steps + 1.0)}
    rewards = np.array(line["rewards"])
    return Episode(
        states, {"action": np.arange(steps) + number}, rewards, line["end"] == "goal", line["end"] == "clock"
    )


@dataclass(frozen=True)
class LinesReader(EpisodeReader):
    """Reads the format; ``lazy`` decodes frames in blocks of three."""

    lazy: bool = False

    def episodes(self, raw: RawInput) -> Iterator[Any]:
        data = b"".join(raw.stream) if raw.stream is not None else Path(str(raw.path)).read_bytes()
        if not data.endswith(b"end\n"):
            raise CorruptSourceError(f"{raw.name} is cut")
        for text in data.splitlines()[:-1]:
            line = json.loads(text)
            episode = expected(line)
            if self.lazy:
                image = episode.states["observation/image"]
                blocks = (image[low : low + 3] for low in range(0, len(image), 3))
                episode.states["observation/image"] = LazyRows("uint8", (SIDE, SIDE), blocks)
            yield episode


class StreamReader(LinesReader):
    whole = False


class SandboxedReader(LinesReader):
    native_libraries = ("h5py",)


class CrashingReader(SandboxedReader):
    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        if raw.name == "2.lines":
            ctypes.string_at(0)
        yield from super().episodes(raw)


@dataclass(frozen=True)
class ChangedReader(LinesReader):
    """Spoils the second episode."""

    change: str = ""

    def episodes(self, raw: RawInput) -> Iterator[Episode]:
        for number, episode in enumerate(super().episodes(raw)):
            states, steps, rewards = dict(episode.states), dict(episode.steps), episode.rewards
            if number == 1 and self.change == "key":
                steps["more"] = rewards
            elif number == 1 and self.change == "dtype":
                steps["action"] = steps["action"] + 0.5
            elif number == 1 and self.change == "rows":
                states["observation/position"] = states["observation/position"][:-1]
            elif number == 1 and self.change == "lazy rows":
                states["observation/image"] = LazyRows("uint8", (SIDE, SIDE), [np.zeros((99, SIDE, SIDE), np.uint8)])
            elif number == 1 and self.change == "reward":
                rewards = rewards * np.inf
            yield Episode(states, steps, rewards, episode.terminated, episode.truncated)
