"""Finds and removes files under a root other than complete datasets: left-overs of interrupted work, and kept raw files.

    unfinished   ``.NAME.writing``: the next run of the same command continues it
    replaced     ``.NAME.old``: a replaced dataset, left by a killed process
    lock         ``.NAME.lock*`` of an ended process
    part         ``*.part``, ``*.part.json``, ``*.part.lock`` of raw files that were not fetched to their ends
    raw          ``.raw``: kept by ``download --keep-raw``
    empty        a folder for a dataset that a killed process created or did not remove

Files that a running process uses are not left-overs.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .. import settings
from ..errors import DatasetBusyError, RbdataError
from ..storage.folder import RUN, DatasetPlace, disk_use, files_below, remove_empty, remove_tree
from ..storage.manifest import FILENAME
from . import catalogue
from .fetch.reading import is_being_fetched
from .ingest.raw_files import FOLDER as RAW_FOLDER

Kind = Literal["unfinished", "replaced", "lock", "part", "raw", "empty"]
_BESIDE = re.compile(r"\.(?P<name>.+)\.(?P<kind>writing|old|lock(?:\.\w+)?)")
_PART = re.compile(r".+\.part(?:\.json(?:\.tmp)?|\.lock)?")


@dataclass(frozen=True)
class Leftover:
    """A file or folder that may be removed: the id of its dataset (or ""), its kind, its path, its bytes on disk."""

    id: str
    kind: Kind
    path: Path
    bytes: int


def find_leftovers(root: str | os.PathLike[str] | None = None, *, raw: bool = False) -> list[Leftover]:
    """All left-overs under a root, sorted by path; with ``raw`` also the kept raw files."""
    top = settings.root(root)
    found = list(_walk(top)) if top.is_dir() else []
    raw_folder = top / RAW_FOLDER
    if raw_folder.is_dir():
        parts = [path for path in files_below(raw_folder) if path.is_file() and _PART.fullmatch(path.name)]
        busy = [path for path in parts if is_being_fetched(path)]
        if raw and not busy:
            found.append(Leftover("", "raw", raw_folder, disk_use(raw_folder)))
        else:
            found += [Leftover("", "part", path, disk_use(path)) for path in parts if path not in busy]
    return sorted(found, key=lambda one: one.path)


def leftovers_of(place: DatasetPlace) -> list[Leftover]:
    """The left-overs of one dataset, without unfinished work, which can be continued."""
    try:
        names = [path.name for path in place.path.parent.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    beside = _beside(place.root, place.path.parent, names)
    return [one for one in beside if one.id == place.id and one.kind != "unfinished"]


def remove_leftovers(leftovers: Iterable[Leftover], root: str | os.PathLike[str] | None = None) -> list[Leftover]:
    """Remove left-overs, holding the lock of their dataset; returns those that were kept because a process now uses them.

    If a process was killed while it replaced a dataset, the replacement is completed first, so that the only copy of a dataset
    is never removed.
    """
    top = settings.root(root)
    by_id: dict[str, list[Leftover]] = {}
    for one in leftovers:
        by_id.setdefault(one.id, []).append(one)
    busy: list[Leftover] = []
    for dataset_id, some in by_id.items():
        if not dataset_id:
            for one in some:
                remove_empty(one.path, top) if one.kind == "empty" else _remove(one.path)
            continue
        place = DatasetPlace(top, dataset_id)
        try:
            with place.lock():
                place.recover()
                for one in some:
                    if one.kind == "unfinished":
                        place.discard_working()
                    elif one.kind != "lock" or one.path.name != f".{place.path.name}.lock":
                        _remove(one.path)
        except DatasetBusyError:
            busy += some
        place.prune_parents()
    return busy


def kept_raw(place: DatasetPlace) -> list[Path]:
    """The raw files of a dataset that ``download --keep-raw`` kept under its root.

    If some are missing, all files in a folder with the name of the dataset.
    """
    from .fetch import open_location
    from .ingest.records import ConvertOptions

    source_name, _, name = place.id.partition("/")
    raw_folder = place.root / RAW_FOLDER / source_name
    if not raw_folder.is_dir():
        return []
    try:
        job = catalogue.load_source(source_name).open(name, open_location(raw_folder), ConvertOptions())
        paths = [Path(raw.item.url) for raw in job.raw_objects()]
    except RbdataError:  # some are missing: a download or a deletion was interrupted
        below = {path: path.relative_to(raw_folder).as_posix() for path in files_below(raw_folder)}
        return [path for path, relative in below.items() if f"/{name}/" in f"/{relative}"]
    return [path for path in paths if raw_folder in path.parents and path.is_file()]


def _walk(top: Path) -> Iterator[Leftover]:
    for folder, names, files in os.walk(top):
        here = Path(folder)
        if here != top:
            yield from _beside(top, here, [*names, *files])
            if not names and not files:
                yield Leftover("", "empty", here, 0)
        names[:] = [name for name in names if not name.startswith(".")]
        if FILENAME in files:
            names.clear()


def _beside(top: Path, here: Path, names: Iterable[str]) -> Iterator[Leftover]:
    """The left-overs of datasets in a folder, unless a process holds their lock."""
    for name in sorted(names):
        match = _BESIDE.fullmatch(name)
        if match is None:
            continue
        dataset_id = (here.relative_to(top) / match["name"]).as_posix()
        try:
            place = DatasetPlace(top, dataset_id)
        except RbdataError:
            continue  # not a name that rbdata creates
        path = here / name
        kind: Kind = {"writing": "unfinished", "old": "replaced"}.get(match["kind"], "lock")  # type: ignore[assignment]
        finished = kind == "unfinished" and (path / FILENAME).is_file() and not (path / RUN).exists()
        only_copy = kind == "replaced" and not os.path.lexists(place.path) and (path / FILENAME).is_file()
        if not (finished or only_copy or place.lock().is_held()):
            yield Leftover(dataset_id, kind, path, disk_use(path))


def _remove(path: Path) -> None:
    if path.is_dir() or path.is_symlink():
        remove_tree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
