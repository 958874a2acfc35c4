"""Repairs a damaged dataset: it has the same bytes as before, and intact data are not fetched.

From a converted copy on a mirror, only the damaged blocks of files are fetched and written in place. From raw data, the dataset
is made again beside the damaged one: intact parts are copied, the others fetched, and the result replaces it if its files match
the manifest. Recordings and preprocessed datasets were made on this machine: they can be fetched only from a mirror that they
were pushed to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import settings
from ..errors import (
    ChecksumError,
    DamagedDatasetError,
    FetchError,
    ForbiddenError,
    ObjectNotFoundError,
    RbdataError,
    TransientFetchError,
)
from ..storage.checksums import cut_file, write_table
from ..storage.folder import DatasetPlace, remove_tree
from ..storage.integrity import BlockChecksums, CheckedBlock, read_block_checksums, verify
from ..storage.manifest import BLOCK_TABLE, Manifest, Problem, read_manifest
from . import catalogue, mirrors
from .cleanup import leftovers_of, remove_leftovers
from .fetch import FetchOptions, Location, RemoteObject, open_location, open_raw
from .fetch.reading import stream
from .ingest.pipeline import restore
from .ingest.reader import Reader
from .ingest.records import ConvertOptions
from .ingest.request import Listener, Request
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
            copy = mirrors.find_converted(url, manifest.id, fetch)
        except FetchError:
            if url == mirror:  # the user named it
                raise
            continue
        if copy is not None and copy.manifest.content == manifest.content:
            listener.on_stage(f"copying from {copy.url}")
            with place.lock():
                fetched = _mend_all(folder, manifest, problems, copy)
            return Repaired(folder, files, copy.url, fetched)
    reader, url = _open_reader(manifest, mirror, fetch)
    fetched = restore(reader, place, Request(manifest.id, root=place.root, procs=procs), listener, url).fetch_bytes
    left = verify(folder, quick=True).problems
    if left:
        raise DamagedDatasetError(f"{left[0].path} {left[0].what} after the repair")
    return Repaired(folder, files, url, fetched)


def end_repair(folder: Path) -> None:
    """Remove the left-overs of a repair that was killed after the dataset was repaired."""
    folder = folder.resolve()
    place = DatasetPlace.of_folder(folder, read_manifest(folder).id)
    remove_leftovers(leftovers_of(place), place.root)


# -- from a converted copy -----------------------------------------------------------------------------------------------


def _mend_all(folder: Path, manifest: Manifest, problems: Sequence[Problem], copy: mirrors.Copy) -> int:
    """Fetch the damaged data, by ranges if the table of blocks is damaged too. Returns the bytes fetched."""
    is_table = any(problem.path == BLOCK_TABLE for problem in problems)
    checksums = BlockChecksums(manifest, None) if is_table else read_block_checksums(folder, manifest)
    others = [problem for problem in problems if problem.path != BLOCK_TABLE]
    fetched = sum(_mend(folder, manifest, checksums, problem, copy) for problem in others)
    if is_table:
        _write_table(folder, manifest)
    return fetched


def _write_table(folder: Path, manifest: Manifest) -> None:
    """Make the table of blocks again, from files that are sound."""
    files = manifest.blocks["files"] if manifest.blocks else ()
    lengths = {path: [length for length, _ in manifest.files[path]] for path in files}
    write_table(folder / BLOCK_TABLE, {path: cut_file(folder / path, some) for path, some in lengths.items()})


def _mend(folder: Path, manifest: Manifest, checksums: BlockChecksums, problem: Problem, copy: mirrors.Copy) -> int:
    """Fetch the damaged blocks of a file and write them in place; returns their bytes. Raises ChecksumError."""
    path, fetched = folder / problem.path, 0
    item = copy.stat(problem.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    size = manifest.size_of(problem.path)
    end = size if problem.length is None else problem.begin + problem.length
    if path.is_symlink() or not path.is_file():  # a link is replaced, its target is not touched
        remove_tree(path)
    with path.open("r+b" if path.exists() else "x+b") as file:
        file.truncate(size)
        for block in checksums.covering(problem.path, problem.begin, end):
            if block.is_in(folder):
                continue
            file.seek(block.begin)
            for piece in _fetch(copy.location, item, block):
                file.write(piece)
            file.flush()
            fetched += block.length
            if not block.is_in(folder):
                raise ChecksumError(f"{item.url} is damaged as well", hint="use another mirror, with --mirror")
        os.fsync(file.fileno())
    return fetched


def _fetch(location: Location, item: RemoteObject, block: CheckedBlock) -> Iterator[bytes]:
    """The bytes of a block, which without a table may be a range of gigabytes."""
    left = block.length
    with closing(stream(location, item, start=block.begin)) as pieces:
        while left and (piece := next(pieces, b"")[:left]):
            yield piece
            left -= len(piece)


# -- from raw data -------------------------------------------------------------------------------------------------------


def _open_reader(manifest: Manifest, mirror: str | None, fetch: FetchOptions) -> tuple[Reader, str]:
    """The reader that made a dataset, and the location of its raw data. Raises DamagedDatasetError if there are none."""
    made_by = manifest.source.get("name", "")
    lineage = manifest.lineage or {}
    if lineage:
        origin = (lineage.get("input") or {}).get("id", "another dataset")
        copied = [one.get("function") for one in lineage.get("functions") or ()] == ["rbdata:identity"]
        made = f"saved from steps or episodes of {origin}" if copied else f"made by preprocess from {origin}"
        again = "save it again with force=True" if copied else "run preprocess again with --force"
        message = f"{manifest.id} was {made}: it cannot be fetched again"
        raise DamagedDatasetError(message, hint=f"{again}, or name a mirror that holds a copy")
    try:
        source = catalogue.load_source(made_by)
    except RbdataError as error:
        message = f"{manifest.id} has no known source ({made_by or 'none is stated'}): it cannot be fetched again"
        raise DamagedDatasetError(message, hint="name a mirror that holds a copy, with --mirror") from error
    if source.makes:
        message = f"{manifest.id} was recorded on this machine: it cannot be fetched again"
        raise DamagedDatasetError(message, hint="record it again with --force, or name a mirror that holds a copy")
    if manifest.source.get("made_from") in ("arrays", "episodes"):
        by = manifest.provenance.get("location", "a program")
        message = f"{manifest.id} was made from {manifest.source['made_from']} in memory, by {by}: they cannot be fetched again"
        raise DamagedDatasetError(message, hint="make it again with force=True, or name a mirror that holds a copy")
    if manifest.source.get("appended"):
        message = f"{manifest.id} was appended to on this machine: not all of it can be fetched again"
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
                return mirrors.open_raw_objects(source, name, url, options, fetch), url
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


def _options(manifest: Manifest, source: Source) -> ConvertOptions:
    """The options of a dataset's conversion, from its manifest."""
    recorded, shards = manifest.source.get("options", {}), manifest.source.get("shards")
    names = ["codec", "layout", "unknown_next", *(["time_limit"] if "time_limit" in source.supports else [])]
    general: dict[str, Any] = {name: recorded[name] for name in names if name in recorded}
    extra = {option.name: recorded[option.name] for option in source.options if recorded.get(option.name) is not None}
    return ConvertOptions(**general, parts=None if shards is None else tuple(shards), extra=extra)
