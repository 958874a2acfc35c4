"""The lineage of a preprocessed dataset, a JSON object in its manifest:

input          {id, content, steps, episodes, source, lineage}: the dataset it was made from. ``content`` is the sha256
               of its leaves, counts and checksums. Its own lineage is included, so that it outlives the input
functions      [{function, source_sha256, file_sha256, args}] in order
per, batch, windows, num_frames, seed
versions       {rbdata, torch, tensordict, python}
statistics     {function: ...}: the results of first passes
leaves         {added, dropped, changed}, according to the first batch
unchained      observations whose successor is not the observation of the following step
fingerprint    sha256 of everything that decides the bytes of the result
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from .._version import __version__
from ..storage.manifest import Manifest
from ..storage.schema import FLAGS
from .function import Function
from .records import ProbeResult


def describe_input(manifest: Manifest) -> dict[str, Any]:
    """The record of the input in the lineage."""
    kept = ("name", "dataset", "options", "environment", "reference_scores")
    source = {name: manifest.source[name] for name in kept if manifest.source.get(name) is not None}
    return {
        "id": manifest.id,
        "content": manifest.content,
        "steps": manifest.steps,
        "episodes": manifest.episodes,
        "source": source,
        "lineage": manifest.lineage,
    }


def versions() -> dict[str, str]:
    """The versions of what may affect a result."""
    return {
        "rbdata": __version__,
        "torch": version("torch"),  # without importing it
        "tensordict": version("tensordict"),
        "python": platform.python_version(),
    }


def named_statistics(functions: Sequence[Function], statistics: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Statistics by the label of their function; ``#2`` is appended for the second function with a label."""
    named: dict[str, Any] = {}
    for fn, found in zip(functions, statistics):
        if found is not None:
            same = sum(key == fn.label or key.startswith(fn.label + "#") for key in named)
            named[fn.label if not same else f"{fn.label}#{same + 1}"] = found
    return named


def remaining_spaces(manifest: Manifest, probe: ProbeResult) -> dict[str, Any]:
    """The spaces of the input that are valid for the result: those of unchanged leaves."""
    before, after, changed = probe.before, probe.after, probe.changed
    remaining: dict[str, Any] = {}
    for name, space in manifest.spaces.items():
        below = [path for path in before if path == name or path.startswith(name + "/")]
        unchanged = changed is not None and all(
            path in after and after[path] == before[path] and path not in changed for path in below
        )
        if below and unchanged:
            remaining[name] = space
    return remaining


def leaf_changes(probe: ProbeResult) -> dict[str, list[str]]:
    """Leaves that were added, dropped and changed."""
    before, after, changed = probe.before, probe.after, probe.changed
    if changed is None:
        changed = [path for path in after if path in before and after[path] != before[path]]
    return {
        "added": sorted(set(after) - set(before)),
        "dropped": sorted(set(before) - set(after) - set(FLAGS)),
        "changed": sorted(changed),
    }


def describe_lineage(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A lineage as named lines for the user."""
    source = record.get("input", {})
    lines = [
        ("made from", f"{source.get('id')}, {source.get('steps', 0):,} steps, sha256 {_short(source.get('content'))}")
    ]
    for fn in record.get("functions", []):
        args = ", ".join(f"{name}={json.dumps(value)}" for name, value in fn.get("args", {}).items())
        lines.append(("function", f"{fn.get('function')}({args}), sha256 {_short(fn.get('source_sha256'))}"))
    how = {"per": record.get("per"), "batch": record.get("batch"), "seed": record.get("seed")}
    how.update(record.get("windows") or {})
    if record.get("num_frames"):
        how["first steps"] = record["num_frames"]
    lines.append(("how", ", ".join(f"{name} {value}" for name, value in how.items())))
    for what, names in (record.get("leaves") or {}).items():
        if names:
            lines.append((what, ", ".join(names)))
    for name, found in (record.get("statistics") or {}).items():
        lines.append(("statistics", f"{name}: {', '.join(found) if isinstance(found, Mapping) else 'kept'}"))
    lines.append(("versions", ", ".join(f"{name} {value}" for name, value in (record.get("versions") or {}).items())))
    before = source.get("lineage")
    if before:
        lines += [
            (f"before: {name}" if name == "made from" else name, text) for name, text in describe_lineage(before)[:-1]
        ]
    return lines


def _short(digest: str | None) -> str:
    return (digest or "?")[:12]
