"""Episodes as dm_env's time steps: action and reward of row t *led to* the observation of row t.

    row           0        1    2    3
    observation   s0       s1   s2   s3
    action        (zeros)  a0   a1   a2
    reward        (0)      r0   r1   r2
    discount      (1)      d0   d1   d2        0 where the episode terminated

So a file of n + 1 rows has n transitions (s[t-1], action[t], reward[t], s[t]); row 0 has a dummy action and reward. This is how
DrQ-v2, URLB and DreamerV2 store episodes (`EfficientReplayBuffer.add`, `relable_episode`, `common/replay.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from ...errors import CorruptSourceError
from ..ingest.episode_files import Episode, Rows


def dm_env_episode(
    states: Mapping[str, Rows],
    action: np.ndarray,
    rewards: np.ndarray,
    discount: np.ndarray,
    counts: Counter[str],
    where: str,
    *,
    steps: Mapping[str, np.ndarray] = {},
    terminal: np.ndarray | None = None,
    whole: bool = True,
) -> Episode:
    """An episode whose arrays all have n + 1 rows; ``states`` keep all of them, all other arrays lose row 0.

    It terminated if its last row is ``terminal``, or has a ``discount`` of 0. Otherwise it was truncated, or, if the data do
    not hold its end (not ``whole``), cut. Such flags in rows before the last do not end it; they are counted as
    ``inner_terminals``. Raises CorruptSourceError, which names ``where``, for a discount of several numbers a row.
    """
    if discount.size != len(rewards):
        raise CorruptSourceError(f"{where}: discount has the shape {list(discount.shape)}, not one number a row")
    discount = discount.reshape(-1)
    ends = discount == 0
    if terminal is not None:
        ends |= terminal != 0
    terminated = bool(len(ends) > 1 and ends[-1])
    counts["inner_terminals"] += int(np.count_nonzero(ends[1:-1]))
    kept = {key: rows[1:] for key, rows in {"action": action, "info/discount": discount, **steps}.items()}
    return Episode(states, kept, rewards[1:], terminated, whole and not terminated)


def check_lengths(shapes: Mapping[str, tuple[int, ...]], rows: int, where: str) -> None:
    """Raise CorruptSourceError where the array of a shape has another number of rows than ``rows``."""
    for key, shape in shapes.items():
        if shape[:1] != (rows,):
            message = f"{where}: {key} has the shape {list(shape)}, and there are {rows} rows"
            raise CorruptSourceError(message, hint="the file is not what its provider publishes")


def check_keys(needed: Iterable[str], where: str, there: Collection[str]) -> None:
    """Raise CorruptSourceError for missing keys."""
    missing = [key for key in needed if key not in there]
    if missing:
        hint = f"it holds {', '.join(list(there)[:12]) or 'nothing'}"
        raise CorruptSourceError(f"{where} has no {', '.join(missing)}", hint=hint)


#: What `dm_env_episode` counts, for the notes of a dataset.
SENTENCES = {
    "inner_terminals": (
        "{n} rows inside episodes are flagged terminal, or have discount 0, and do not end them: see info/discount."
    )
}
