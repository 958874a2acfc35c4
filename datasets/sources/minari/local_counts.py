"""What Minari's own root on this machine holds, from each dataset's ``metadata.json``: nothing heavy is imported for a list."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..catalogue_entry import CatalogueEntry, Place
from .names import local_names, local_root

#: Larger metadata (Atari's bounds, written in full) are searched for their counts and not parsed.
_LARGEST_PARSED = 1 << 18
_COUNTS = {"total_steps": "steps", "total_episodes": "episodes"}


def local_entries(root: Path | None = None) -> Iterator[CatalogueEntry]:
    """One for each dataset in a local root; of datasets from before Minari 0.5, which have no such file, the size only."""
    top = root or local_root()
    place = Place("this machine", str(top), "open", note="Minari's own root")
    for name in local_names(top):
        data = top / name / "data"
        yield CatalogueEntry(f"minari/{name}", bytes=_size(data), places=(place,), **_facts(data / "metadata.json"))


def _size(folder: Path) -> int:
    return sum((Path(parent) / file).stat().st_size for parent, _, files in os.walk(folder) for file in files)


def _facts(path: Path) -> dict[str, Any]:
    """Fields of an entry, as far as a metadata file states them."""
    try:
        text = path.read_text(encoding="utf-8")
        record = _counts(text) if len(text) > _LARGEST_PARSED else json.loads(text)
        facts: dict[str, Any] = {ours: int(record[theirs]) for theirs, ours in _COUNTS.items() if theirs in record}
        for ours, theirs in (("observations", "observation_space"), ("actions", "action_space")):
            space = _parsed(record.get(theirs))
            if space:
                kind, facts[theirs] = space.get("type"), space_text(space)
                facts[ours] = observation_kind(space) if ours == "observations" else _action_kind(kind)
        spec = _parsed(record.get("env_spec"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # not there, or not what Minari writes: the download says what is wrong with it
    return {**facts, **({"environment": spec["id"]} if spec and isinstance(spec.get("id"), str) else {})}


def _counts(text: str) -> dict[str, Any]:
    found = {name: re.search(rf'"{name}":\s*(\d+)', text) for name in _COUNTS}
    return {name: match[1] for name, match in found.items() if match}


def _parsed(value: Any) -> dict[str, Any] | None:
    """JSON inside a string, as Minari writes spaces and specifications."""
    record = json.loads(value) if isinstance(value, str) else value
    return record if isinstance(record, dict) else None


def observation_kind(space: Mapping[str, Any]) -> str | None:
    """The kind of observations of a space in Minari's form."""
    kind = space.get("type")
    if kind == "Box":
        return "image" if space.get("dtype") == "uint8" and len(space["shape"]) >= 2 else "vector"
    kinds = {
        "Dict": "dict",
        "Tuple": "dict",
        "Discrete": "discrete",
        "MultiBinary": "vector",
        "MultiDiscrete": "vector",
    }
    return kinds.get(str(kind))


def _action_kind(kind: Any) -> str | None:
    return {"Box": "continuous", "Discrete": "discrete", "MultiDiscrete": "discrete", "MultiBinary": "discrete"}.get(
        kind
    )


def space_text(space: Mapping[str, Any]) -> str:
    """A space in Minari's form in short: ``Box [3] float32``, ``Dict(image: Box [7, 7, 3] uint8, direction: Discrete 4)``."""
    kind, inner = space["type"], space.get("subspaces")
    if isinstance(inner, dict):
        return f"{kind}({', '.join(f'{name}: {space_text(one)}' for name, one in inner.items())})"
    if isinstance(inner, list):
        return f"{kind}({', '.join(map(space_text, inner))})"
    if kind == "Box":
        return f"Box {list(space['shape'])} {space['dtype']}"
    return f"{kind} {space['n']}" if "n" in space else str(kind)
