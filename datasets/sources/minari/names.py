"""Minari ids, where the datasets are, and what Minari's own root on this machine holds.

An id is ``(namespace/)name-vN``; namespaces may nest (``D4RL/door/human-v2``). Everywhere the dataset lies below its id, in
``data/``: in a local root (``~/.minari/datasets``, or MINARI_DATASETS_PATH), in a bucket, below an owner at the Hugging Face
Hub (the first namespace is the repository).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....errors import UsageError
from ..catalogue_entry import CatalogueEntry, Place, action_kind, observation_kind, space_text

HOME = "hf://farama-minari"
_ID = re.compile(r"(?:[-\w]+/)*[-\w]+?-v\d+")
_DEEPEST = 8
#: Larger metadata (Atari's bounds, written in full) are searched for their counts and not parsed.
_LARGEST_PARSED = 1 << 18
_COUNTS = {"total_steps": "steps", "total_episodes": "episodes"}

#: What the Farama Foundation publishes, as far as its documentation lists it; `remote_counts` asks what it holds today.
_ADROIT = tuple(
    f"D4RL/{hand}/{kind}-v2" for hand in ("door", "hammer", "pen", "relocate") for kind in ("human", "cloned", "expert")
)
_MAZES = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
_POINTS = tuple(f"{maze}{dense}" for maze in ("open", "umaze", "medium", "large") for dense in ("", "-dense"))
KNOWN = (
    *_ADROIT,
    *(f"D4RL/kitchen/{kind}-v2" for kind in ("complete", "partial", "mixed")),
    *(f"D4RL/antmaze/{maze}-v1" for maze in _MAZES),
    *(f"D4RL/pointmaze/{maze}-v2" for maze in _POINTS),
    "D4RL/minigrid/fourrooms-v0",
    "D4RL/minigrid/fourrooms-random-v0",
    *(
        f"mujoco/{robot}/{level}-v0"
        for robot in ("ant", "halfcheetah", "hopper", "humanoid", "walker2d")
        for level in ("simple", "medium", "expert")
    ),
)


def is_id(name: str) -> bool:
    """Whether this could be a Minari id."""
    return _ID.fullmatch(name) is not None


def local_root() -> Path:
    """Where Minari keeps its datasets on this machine; it need not be there."""
    chosen = os.environ.get("MINARI_DATASETS_PATH")
    return Path(chosen) if chosen else Path.home() / ".minari" / "datasets"


def local_names(root: Path | None = None) -> list[str]:
    """Ids of the datasets in a local root, sorted."""
    top = root or local_root()
    return sorted(_walk(top, "", 0)) if top.is_dir() else []


def _walk(folder: Path, prefix: str, depth: int) -> Iterator[str]:
    try:
        entries = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return
    for entry in entries:
        name = prefix + entry.name
        if (entry / "data").is_dir():
            if is_id(name):
                yield name
        elif depth < _DEEPEST:
            yield from _walk(entry, name + "/", depth + 1)


def remote_url() -> str:
    """The remote that Minari itself would use: MINARI_REMOTE (``hf://owner``, ``gcp://bucket``), else the Foundation's."""
    return as_location(os.environ.get("MINARI_REMOTE") or HOME)


def as_location(url: str) -> str:
    """A remote as Minari writes it, as a place that can be opened."""
    return "gs://" + url[len("gcp://") :] if url.startswith("gcp://") else url


def split_url(text: str) -> tuple[str, str] | None:
    """``hf://owner/D4RL/door/human-v2`` as (id, remote); None for other text.

    Raises UsageError for an address with an invalid id.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("hf", "gcp", "gs"):
        return None
    owner, _, name = rest.partition("/")
    if not owner or not is_id(name):
        message = f"{text} is not the address of a Minari dataset"
        raise UsageError(message, hint="write hf://owner/namespace/name-v0 or gcp://bucket/namespace/name-v0")
    return name, as_location(f"{scheme}://{owner}")


# -- this machine -----------------------------------------------------------------------------------------------------


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
