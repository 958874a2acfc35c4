"""The lineage of a preprocessed dataset, a JSON object in its manifest:

input          {id, content, steps, episodes, source, lineage}: the dataset it was made from. ``content`` is the sha256
               of its leaves, counts and checksums. Its own lineage is included, so that it outlives the input. For a view
               there are ``parents``, the same of the datasets that it shows; ``content`` is that of the view
functions      [{function, files, args}] in order; ``files`` (of text alone): sha256 of the function's file and of the local
               files that it imports
version        what the user says that functions given as objects are
args           the arguments as they were given
per, batch, windows (frame_stack, n_step, gamma), seed
versions       {rbdata, torch, tensordict, python}
statistics     {function: ...}: the results of first passes
leaves         {added, dropped, changed}: where functions keep the number of steps, by their values
unchained      observations whose successor is not the observation of the following step
fingerprint    sha256 of everything that decides the bytes of the result; absent where a function is an object without a version
"""

from __future__ import annotations

import platform
from collections.abc import Collection
from importlib.metadata import version
from typing import Any

from .._version import __version__
from ..storage.manifest import Manifest, ViewManifest
from ..storage.reference_scores import OTHER_RETURNS
from ..storage.schema import FLAGS
from .layout import Shapes, shapes_of_schema


def describe_input(manifest: Manifest) -> dict[str, Any]:
    """Return the record of the input in the lineage."""
    kept = ("name", "dataset", "options", "environment", "reference_scores", OTHER_RETURNS)
    source = {name: manifest.source[name] for name in kept if manifest.source.get(name) is not None}
    return {
        "id": manifest.id,
        "content": manifest.content,
        "steps": manifest.steps,
        "episodes": manifest.episodes,
        "source": source,
        "lineage": manifest.lineage,
        **({"parents": manifest.parents} if isinstance(manifest, ViewManifest) else {}),
    }


def versions() -> dict[str, str]:
    """Return the versions of packages that may affect a result, and of Python."""
    return {
        "rbdata": __version__,
        "torch": version("torch"),  # without importing it
        "tensordict": version("tensordict"),
        "python": platform.python_version(),
    }


def remaining_spaces(manifest: Manifest, after: Shapes, changed: Collection[str]) -> dict[str, Any]:
    """The spaces of the input that are valid for the result: those of leaves that are as they were, and their successors."""
    before = shapes_of_schema(manifest.schema)
    same = {path for path, form in before.items() if after.get(path) == form}.difference(changed)
    leaves = {*(path for path in before if not path.startswith("next/")), *after}  # a successor may be dropped
    below = {
        name: {path for path in leaves if f"{path.removeprefix('next/')}/".startswith(f"{name}/")}
        for name in manifest.spaces
    }
    return {name: space for name, space in manifest.spaces.items() if below[name] and below[name] <= same}


def leaf_changes(before: Shapes, after: Shapes, changed: Collection[str]) -> dict[str, list[str]]:
    """Return leaves that were added, dropped and changed: those of other values (``changed``) or types."""
    types = {path for path in after if path in before and after[path] != before[path]}
    return {
        "added": sorted(set(after) - set(before)),
        "dropped": sorted(set(before) - set(after) - set(FLAGS)),
        "changed": sorted(types.union(changed)),
    }
