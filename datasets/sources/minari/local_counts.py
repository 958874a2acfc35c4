"""What Minari's own root on this machine holds, from each dataset's ``metadata.json``: nothing heavy is imported for a list."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..catalogue_entry import CatalogueEntry, Place, action_kind, observation_kind, space_text
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
                kind = observation_kind if ours == "observations" else action_kind
                facts[ours], facts[theirs] = kind(space), space_text(space)
        spec = _parsed(record.get("env_spec"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return {}  # not there, or not what Minari writes: the download says what is wrong with it
    return {**facts, **({"environment": spec["id"]} if spec and isinstance(spec.get("id"), str) else {})}


def _counts(text: str) -> dict[str, Any]:
    found = {name: re.search(rf'"{name}":\s*(\d+)', text) for name in _COUNTS}
    return {name: match[1] for name, match in found.items() if match}


def _parsed(value: Any) -> dict[str, Any] | None:
    """JSON inside a string, as Minari writes spaces and specifications."""
    record = json.loads(value) if isinstance(value, str) else value
    return record if isinstance(record, dict) else None
