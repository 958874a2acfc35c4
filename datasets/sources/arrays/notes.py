"""What the notes of a dataset of own arrays say of its rows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...ingest.records import count_notes

if TYPE_CHECKING:
    from ...ingest.request import Outcome

#: Sentences by the count that they state (`count_notes`).
COUNTED = {
    "given_up_steps": (
        "Dropped: {n} of {rows} rows whose successor is not in the data; the observation of such a row is the final one of "
        "the step before it."
    ),
    "unknown_next_steps": "Kept, truncated, with a next state of zeros: {n:step} whose successor is not in the data.",
    "seams": "Episodes cut where the stated next observation is not the observation of the next row: {n}.",
    "rounded_successors": (
        "Stored as the observation of the next row: "
        "{n:next observation that differs|next observations that differ} from it by rounding, or by the sign of "
        "a zero, alone."
    ),
    "inner_flags": (
        "Flags set before the end of an episode, which the file states otherwise: {n:step}. They end nothing, "
        "and are kept "
        "as leaves."
    ),
    "jumps": (
        "Rows whose number of the step is not the next one, inside an episode: {n}. Where rows were left out there, the "
        "next state of the row before is not the one that followed."
    ),
    "rounded_rewards": "Rewards that float32 rounds, integers beyond 2^24 or numbers below 1e-38: {n}.",
    "rows_not_finite": "Observations with NaN or infinity, as in the data: {n}.",
    "actions_not_finite": "Actions with NaN or infinity, as in the data: {n}.",
    "other_order": (
        "All {n:episode} (or all but the first) begin with a reward of 0, which hardly any other row has. "
        "Rows of dm_env hold "
        "the reward that led to their observation, and logs of Gymnasium's vector environments have a row for each reset; "
        'here a row holds the reward that followed: see "Rows of other orders" in docs/sources/arrays.md.'
    ),
    "cut_episodes": "Episodes without a flag at their end, which count as truncated: {n}.",
}


def warn_of_order(outcome: Outcome) -> None:
    """Warn of a dataset of own arrays whose rows seem to be in another order; its notes say so too."""
    counts = outcome.manifest.counts if outcome.manifest else {}
    if counts.get("other_order"):
        warnings.warn(f"{outcome.id}: {count_notes({'other_order': COUNTED['other_order']}, counts)[0]}", stacklevel=4)


class FirstRows:
    """Whether the first rows of episodes look as those of rows in another order do.

    Episodes of dm_env begin with a row without an action and a reward. In a vector environment that resets in the next step,
    all episodes but its first begin with a row whose reward is 0. That tells only where few other rows are so. Rows are
    counted in ``counts``, which may be those of an interrupted run.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def add(self, rewards: np.ndarray, bits: np.ndarray, actions: Sequence[np.ndarray], *, begins: bool) -> None:
        """The next rows; ``begins``: the first is the first one of an episode."""
        zero = rewards == 0
        still = zero & np.logical_and.reduce([(rows == 0).reshape(len(rows), -1).all(1) for rows in actions])
        first = np.concatenate([[begins], bits[:-1] != 0])
        for name, rows in (("begun", first), ("other", ~first)):
            for which, some in (("", rows), ("_zero", rows & zero), ("_still", rows & still)):
                self._counts[name + which] += int(some.sum())

    def decide(self) -> None:
        """Replace the counts by ``other_order``, the number of episodes, where they look so."""
        take = self._counts.pop
        begun, zero, still = take("begun", 0), take("begun_zero", 0), take("begun_still", 0)
        other, other_zero, other_still = take("other", 0), take("other_zero", 0), take("other_still", 0)
        are_resets = zero >= begun - 1 and other_zero <= other / 100
        are_empty = still == begun and other_still <= other / 100
        if other >= begun >= 3 and (are_resets or are_empty):
            self._counts["other_order"] = begun
