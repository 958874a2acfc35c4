"""Where a preprocessed dataset comes from: what its manifest says about that.

``lineage`` is a JSON object:

    input          {id, content, steps, episodes, source, lineage}: the dataset it was made from; ``content`` is the sha256 of
                   its leaves, counts and checksums; its own lineage goes with it, so that nothing is lost when it is deleted
    functions      [{function, source_sha256, file_sha256, args}] in order
    per, batch, windows, num_frames, seed, codec, layout
    versions       {rbdata, torch, tensordict, python}
    statistics     {function: ...}: what first passes found
    leaves         {added, dropped, changed}: judged by the first batch
    unchained      observations whose successor is not the observation of the following step
    fingerprint    of all that decides the bytes
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from .._version import __version__
from ..storage.manifest import Manifest
from .function import Function


def content_id(manifest: Manifest) -> str:
    """sha256 of what a dataset holds, wherever and whenever it was made."""
    record = manifest.to_json()
    held = {name: record[name] for name in ("leaves", "steps", "episodes", "files")}
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()


def describe_input(manifest: Manifest) -> dict[str, Any]:
    """The input as the lineage names it."""
    source = {name: manifest.source[name] for name in ("name", "options") if name in manifest.source}
    return {
        "id": manifest.id,
        "content": content_id(manifest),
        "steps": manifest.steps,
        "episodes": manifest.episodes,
        "source": source,
        "lineage": manifest.lineage,
    }


def versions() -> dict[str, str]:
    """What may change a result from one machine to another."""
    return {
        "rbdata": __version__,
        "torch": version("torch"),  # without loading them
        "tensordict": version("tensordict"),
        "python": platform.python_version(),
    }


def named_statistics(functions: Sequence[Function], statistics: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Statistics by the name of the function that they belong to; the second of a name gets a number."""
    named: dict[str, Any] = {}
    for fn, found in zip(functions, statistics):
        if found is not None:
            same = sum(key == fn.label or key.startswith(fn.label + "#") for key in named)
            named[fn.label if not same else f"{fn.label}#{same + 1}"] = found
    return named


def spaces_left(manifest: Manifest, look: Mapping[str, Any]) -> dict[str, Any]:
    """The input's spaces that still say something true: those of leaves that are as they were."""
    before, after, changed = look["input"], look["shapes"], look["changed"]
    kept: dict[str, Any] = {}
    for name, space in manifest.spaces.items():
        below = [path for path in before if path == name or path.startswith(name + "/")]
        untouched = changed is not None and all(
            path in after and list(after[path]) == list(before[path]) and path not in changed for path in below
        )
        if below and untouched:
            kept[name] = space
    return kept


def leaf_changes(look: Mapping[str, Any]) -> dict[str, list[str]]:
    """Leaves that were added, dropped and changed."""
    before, after = look["input"], look["shapes"]
    flags = {"done", "terminated", "truncated"}
    changed = look["changed"]
    if changed is None:
        changed = [path for path in after if path in before and list(after[path]) != list(before[path])]
    return {
        "added": sorted(set(after) - set(before)),
        "dropped": sorted(set(before) - set(after) - flags),
        "changed": sorted(changed),
    }


def words(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A lineage for people, as named lines."""
    origin = record.get("input", {})
    lines = [
        ("made from", f"{origin.get('id')}, {origin.get('steps', 0):,} steps, sha256 {_short(origin.get('content'))}")
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
    before = origin.get("lineage")
    if before:
        lines += [(f"before: {name}" if name == "made from" else name, text) for name, text in words(before)[:-1]]
    return lines


def _short(digest: str | None) -> str:
    return (digest or "?")[:12]
