"""The records that go into a download and come out of it: `Request`, `Estimate`, `Outcome`, and the `Listener`.

`find_existing` says whether an existing dataset already is what a request asks for.

Shards are selected by number, as users write it: ``0-4,7`` (`parse_numbers`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from ...errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    ObjectNotFoundError,
    RbdataError,
    UsageError,
)
from ...storage.folder import DatasetPlace
from ...storage.keywords import refuse_empty
from ...storage.manifest import FILENAME, Manifest, read_manifest
from ...storage.schema import LARGE_ROW, Schema
from ..fetch import FetchOptions
from ..workers.task import Engine, OnOutput, TaskProgress, write_to_stderr
from .records import ConvertOptions


@dataclass(frozen=True)
class Request:
    """Which dataset to get, from where, and how.

    ``mirror`` replaces the provider's own place. ``procs`` worker processes fill parts (None: one for each processor, up
    to 8); an open ``engine`` does so instead, each part on one of its processors. ``keep_raw`` also stores the raw objects,
    below ``<root>/.raw/``, laid out as a mirror. ``force`` starts over and replaces the dataset that exists (an interrupted
    run with ``force`` is continued by the next one). ``append`` adds to the dataset that exists. ``dry_run`` plans and stops.
    ``wait``: where another process writes the dataset, wait for it instead of raising DatasetBusyError. ``command`` is the
    command line, if there is one, for hints about an unfinished dataset.
    """

    id: str
    root: Path | None = None
    mirror: str | None = None
    procs: int | None = None
    options: ConvertOptions = field(default_factory=ConvertOptions)
    fetch: FetchOptions = field(default_factory=FetchOptions)
    keep_raw: bool = False
    force: bool = False
    append: bool = False
    dry_run: bool = False
    wait: bool = False
    command: str = ""
    engine: Engine | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for choices that exclude each other."""
        if self.append and self.force:
            raise UsageError("append adds to the dataset that force replaces", hint="choose one of them")


def make_request(
    dataset_id: str,
    root: str | os.PathLike[str] | None,
    extra: Mapping[str, Any],
    *,
    codec: str = "auto",
    layout: Literal["auto", "ted"] = "auto",
    unknown_next: Literal["truncate", "zero"] = "truncate",
    shards: str | Sequence[int] | None = None,
    user_project: str | None = None,
    mirror: str | os.PathLike[str] | None = None,
    **fields: Any,
) -> Request:
    """A request from arguments as users give them; ``extra`` are options of the source, ``fields`` others of `Request`."""
    refuse_empty(root=root, mirror=mirror)
    options = ConvertOptions(codec, layout, unknown_next, parts=parse_numbers(shards), extra=extra)
    fetch = FetchOptions(user_project=user_project)
    if not (mirror is None or isinstance(mirror, (str, os.PathLike))):
        raise UsageError(f"mirror is a path or URL, not {mirror!r}")
    place = None if mirror is None else os.fspath(mirror)
    return Request(dataset_id, None if root is None else Path(root), place, options=options, fetch=fetch, **fields)


@dataclass(frozen=True)
class Estimate:
    """What a run is about to do; the result of a dry run. Bytes are those still to be fetched and written.

    ``disk_bytes`` are those that stay: what is staged lies beside the dataset for a while. ``unread``: steps and episodes
    (0 here) are known only when the raw files have been fetched. ``estimated``: steps, episodes and bytes are guesses.
    ``fetched``: whole raw files were fetched already, as an earlier estimate stated.
    """

    id: str
    path: Path
    location: str
    shards: int
    fetch_bytes: int
    steps: int
    episodes: int
    disk_bytes: int
    free_bytes: int
    done_parts: int
    parts: int
    notes: Sequence[str] = ()
    #: Why the data come from this location, where that is not obvious.
    why: str = ""
    unread: bool = False
    estimated: bool = False
    fetched: bool = False


@dataclass(frozen=True)
class Outcome:
    """The result of a run: the dataset was ``complete`` already, was ``written``, ``repaired`` (files of it were missing or
    cut short), or was only ``planned`` (dry run)."""

    id: str
    path: Path
    action: Literal["complete", "written", "repaired", "planned"]
    manifest: Manifest | None
    seconds: float = 0.0
    estimate: Estimate | None = None


@dataclass
class Listener:
    """Callbacks of a run; each may be replaced. The library itself never prints."""

    #: A phrase that describes what begins: "fetching the raw files".
    on_stage: Callable[[str], None] = lambda text: None
    #: A sentence for the user, before anything is written: what is replaced.
    on_note: Callable[[str], None] = lambda text: None
    #: Shards planned so far, and in all.
    on_planned: Callable[[int, int], None] = lambda done, total: None
    on_estimate: Callable[[Estimate], None] = lambda estimate: None
    on_progress: Callable[[list[TaskProgress]], None] = lambda tasks: None
    on_part_done: Callable[[int], None] = lambda index: None
    #: While whole raw files are fetched: an object, the bytes fetched so far of all objects, and those to be fetched.
    on_fetched: Callable[[str, int, int], None] = lambda name, done, total: None
    #: A line that a user's function printed in a worker process.
    on_output: OnOutput = write_to_stderr


# -- selections of shards -----------------------------------------------------------------------------------------------

#: Numbers in one range; more is a typing error.
_LONGEST = 10_000


def parse_numbers(
    selection: str | Sequence[int] | None, option: str = "--shards", longest: int = _LONGEST
) -> tuple[int, ...] | None:
    """``"0-4,7"`` -> (0, 1, 2, 3, 4, 7); numbers sorted, each once; None, for all, as it is.

    Raises UsageError, naming the ``option``, for other texts and ranges of more than ``longest`` numbers.
    """
    if selection is None:
        return None
    if not isinstance(selection, str):
        return tuple(sorted(set(selection)))
    chosen: set[int] = set()
    for part in selection.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not match:
            raise UsageError(f"{option} {selection!r} is not a list of numbers and ranges", hint="for example: 0-4,7")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or high - low > longest:
            raise UsageError(f"{option}: the range {part.strip()} is empty or too long", hint="for example: 0-4,7")
        chosen.update(range(low, high + 1))
    return tuple(sorted(chosen))


Piece = TypeVar("Piece")


def select_numbered(there: Mapping[int, Piece], numbers: Collection[int] | None, title: str, piece: str) -> list[Piece]:
    """The pieces of a dataset (``piece`` is what one is called) of these numbers, in their order; all for None.

    Raises UsageError for no number, ObjectNotFoundError for numbers of no piece.
    """
    if numbers is None:
        return list(there.values())
    hint = f"it has {format_numbers(sorted(there)) or 'none'}"
    if not numbers:
        raise UsageError(f"no {piece}s of {title} are asked for", hint=hint)
    absent = sorted(set(numbers).difference(there))
    if absent:
        error = ObjectNotFoundError(f"{title} has no {piece} {', '.join(map(str, absent))}", hint=hint)
        error.partly_there = True
        raise error
    return [one for number, one in there.items() if number in numbers]


def format_numbers(numbers: Sequence[int]) -> str:
    """Sorted numbers with ranges: [0, 1, 2, 5] -> "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


# -- what exists already -----------------------------------------------------------------------------------------------


def find_existing(place: DatasetPlace, request: Request) -> Manifest | None:
    """The dataset at a place if it already is what the request asks for; None if there is work to do.

    Raises DatasetExistsError when something else is there. What is damaged is returned all the same (`check_sizes`).
    """
    if request.force or request.append or not place.path.exists():
        return None
    try:
        manifest = read_manifest(place.path)
    except DatasetNotFoundError:
        if (place.path / FILENAME).exists():  # of a newer rbdata, or of another program
            raise
        place.check_free()
        return None
    if manifest.id != place.id and manifest.id.lower() == place.id.lower():
        message = f"{place.path} holds {manifest.id}: on this disk, names that differ in case alone are one"
        raise DatasetExistsError(message, hint="write it as it is there, or choose another --root")
    differs = _differences(manifest, request.options)
    if differs:
        values = (f"{name} ({there} there, {asked} asked for)" for name, (there, asked) in differs.items())
        message = f"{place.id} already exists, made with different options: {', '.join(values)}"
        raise DatasetExistsError(message, hint="replace it with --force, or delete it first")
    return None if list_missing(manifest, request.options) else manifest


def list_missing(manifest: Manifest, options: ConvertOptions) -> list[str]:
    """The options and the choice of shards in which a dataset differs from the request; additional shards are accepted."""
    wanted, have = options.parts, manifest.source
    enough = have.get("all_shards", True) if wanted is None else set(wanted) <= set(have.get("shards", []))
    return [*_differences(manifest, options), *([] if enough else ["choice of shards"])]


def extend(place: DatasetPlace, request: Request, declared: Collection[str]) -> Request:
    """The request that makes the dataset at its place larger: with its present shards, and the options they were converted with
    (``declared``: those of the source); to append to it, only how it is stored counts. Without ``force``, no existing data are
    discarded."""
    if request.force or not place.exists():
        return request
    options, manifest = request.options, read_manifest(place.path)
    if request.append:
        return replace(request, options=_as_stored(manifest.schema, options))
    have = manifest.source
    recorded, shards = have.get("options", {}), have.get("shards", ())
    options = replace(
        options,
        codec=recorded.get("codec", options.codec) if options.codec == "auto" else options.codec,
        layout=recorded.get("layout", options.layout) if options.layout == "auto" else options.layout,
        time_limit=recorded.get("time_limit") if options.time_limit is None else options.time_limit,
        parts=None if options.parts is None else tuple(sorted({*options.parts, *shards})),
        extra={**options.extra, **{name: value for name, value in recorded.items() if name in declared}},
    )
    return replace(request, options=options)


def _as_stored(schema: Schema, options: ConvertOptions) -> ConvertOptions:
    """The options with which large leaves become like those of a schema, where the user left that open."""
    if schema.states and options.codec == "auto" == options.layout:
        return replace(options, codec=schema.states[0].codec)
    twins = any(leaf.row_bytes >= LARGE_ROW and "next/" + leaf.name in schema for leaf in schema.steps)
    return replace(options, layout="ted") if twins and options.layout == "auto" else options


def announce_replacement(
    place: DatasetPlace, request: Request, shards: Collection[int], where: str, listener: Listener
) -> None:
    """Before a dataset with these shards takes the place of another: with ``force`` say what is replaced.

    Raises DatasetExistsError without it if a shard would be lost.
    """
    if not place.exists():
        return
    try:
        manifest = read_manifest(place.path)
    except RbdataError:  # only ``force`` replaces it
        return
    lost = format_numbers(sorted(set(manifest.source.get("shards", ())) - set(shards)))
    if request.force:
        what = f"{manifest.steps:,} steps in {manifest.episodes:,} episodes"
        listener.on_note(f"replaces the {place.id} that is there, {what}" + (f"; drops shards {lost}" if lost else ""))
    elif lost:
        message = f"{place.id} has shards that {where} lacks: {lost}"
        raise DatasetExistsError(message, hint="use a place that has them too, or drop them with --force")


def _differences(manifest: Manifest, options: ConvertOptions) -> dict[str, tuple[Any, Any]]:
    """The options in which an existing dataset differs from what is asked for, with the values there and asked for; an option
    that is not given always matches."""
    recorded = manifest.source.get("options", {})
    asked = {
        "codec": None if options.codec == "auto" else options.codec,
        "layout": None if options.layout == "auto" else options.layout,
        "unknown_next": options.unknown_next,
        "time_limit": options.time_limit,
        **{name: value for name, value in options.extra.items() if value != "auto"},
    }
    given = {name: value for name, value in asked.items() if value is not None}
    return {name: (recorded[name], value) for name, value in given.items() if recorded.get(name, value) != value}
