"""Images: a sample of states, evenly spread over evenly spaced episodes, says whether they show anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ...storage.dataset import Dataset
from .blocks import Array
from .findings import Finding, Hits, Severity, find

#: Limits of the sample of a leaf: bytes, episodes, states of an episode (more if there are few).
_BYTES, _EPISODES, _STATES = 96 << 20, 128, 6
#: Fewer frames say nothing about all of them.
_FEW = 8
#: Share of frames without content that is a warning.
_MANY = 0.1


@dataclass(frozen=True)
class FrameSample:
    """What is kept of the frames of one episode: ``steps`` that begin in these states, the extremes of each frame, whether
    all frames are equal, and whether actions differ."""

    episode: int
    steps: Array
    low: Array
    high: Array
    is_frozen: bool
    acts: bool


def sample_frames(dataset: Dataset, name: str, actions: tuple[str, ...]) -> list[FrameSample]:
    """Read frames of a leaf, a few of each chosen episode."""
    rows, table = dataset.rows[name], dataset.episodes
    most = max(2, min(_EPISODES * _STATES, _BYTES // rows.leaf.row_bytes))
    chosen = np.unique(np.linspace(0, len(table) - 1, min(len(table), _EPISODES, most // 2)).astype(np.int64))
    found = []
    for episode in chosen.tolist():
        start, length = int(table.starts[episode]), int(table.lengths[episode])
        steps = start + np.unique(np.linspace(0, length - 1, min(length, max(2, most // len(chosen)))).astype(np.int64))
        numbers = steps + episode if rows.leaf.kind == "state" else steps
        frames = rows.take(torch.from_numpy(numbers)).numpy()
        flat = frames.reshape(len(frames), -1)
        given = [dataset.rows[action].take(torch.from_numpy(steps)).numpy() for action in actions]
        found.append(
            FrameSample(
                episode,
                steps,
                flat.min(1),
                flat.max(1),
                length >= 5 and len(flat) > 1 and bool((flat[1:] == flat[:1]).all()),
                any(bool((one[1:] != one[:1]).any()) for one in given),
            )
        )
    return found


def check_frames(name: str, sample: list[FrameSample]) -> Iterator[Finding]:
    low, high = (np.concatenate([getattr(one, side) for one in sample]) for side in ("low", "high"))
    steps = np.concatenate([one.steps for one in sample])
    empty = low == high
    total, unit = len(steps), "sampled frame"
    if empty.all():
        what = "every frame that was read is black" if not high.any() else "every frame that was read has one colour"
        severity: Severity | None = None if total >= _FEW else "note"
        yield find("frame_black_all", what, Hits.of(steps), total, leaf=name, unit=unit, severity=severity)
        return
    blank = [one for one in sample if len(one.low) > 1 and (one.low == one.high).all()]
    if empty.any():
        # Single black frames occur where a game fades; a whole episode of them is a camera that was off.
        severity = "warning" if blank or empty.mean() >= _MANY else "note"
        what = "frames of one colour" + (f", all that were read of episode {blank[0].episode}" if blank else "")
        yield find("frame_constant", what, Hits.of(steps[empty]), total, leaf=name, unit=unit, severity=severity)
    if low.dtype == np.uint8 and high.max() <= 1:
        what = "no pixel is brighter than 1 of 255: frames were scaled to 0..1 before they were stored as whole numbers"
        yield find("frame_dark", what, Hits.of(steps), total, leaf=name, unit=unit)
    able = [one for one in sample if len(one.low) > 1]
    frozen = [one.episode for one in able if one.is_frozen and one.acts and one not in blank]
    if frozen and len(frozen) <= 0.5 * len(able):
        what = "frames never change in episodes, whatever the action"
        yield find("frame_frozen", what, Hits.of(frozen), len(sample), leaf=name, unit="sampled episode")
