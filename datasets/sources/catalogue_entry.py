"""The facts about a dataset before it is downloaded: from files of the package, and from remotes.

A source may have a file ``catalogue.json`` beside its module:

    {
     "title": "one line: what the source holds",
     "date": "2026-11-22",                       of the last check of the file
     "figures": ["bytes: from where", ...],      where the numbers are from
     "example": "hopper-medium-v2",              a name to begin with
     "places": {"key": {"name", "url", "access": "open" | "unreliable" | "closed", "date", "note", "mirror"}, ...},
     "all": {...}, "groups": {"hopper": {...}},  fields of `CatalogueEntry` that datasets share
     "columns": ["name", "group", "steps", ...], "datasets": [["hopper-medium-v2", "hopper", 1000000], ...]
    }

A row's columns override its group, a group overrides ``all``; null and missing columns are unknown. ``notes`` and ``tags`` of
a group are added to those of all. A name that ends in a range (``Pong/1-5``) is one dataset for each number.

A provider that can be asked what it holds is asked once; the answer (`RemoteListing`) is cached with its date below the root
in ``.remote/<source>-<crc32c of the remote>.json``, so that it can be looked at without a network:

    {"format": 1, "remote": url, "date": UTC, "datasets": [{"name", "episodes", "steps", "bytes"}, ...]}

with null for what the remote does not state, or what would take too many requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from ... import settings
from ...storage.checksums import crc32c
from ...storage.durable import write_atomically
from ...storage.reference_scores import ReferenceScores

Observations = Literal["image", "vector", "discrete", "dict"]
Actions = Literal["discrete", "continuous"]
OBSERVATIONS: tuple[str, ...] = get_args(Observations)
ACTIONS: tuple[str, ...] = get_args(Actions)

_RANGE = re.compile(r"(.*/)(\d+)-(\d+)")


@dataclass(frozen=True)
class Place:
    """Where a dataset is available. ``date`` is when ``access`` was last seen; a ``mirror`` is named with ``--mirror``."""

    name: str
    url: str
    access: Literal["open", "unreliable", "closed"]
    date: str = ""
    note: str = ""
    mirror: bool = False


@dataclass(frozen=True, repr=False)
class CatalogueEntry:
    """One dataset as its source describes it; what is not known is None, or empty.

    ``observations`` and ``actions`` are kinds: `OBSERVATIONS`, `ACTIONS`; "dict" is any nested observation.
    ``observation_space`` and ``action_space`` are Gymnasium's spaces in short. ``steps`` and ``episodes`` are counts; if
    ``approximate``, they are rounded, or counted differently than rbdata counts. ``bytes`` are those to download.
    ``reference_scores`` are the returns that normalised scores call 0 and 100, ``horizon`` is the environment's time limit in
    steps. ``places`` are where it is available, in the order in which to try them. ``options`` are the options of the source
    that matter most. ``date`` and ``figures`` state when and from where all this is known.
    """

    id: str
    environment: str | None = None
    observations: Observations | None = None
    observation_space: str | None = None
    actions: Actions | None = None
    action_space: str | None = None
    steps: int | None = None
    episodes: int | None = None
    approximate: bool = False
    bytes: int | None = None
    reference_scores: ReferenceScores | None = None
    horizon: int | None = None
    tags: tuple[str, ...] = ()
    licence: str | None = None
    citation: str | None = None
    origin: str | None = None
    places: tuple[Place, ...] = ()
    notes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    date: str | None = None
    figures: tuple[str, ...] = field(default=(), compare=False)

    @property
    def source(self) -> str:
        """The source it is from: the first part of the id."""
        return self.id.partition("/")[0]

    @property
    def name(self) -> str:
        """The id without the source."""
        return self.id.partition("/")[2]

    @property
    def available(self) -> tuple[str, ...]:
        """The names of the places where it is available; empty where only a mirror of your own can have it."""
        return tuple(place.name for place in self.places if place.access != "closed")

    @property
    def command(self) -> str:
        """The command that downloads it, from the place that is most likely to work."""
        return self.command_at(None)

    def command_at(self, root: str | os.PathLike[str] | None) -> str:
        """Return the same with ``--root`` where it is not None."""
        best = next((place for place in self.places if place.access == "open"), None)
        mirror = ("--mirror", best.url) if best and best.mirror else ()
        return settings.command("download", self.id, *mirror, root=root)

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON values, with ``available`` and ``command``."""
        record = {one.name: getattr(self, one.name) for one in fields(self)}
        record["places"] = [vars(place) for place in self.places]
        record["reference_scores"] = self.reference_scores and vars(self.reference_scores)
        return {**record, "available": self.available, "command": self.command}

    def __repr__(self) -> str:
        facts = [
            f"{'about ' * self.approximate}{self.steps:,} steps" if self.steps is not None else "",
            f"{self.bytes / 1e6:,.0f} MB" if self.bytes is not None else "",
            f"{self.observations} observations" if self.observations else "",
            f"{self.actions} actions" if self.actions else "",
        ]
        stated = ", ".join(fact for fact in facts if fact)
        return f"<CatalogueEntry {self.id}{': ' * bool(stated)}{stated}>"


class Catalogue(tuple[CatalogueEntry, ...]):
    """Datasets, in an order: a tuple that is short in a terminal."""

    @property
    def ids(self) -> list[str]:
        """The ids, in this order."""
        return [entry.id for entry in self]

    def __repr__(self) -> str:
        ids = self.ids if len(self) <= 4 else [*self.ids[:3], "...", self.ids[-1]]
        return f"<Catalogue of {len(self):,} datasets{': ' * bool(ids)}{', '.join(ids)}>"


@dataclass(frozen=True)
class CatalogueFile:
    """A file ``catalogue.json``, read."""

    source: str
    content: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, source: str) -> CatalogueFile:
        """Raises OSError for a missing file, ValueError for a file that is not JSON."""
        return cls(source, _content(path))

    def names(self) -> list[str]:
        """The names of the datasets, in the order of the file."""
        return [one for name, *_ in self.content["datasets"] for one in _expanded(name)]

    def entries(self) -> Iterator[CatalogueEntry]:
        """One for each dataset, in the order of the file."""
        columns = self.content["columns"][2:]
        for name, group, *values in self.content["datasets"]:
            row = {column: value for column, value in zip(columns, values) if value is not None}
            for one in _expanded(name):
                yield self.entry(one, group, row)

    def entry(self, name: str, group: str | None = None, row: Mapping[str, Any] | None = None) -> CatalogueEntry:
        """An entry, from the fields for all datasets, for its group, and for this dataset."""
        shared, special = self.content["all"], self.content["groups"][group] if group else {}
        facts = {**shared, **special, **(row or {})}
        for both in ("tags", "notes"):
            facts[both] = (*special.get(both, ()), *shared.get(both, ()))
        places = (Place(**self.content["places"][key]) for key in facts.pop("places", ()))
        lists = {key: tuple(value) for key, value in facts.items() if isinstance(value, (list, tuple))}
        about = {"date": self.content["date"], "figures": tuple(self.content["figures"])}
        return CatalogueEntry(f"{self.source}/{name}", places=tuple(places), **{**facts, **lists, **about})


@cache
def _content(path: Path) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _expanded(name: str) -> Iterator[str]:
    match = _RANGE.fullmatch(name)
    if match is None:
        yield name
        return
    for number in range(int(match[2]), int(match[3]) + 1):
        yield f"{match[1]}{number}"


# -- spaces as JSON, of a manifest or as Minari writes them ---------------------------------------------------------------


def observation_kind(space: Mapping[str, Any]) -> Observations | None:
    """The kind of the observations of a space; None for a type that is not known."""
    kind = str(space.get("type"))
    if kind == "Box":
        return "image" if space.get("dtype") == "uint8" and len(space["shape"]) >= 2 else "vector"
    kinds: dict[str, Observations] = {"Dict": "dict", "Tuple": "dict", "Discrete": "discrete"}
    return "vector" if kind in ("MultiBinary", "MultiDiscrete") else kinds.get(kind)


def action_kind(space: Mapping[str, Any]) -> Actions | None:
    """The kind of the actions of a space; None for a nested one, or a type that is not known."""
    kind = str(space.get("type"))
    if kind in ("Discrete", "MultiDiscrete", "MultiBinary"):
        return "discrete"
    return "continuous" if kind == "Box" else None


def space_text(space: Mapping[str, Any]) -> str:
    """A space in short: ``Box [3] float32``, ``Dict(image: Box [7, 7, 3] uint8, direction: Discrete 4)``."""
    kind, inner = space["type"], space.get("spaces", space.get("subspaces"))
    if isinstance(inner, dict):
        return f"{kind}({', '.join(f'{name}: {space_text(one)}' for name, one in inner.items())})"
    if isinstance(inner, list):
        return f"{kind}({', '.join(map(space_text, inner))})"
    if kind == "Box":
        return f"Box {list(space['shape'])} {space['dtype']}"
    return f"{kind} {space['n']}" if space.get("n") is not None else str(kind)


# -- what remotes hold ----------------------------------------------------------------------------------------------------

_CACHE, _CACHE_FORMAT = ".remote", 1


@dataclass(frozen=True)
class ListedDataset:
    """One dataset at a remote; what is not known is None."""

    name: str
    episodes: int | None = None
    steps: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class RemoteListing:
    """What a remote held at a date (``YYYY-MM-DDTHH:MM:SSZ``)."""

    remote: str
    date: str
    datasets: tuple[ListedDataset, ...]


def read_listing(source: str, remote: str, root: Path | None = None) -> RemoteListing | None:
    """The listing that is cached below a root; None where there is none, or one that cannot be read."""
    try:
        record: Any = json.loads(_cache_path(source, remote, root).read_bytes())
        if record["format"] != _CACHE_FORMAT or record["remote"] != remote:
            return None
        datasets = tuple(ListedDataset(**entry) for entry in record["datasets"])
        return RemoteListing(remote, str(record["date"]), datasets)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None  # missing, or of another version: the remote is asked again


def cache_listing(
    source: str, remote: str, datasets: Iterable[ListedDataset], root: Path | None = None
) -> RemoteListing:
    """Cache what a remote just answered, as of now; returns the listing."""
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    listing = RemoteListing(remote, date, tuple(sorted(datasets, key=lambda dataset: dataset.name)))
    path = _cache_path(source, remote, root)
    record = {"format": _CACHE_FORMAT, **asdict(listing)}
    with contextlib.suppress(OSError):  # a root that cannot be written to does not prevent the answer
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record, indent=1).encode())
    return listing


def _cache_path(source: str, remote: str, root: Path | None) -> Path:
    return settings.root(root) / _CACHE / f"{source}-{crc32c(remote.encode())}.json"
