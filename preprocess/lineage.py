"""The lineage of a preprocessed dataset, a JSON object in its manifest:

input          {id, content, steps, episodes, source, lineage}: the dataset it was made from. ``content`` is the sha256
               of its leaves, counts and checksums. Its own lineage is included, so that it outlives the input. For a view
               there are ``parents``, the same of the datasets that it shows; ``content`` is that of the view
functions      [{function, files, args}] in order; ``files`` (of text alone): sha256 of the function's file and of the local
               files that it imports
arguments      functions that arguments name: [{function, files}]
version        what the user says that functions given as objects are
args           the arguments as they were given
per, batch, windows, num_frames, seed
versions       {rbdata, torch, tensordict, python}
statistics     {function: ...}: the results of first passes
leaves         {added, dropped, changed}: by their values where functions get batches or steps, otherwise by their types,
               and of rewards by the returns
unchained      observations whose successor is not the observation of the following step
fingerprint    sha256 of everything that decides the bytes of the result; absent where a function is an object without a version
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
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


def named_statistics(labels: Sequence[str], statistics: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Statistics (by the number of their function) by its label; ``#2`` is appended for the second function with a label."""
    named: dict[str, Any] = {}
    for number, found in sorted(statistics.items(), key=lambda one: int(one[0])):
        label = labels[int(number)]
        same = sum(key.partition("#")[0] == label for key in named)
        named[f"{label}#{same + 1}" if same else label] = found
    return named


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


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The differences between two requests, in words; ``before`` may be a lineage, ``after`` is the identity of a run."""
    old, new = [*(before.get("functions") or ()), *(before.get("arguments") or ())], after["functions"]
    changed: list[str] = []
    if [fn.get("function") for fn in old] != [fn["function"] for fn in new]:
        changed.append(f"the functions ({', '.join(str(fn.get('function')) for fn in old)} before)")
    else:
        pairs = [(one.get("files"), other.get("files")) for one, other in zip(old, new)]
        changed += [name for one, other in pairs for name in _differing(one, other)]
    changed += [f"the argument {name}" for name in _differing(before.get("args"), after["args"])]
    content = before.get("input")
    if (content.get("content") if isinstance(content, Mapping) else content) != after["input"]:
        changed.append("the input")
    for name in ("batch", "num_frames", "seed", "codec", "layout", "version", *(["per"] if after["per"] else [])):
        if name in before and before[name] != after[name]:
            changed.append(f"{name} ({before[name]} before)")
    changed += ["the windows"] * bool(_differing(before.get("windows"), after["windows"]))
    return changed + [f"the version of {name}" for name in _differing(before.get("versions"), after["versions"])]


def _differing(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    """The keys with another value, or in one of two objects alone."""
    one, other = before or {}, after or {}
    return sorted(name for name in {*one, *other} if name not in one or name not in other or one[name] != other[name])
