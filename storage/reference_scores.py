"""Normalised scores: 0 is the return of a random policy, 100 that of an expert, or of a human.

    100 * (return - low) / (high - low)

The source of a dataset states the two returns (`datasets.sources.source.Source.reference_scores`): D4RL and Minari for their
own datasets, Wang et al. for Atari games. Neither numpy nor torch is loaded here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import RbdataError, UsageError
from . import plugins

if TYPE_CHECKING:
    from .episodes import EpisodeTable
    from .manifest import Manifest

#: The field of a manifest's ``source`` with the wrappers by which the returns may be other than the environment's own.
OTHER_RETURNS = "other_returns"


@dataclass(frozen=True)
class ReferenceScores:
    """The undiscounted returns that normalised scores call 0 (``low``) and 100 (``high``), and the policies they are from.

    ``caveat`` says why the dataset's own returns cannot be normalised (clipped rewards); '' if they can.
    """

    low: float
    high: float
    low_policy: str = "random"
    high_policy: str = "expert"
    origin: str = ""
    caveat: str = ""

    def normalize(self, returns: Any) -> Any:
        """Returns as scores: a number, array or tensor of any shape (a sequence comes back as an array)."""
        if isinstance(returns, (list, tuple)):
            import numpy as np

            returns = np.asarray(returns, float)
        return 100.0 * (returns - self.low) / (self.high - self.low)

    @property
    def description(self) -> str:
        """``0 is random (-20.7), 100 is human (14.6); Wang et al. 2016``"""
        scale = f"0 is {self.low_policy} ({self.low:g}), 100 is {self.high_policy} ({self.high:g})"
        return f"{scale}; {self.origin}" if self.origin else scale


def recorded_scores(record: Mapping[str, Any]) -> ReferenceScores | None:
    """Return the scores in the ``source`` record of a manifest, if they are two different finite numbers."""
    stated = record.get("reference_scores")
    if not isinstance(stated, (list, tuple)) or len(stated) != 2:
        return None
    if not all(isinstance(one, (int, float)) and math.isfinite(one) for one in stated) or stated[0] == stated[1]:
        return None
    return ReferenceScores(float(stated[0]), float(stated[1]), origin=str(record.get("name", "")))


def reference_scores(manifest: Manifest) -> ReferenceScores | None:
    """Return the reference scores of a dataset (for a preprocessed one, of its original dataset); None if unknown.

    If preprocessing changed the rewards, the ``caveat`` says so.
    """
    source, changed = original_source(manifest)
    try:
        found = plugins.load(str(source.get("name"))).reference_scores(source)
    except RbdataError:  # without a source, or from a plug-in that is not installed
        found = recorded_scores(source)
    if not isinstance(found, ReferenceScores):
        return None
    return replace(found, caveat="preprocessing changed the rewards") if changed else found


def stated_wrappers(source: Mapping[str, Any]) -> list[str]:
    """Return the wrappers that a ``source`` record names under OTHER_RETURNS."""
    stated = source.get(OTHER_RETURNS)
    return [str(name) for name in stated] if isinstance(stated, (list, tuple)) else []


def original_source(manifest: Manifest) -> tuple[Mapping[str, Any], bool]:
    """The ``source`` record of a dataset (for a preprocessed one, of its original dataset), and whether preprocessing changed
    the rewards."""
    source, lineage = manifest.source, manifest.lineage
    changed = _has_other_rewards({"lineage": lineage, "parents": getattr(manifest, "parents", None)})
    while isinstance(lineage, Mapping):
        made_from = lineage.get("input") or {}
        source, lineage = made_from.get("source") or {}, made_from.get("lineage")
        source = {"dataset": str(made_from.get("id", "")).partition("/")[2], **source}
    return source, changed


def _has_other_rewards(record: Mapping[str, Any]) -> bool:
    """Whether preprocessing changed the rewards of a dataset, or of one of those that it was made from, views' members too."""
    lineage = record.get("lineage")
    made_from = [one for one in record.get("parents") or () if isinstance(one, Mapping)]
    if isinstance(lineage, Mapping):
        if "next/reward" in ((lineage.get("leaves") or {}).get("changed") or []):
            return True
        made_from.append(lineage.get("input") or {})
    return any(_has_other_rewards(one) for one in made_from)


def normalized_returns(manifest: Manifest, table: EpisodeTable) -> Any:
    """Return the returns of a dataset's episodes as scores, NaN for episodes that are not whole.

    Raises UsageError if scores are unknown or do not apply.
    """
    import numpy as np

    scores = require_scores(reference_scores(manifest), manifest.id)
    if scores.caveat:
        raise UsageError(f"the returns of {manifest.id} cannot be normalised: {scores.caveat}")
    return np.where(table.whole, scores.normalize(table.returns), np.nan)


def require_scores(scores: ReferenceScores | None, dataset_id: str) -> ReferenceScores:
    """Return the scores. Raises UsageError if they are None."""
    if scores is None:
        hint = "D4RL, many Minari datasets and 57 Atari games have them"
        raise UsageError(f"no reference scores are known for {dataset_id}", hint=hint)
    return scores
