"""Normalised scores: 0 is what a random policy gets, 100 what an expert gets.

    100 * (return - low) / (high - low)

as the D4RL paper reports them (arXiv:2004.07219, section 5); ``d4rl.get_normalized_score`` leaves out the factor 100.
"""

from __future__ import annotations

from typing import Any

from ....errors import UnknownDatasetError, UsageError
from .registry import registry


def reference_scores(dataset_id: str) -> tuple[float, float]:
    """The returns that count as 0 and as 100 for a dataset, by name or full id (``d4rl/hopper-medium-v2``).

    Raises UnknownDatasetError for ids that D4RL does not have, UsageError for those it gives no scores for.
    """
    entry = registry().get(dataset_id.removeprefix("d4rl/"))
    if entry is None:
        message = f"D4RL has no dataset {dataset_id!r}"
        raise UnknownDatasetError(message, hint="`rbdata list --source d4rl` shows all")
    if entry.low is None or entry.high is None:
        raise UsageError(f"D4RL states no reference scores for {entry.name}")
    return entry.low, entry.high


def normalized_score(dataset_id: str, returns: Any) -> Any:
    """Undiscounted episode returns as normalised scores.

    ``returns`` is a number, an array or a tensor of any shape (or a sequence of numbers, which comes back as an array);
    the result has its shape. Raises as `reference_scores`.
    """
    low, high = reference_scores(dataset_id)
    if isinstance(returns, (list, tuple)):
        import numpy as np

        returns = np.asarray(returns, float)
    return 100.0 * (returns - low) / (high - low)
