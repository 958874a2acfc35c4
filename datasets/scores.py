"""Normalised scores by dataset: from its manifest if it is on this machine, otherwise from its source."""

from __future__ import annotations

import os
from typing import Any

from ..errors import DatasetNotFoundError
from ..storage import reference_scores as stated
from ..storage.manifest import Manifest, read_manifest
from ..storage.reference_scores import ReferenceScores, require_scores
from . import catalogue, local


def reference_scores(dataset: Any, *, root: str | os.PathLike[str] | None = None) -> ReferenceScores:
    """Return the returns that count as 0 and as 100, for a dataset by id or path, or already open.

    D4RL's and Atari's are known without the dataset; Minari states them in the dataset. Raises DatasetNotFoundError for ids
    that no source has, and if the dataset must be downloaded first; UsageError if no scores are known.
    """
    manifest: Manifest | None = getattr(dataset, "manifest", None)
    if manifest is None:
        try:
            manifest = read_manifest(local.find(dataset, root))
        except DatasetNotFoundError:
            dataset_id, source = catalogue.resolve(os.fspath(dataset))
            found = source.reference_scores({"dataset": dataset_id.partition("/")[2]}) if source else None
            if found is None and source is not None and source.scores_in_datasets:
                raise
            return require_scores(found, dataset_id)
    return require_scores(stated.reference_scores(manifest), manifest.id)


def normalized_score(dataset: Any, returns: Any, *, root: str | os.PathLike[str] | None = None) -> Any:
    """Return undiscounted episode returns as normalised scores: 0 is a random policy's, 100 an expert's (or a human's).

    ``returns`` is a number, an array or a tensor of any shape (or a sequence of numbers, which comes back as an array);
    the result has its shape. ``dataset`` and errors as in `reference_scores`.
    """
    return reference_scores(dataset, root=root).normalize(returns)
