"""Repairs a damaged dataset: it has the same bytes as before, and intact data are not fetched.

From a converted copy on a mirror, only the damaged blocks of files are fetched and written in place. From raw data, the dataset
is made again beside the damaged one: intact parts are copied, the others fetched, and the result replaces it if its files match
the manifest. Recordings and preprocessed datasets were made on this machine: they can be fetched only from a mirror that they
were pushed to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import settings
from ..errors import (
    DamagedDatasetError,
    FetchError,
    ForbiddenError,
    ObjectNotFoundError,
    RbdataError,
    TransientFetchError,
)
from ..storage.amounts import listed
from ..storage.checksums import cut_file, write_table
from ..storage.folder import DatasetPlace
from ..storage.integrity import BlockChecksums, read_block_checksums
from ..storage.manifest import BLOCK_TABLE, Manifest, Problem, check_sizes, read_manifest
from . import catalogue
from .cleanup import leftovers_of, remove_leftovers
from .copies import Copy, fetch_blocks, find_converted
from .fetch import FetchOptions, open_location, open_raw
from .ingest.pipeline import restore
from .ingest.reader import Reader
from .ingest.records import ConvertOptions
from .ingest.request import Listener, Outcome, Request
from .published import open_raw_objects
from .sources.source import Source


@dataclass(frozen=True)
class Repaired:
    """The result of a repair: the repaired files, where they were fetched from, and about how many bytes were fetched."""

    path: Path
    files: tuple[str, ...]
    location: str
    fetched_bytes: int


def repair(
    folder: Path,
    problems: Sequence[Problem],
    *,
    mirror: str | None = None,
    procs: int | None = None,
    fetch: FetchOptions | None = None,
    listener: Listener | None = None,
) -> Repaired:
    """Repair a dataset with these problems (`integrity.verify`).

    Fetches from ``mirror``, else from the location that the manifest states. Raises DamagedDatasetError if the data cannot be
    fetched again or have changed, the fetch errors, and DatasetBusyError; the dataset is then as damaged as before.
    """
    folder, fetch, listener = folder.resolve(), fetch or FetchOptions(), listener or Listener()
    manifest = read_manifest(folder)
    place = DatasetPlace.of_folder(folder, manifest.id)
    if manifest.blocks and all(problem.path == BLOCK_TABLE for problem in problems):
        listener.on_stage("summing the blocks of files")
        with place.lock():
            _write_table(folder, manifest)
        return Repaired(folder, (BLOCK_TABLE,), str(folder), 0)
    files = tuple(dict.fromkeys(problem.path for problem in problems))
    places = (mirror, manifest.provenance.get("mirror"), settings.mirror(manifest.id.partition("/")[0]))
    for url in dict.fromkeys(filter(None, places)):
        try:
            copy = find_converted(url, manifest.id, fetch)
        except FetchError:
            if url == mirror:  # the user named it
                raise
            continue
        if copy is not None and copy.manifest.content == manifest.content:
            listener.on_stage(f"copying from {copy.url}")
            with place.lock():
                fetched = _mend(folder, manifest, problems, copy)
            return Repaired(folder, files, copy.url, fetched)
    reader, url = _open_reader(manifest, mirror, fetch)
    fetched = restore(reader, place, Request(manifest.id, root=place.root, procs=procs), listener, url).fetch_bytes
    return Repaired(folder, files, url, fetched)


def keep(place: DatasetPlace, request: Request, manifest: Manifest, mirror: str | None, listener: Listener) -> Outcome:
    """Keep a dataset that matches the request; files that are missing or cut short are restored."""
    damaged = check_sizes(place.path, manifest)
    if not damaged:
        if not request.dry_run:
            with suppress(OSError):  # the root cannot be written
                remove_leftovers(leftovers_of(place), place.root)
        return Outcome(place.id, place.path, "complete", manifest)
    began = time.monotonic()
    listener.on_note(f"repairing {place.id}: {listed((f'{one.path} {one.what}' for one in damaged), 1)}")
    repair(place.path, damaged, mirror=mirror, procs=request.procs, fetch=request.fetch, listener=listener)
    return Outcome(place.id, place.path, "repaired", manifest, time.monotonic() - began)


def end_repair(folder: Path) -> None:
    """Remove the left-overs of a repair that was killed after the dataset was repaired."""
    folder = folder.resolve()
    place = DatasetPlace.of_folder(folder, read_manifest(folder).id)
    remove_leftovers(leftovers_of(place), place.root)


# -- from a converted copy -----------------------------------------------------------------------------------------------


def _mend(folder: Path, manifest: Manifest, problems: Sequence[Problem], copy: Copy) -> int:
    """Fetch the damaged blocks; where the table of blocks is damaged too, the damaged ranges. Returns the bytes fetched."""
    is_table = any(problem.path == BLOCK_TABLE for problem in problems)
    checksums = BlockChecksums(manifest, None) if is_table else read_block_checksums(folder, manifest)
    fetched = 0
    for problem in problems:
        if problem.path != BLOCK_TABLE:
            end = manifest.size_of(problem.path) if problem.length is None else problem.begin + problem.length
            blocks = checksums.covering(problem.path, problem.begin, end)
            fetched += fetch_blocks(copy, problem.path, copy.stat(problem.path), folder, blocks)
    if is_table:
        _write_table(folder, manifest)
    return fetched


def _write_table(folder: Path, manifest: Manifest) -> None:
    """Make the table of blocks again, from files that are sound."""
    files = manifest.blocks["files"] if manifest.blocks else ()
    lengths = {path: [length for length, _ in manifest.files[path]] for path in files}
    write_table(folder / BLOCK_TABLE, {path: cut_file(folder / path, some) for path, some in lengths.items()})


# -- from raw data -------------------------------------------------------------------------------------------------------


def _open_reader(manifest: Manifest, mirror: str | None, fetch: FetchOptions) -> tuple[Reader, str]:
    """The reader that made a dataset, and the location of its raw data. Raises DamagedDatasetError if there are none."""
    source = None
    with suppress(RbdataError):  # none is stated, or it is not installed
        source = catalogue.load_source(manifest.source.get("name", ""))
    made = _made_here(manifest, source)
    if source is None or made:
        message = f"{manifest.id} was {made}: it cannot be fetched again"
        raise DamagedDatasetError(message, hint="make it again with --force, or name a mirror that holds a copy")
    options, name = _options(manifest, source), manifest.id.partition("/")[2]
    own = manifest.id.startswith(source.name + "/") and source.knows(name)
    published = source.places(name, options) if own else ()
    places = [mirror] if mirror else [manifest.provenance.get("location"), *published]
    failure: FetchError | None = None
    closed: FetchError | None = None
    for url in dict.fromkeys(filter(None, places)):
        try:
            if own:
                return open_raw_objects(source, name, url, options, fetch), url
            if "://" not in url and not Path(url).exists():
                raise ObjectNotFoundError(f"no such file or folder: {url}")
            is_file = Path(url).is_file()
            location = open_raw(Path(url), fetch) if is_file else open_location(url, options=fetch)
            return source.open_folder(location, options), url
        except ObjectNotFoundError as error:
            failure = failure or error
        except (ForbiddenError, TransientFetchError) as error:
            closed = closed or error
    if closed:
        raise closed
    message = f"the data that {manifest.id} was made from are no longer available: {failure}"
    raise DamagedDatasetError(message, hint="name a location that has them, with --mirror") from failure


def _made_here(manifest: Manifest, source: Source | None) -> str:
    """How a dataset was made whose data lie at no location; '' for one that was fetched."""
    given = manifest.source.get("made_from")
    if manifest.lineage:
        return f"made from {(manifest.lineage.get('input') or {}).get('id', 'another dataset')}"
    if source is None:
        return f"made by no known source ({manifest.source.get('name') or 'none is stated'})"
    if source.makes:
        return "recorded on this machine"
    if given in ("arrays", "episodes"):
        return f"made from {given} in memory, by {manifest.provenance.get('location', 'a program')}"
    return "appended to on this machine" if manifest.source.get("appended") else ""


def _options(manifest: Manifest, source: Source) -> ConvertOptions:
    """The options of a dataset's conversion, from its manifest."""
    recorded, shards = manifest.source.get("options", {}), manifest.source.get("shards")
    names = ["codec", "layout", "unknown_next", *(["time_limit"] if "time_limit" in source.supports else [])]
    general: dict[str, Any] = {name: recorded[name] for name in names if name in recorded}
    extra = {option.name: recorded[option.name] for option in source.options if recorded.get(option.name) is not None}
    return ConvertOptions(**general, parts=None if shards is None else tuple(shards), extra=extra)
