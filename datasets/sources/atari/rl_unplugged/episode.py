"""From named lists to an episode, checked.

A record of ``atari_episodes_ordered`` is one episode of N rows:

    checkpoint_idx, episode_idx    int64    which 1 M-row checkpoint it is from, and its place there: the training order
    observations                   bytes    N PNGs, one frame a row
    actions                        int64    N
    clipped_rewards                float    N; unclipped_rewards are the same (what was logged had been clipped)
    discounts                      float    N; 0 in the last row of an episode that terminated, not 0 where it was cut
    episode_return, clipped_episode_return  float

A row is a frame, the action chosen on it, and what that action led to: the reward and discount of the last row are those of
the last transition, and are kept. What an episode that terminated, or was cut, would have shown next is not in the data.

Source: google-deepmind/deepmind-research, rl_unplugged/atari.py; tensorflow/datasets, rl_unplugged/rlu_atari.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from .....errors import CorruptSourceError
from ....formats.tf_example import Value

MAX_ACTION = 17
#: Bytes of a frame as PNG: without any compression it takes 7.2 kB.
LONGEST_PICTURE = 1 << 16
_HINT = "the file is damaged, or not of RL Unplugged's ordered Atari episodes; try another mirror"


@dataclass(frozen=True)
class Episode:
    """One record's episode. ``terminal``: its last discount is 0."""

    checkpoint: int
    index: int
    frames: list[memoryview]
    action: np.ndarray
    reward: np.ndarray
    terminal: bool

    def __len__(self) -> int:
        return len(self.frames)


def to_episode(features: Mapping[str, Value], where: str) -> Episode:
    """Take an example's lists as an episode. Raises CorruptSourceError, naming ``where``, when they are none."""
    if "observations" not in features and "o_t" in features:
        message = f"{where} is a single transition of RL Unplugged's shuffled form (o_t, o_tp1), not an episode"
        hint = "episodes cannot be put together from it; use the files below atari_episodes_ordered/"
        raise CorruptSourceError(message, hint=hint)
    action, discount = _numbers(features, "actions", "i", where), _numbers(features, "discounts", "f", where)
    kept = "clipped_rewards" if "clipped_rewards" in features else "unclipped_rewards"
    reward = _numbers(features, kept, "f", where)
    frames = features.get("observations", [])
    if isinstance(frames, np.ndarray):
        _refuse(f"{where}: observations are numbers, not pictures")
    lengths = {"observations": len(frames), "actions": len(action), kept: len(reward), "discounts": len(discount)}
    if len(set(lengths.values())) > 1:
        _refuse(f"{where}: lists of different lengths: " + ", ".join(f"{n} {name}" for name, n in lengths.items()))
    wild = (action < 0) | (action > MAX_ACTION) | ~np.isfinite(reward) | ~((discount >= 0) & (discount <= 1))
    if wild.any():
        row = int(np.argmax(wild))
        _refuse(f"{where}: row {row} has action {action[row]}, reward {reward[row]} and discount {discount[row]}")
    ends = np.flatnonzero(discount == 0)
    if len(ends) and ends[0] != len(discount) - 1:
        _refuse(f"{where}: the episode ends in row {ends[0]} of {len(discount)}, and goes on")
    wide = next((row for row, frame in enumerate(frames) if len(frame) > LONGEST_PICTURE), None)
    if wide is not None:
        _refuse(f"{where}: frame {wide} has {len(frames[wide])} bytes, more than a picture of 84x84 takes")
    # Copies: frames wait for others, and a view would keep all of its record until then.
    frames = [memoryview(bytes(frame)) for frame in frames]
    checkpoint, index = (_index(features, name, where) for name in ("checkpoint_idx", "episode_idx"))
    return Episode(checkpoint, index, frames, action.astype(np.int32), reward, bool(len(ends)))


def _numbers(features: Mapping[str, Value], name: str, kind: str, where: str) -> np.ndarray:
    if name not in features:
        _refuse(f"{where} has no {name}")
    value = features[name]
    if not isinstance(value, np.ndarray):
        if value:
            _refuse(f"{where}: {name} are not numbers")
        return np.empty(0, np.int64 if kind == "i" else np.float32)  # an empty list has no kind
    if value.dtype.kind != kind:
        _refuse(f"{where}: {name} are {value.dtype}")
    return value


def _index(features: Mapping[str, Value], name: str, where: str) -> int:
    value = _numbers(features, name, "i", where)
    if len(value) != 1 or value[0] < 0:
        _refuse(f"{where}: {name} is {value.tolist()}, not one number from 0 on")
    return int(value[0])


def _refuse(message: str) -> NoReturn:
    raise CorruptSourceError(message, hint=_HINT)
