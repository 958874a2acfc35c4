"""Mirrors: places that hold converted datasets, raw objects, or both.

What ``push`` makes is laid out like a root, so a root is itself a mirror:

    <mirror>/atari/Pong/5/rbdata.json ...                      a converted dataset, whole
    <mirror>/.raw/atari/dqn/Pong/5/replay_logs/...             raw objects, as the provider lays them out
    <mirror>/<the provider's layout>                           the same without the two folders: a plain copy of a bucket

A converted dataset is taken as it is, and its files are compared with its manifest; raw objects are converted. The manifest is
sent last, so a mirror shows no dataset that is not whole.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from ... import settings
from ...errors import (
    DamagedDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    NotADatasetError,
    ObjectNotFoundError,
    UsageError,
)
from ...storage.manifest import FILENAME, Manifest, read_manifest
from .. import catalogue, local
from ..fetch import FetchOptions, Location, open_location, read_all
from ..fetch.location import joined
from ..fetch.upload import Deposit, LocalFile, open_deposit, put
from ..ingest.protocol import ConvertOptions
from ..ingest.raw_files import FOLDER as KEPT
from .pull import LARGEST_MANIFEST, parse_manifest, stated_manifest, wrong_bytes

CONNECTIONS = 4
#: Folders below each other that `ls` looks into.
DEEPEST = 8

OnProgress = Callable[[str, int, int], None]


# -- push ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pushed:
    """What a push did. ``sent`` of ``files`` were not there yet; bytes likewise. ``url``: where they are now."""

    id: str
    kind: Literal["dataset", "raw"]
    url: str
    files: int
    bytes: int
    sent: int
    sent_bytes: int


def push(
    dataset_id: str,
    destination: str,
    *,
    root: Path | None = None,
    raw: bool = False,
    force: bool = False,
    fetch: FetchOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Pushed:
    """Copy a converted dataset, or with ``raw`` the raw objects that were kept of it, to a mirror.

    ``destination`` is a directory, ``gs://``, or with the extra ``remote`` what fsspec can write to. Files that are there
    already are not sent again, so an interrupted push goes on; every file is verified where it arrives. ``force`` replaces
    another dataset of the same id. ``on_progress`` hears a file's name, the bytes done and the bytes in all.

    Raises DatasetNotFoundError when there is nothing to push, DamagedDatasetError when the dataset's files are not what its
    manifest says, DatasetExistsError when the mirror holds another one, UsageError for a place that cannot be written to,
    and the fetch errors.
    """
    where = settings.root(root)
    deposit = open_deposit(destination, fetch)
    if raw:
        return _push_raw(dataset_id, deposit, where, on_progress)
    folder = local.find(dataset_id, where)
    manifest = read_manifest(folder)
    base = deposit.location.url
    if _same_folder(base, folder, manifest.id):
        raise UsageError(f"{base} is where {manifest.id} lies already", hint="give another place to push to")
    _refuse_another(deposit, manifest, force)
    names = sorted(manifest.files)
    files = [(LocalFile(folder / name), f"{manifest.id}/{name}") for name in names]
    check = _against(folder, manifest)
    sent, sent_bytes = _send(deposit, files, on_progress, check=lambda entry: check(entry[1][len(manifest.id) + 1 :]))
    last = LocalFile(folder / FILENAME)
    sent_manifest = put(deposit, last, f"{manifest.id}/{FILENAME}")
    return Pushed(
        manifest.id,
        "dataset",
        f"{base}/{manifest.id}",
        len(files) + 1,
        manifest.bytes + last.size,
        sent + sent_manifest,
        sent_bytes + last.size * sent_manifest,
    )


def _push_raw(text: str, deposit: Deposit, root: Path, on_progress: OnProgress | None) -> Pushed:
    dataset_id, source = catalogue.resolve(text)
    if source is None:
        raise UsageError(f"{dataset_id} comes from no source, so it has no raw objects", hint="push it without --raw")
    kept = root / KEPT / source.name
    message = f"no raw objects of {dataset_id} are kept under {kept}"
    missing = DatasetNotFoundError(message, hint=f"keep them: rbdata download {dataset_id} --keep-raw")
    if not kept.is_dir():
        raise missing
    try:
        job = source.open(dataset_id.partition("/")[2], open_location(kept), ConvertOptions())
    except ObjectNotFoundError as error:
        raise missing from error
    folder = f"{KEPT}/{source.name}"
    paths = [Path(raw.item.url) for raw in job.raw_objects()]
    files = [(LocalFile(path), f"{folder}/{path.relative_to(kept)}") for path in paths]
    total = sum(file.size for file, _ in files)
    sent, sent_bytes = _send(deposit, files, on_progress)
    return Pushed(dataset_id, "raw", f"{deposit.location.url}/{folder}", len(files), total, sent, sent_bytes)


def _send(
    deposit: Deposit,
    files: list[tuple[LocalFile, str]],
    on_progress: OnProgress | None,
    check: Callable[[tuple[LocalFile, str]], None] | None = None,
) -> tuple[int, int]:
    """Send what is not there; returns how many files and bytes were. Several connections at once."""
    total = sum(file.size for file, _ in files)
    done, lock = 0, Lock()

    def send(entry: tuple[LocalFile, str]) -> int:
        file, path = entry
        if check is not None:
            check(entry)

        def count(length: int) -> None:
            nonlocal done
            with lock:
                done += length
            if on_progress is not None:
                on_progress(path, done, total)

        return file.size if put(deposit, file, path, count) else -1

    pool = ThreadPoolExecutor(CONNECTIONS, "rbdata-push")
    try:
        sizes = [size for size in pool.map(send, files) if size >= 0]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return len(sizes), sum(sizes)


def _against(folder: Path, manifest: Manifest) -> Callable[[str], None]:
    """Refuse to spread damage: a check of one file against the manifest."""

    def check(name: str) -> None:
        problem = wrong_bytes(folder / name, manifest.files[name])
        if problem:
            message = f"{folder / name} {problem}"
            raise DamagedDatasetError(message, hint=f"nothing more was pushed; see: rbdata verify {manifest.id}")

    return check


def _refuse_another(deposit: Deposit, manifest: Manifest, force: bool) -> None:
    """A mirror's dataset is replaced only when that is wanted; with nobody reading, and the manifest last, as always."""
    there = stated_manifest(deposit.location, manifest.id)
    if there is None or force or _content(there) == _content(manifest):
        return
    message = f"{deposit.location.url} holds another {manifest.id} already"
    raise DatasetExistsError(message, hint="replace it with --force, or push to another place")


def _content(manifest: Manifest) -> dict[str, Any]:
    """A manifest without what differs between two conversions of the same data."""
    return {key: value for key, value in manifest.to_json().items() if key not in ("provenance", "checksum")}


def _same_folder(url: str, folder: Path, dataset_id: str) -> bool:
    return url.startswith("/") and Path(url, dataset_id).resolve() == folder.resolve()


# -- ls --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One thing in a mirror: a converted ``dataset`` (by id), or a folder of ``raw`` objects (by path).

    ``files`` and ``bytes`` are None where the place does not state them (web servers); steps and episodes are those of
    datasets.
    """

    kind: Literal["dataset", "raw"]
    name: str
    files: int
    bytes: int | None
    steps: int | None = None
    episodes: int | None = None
    problem: str | None = None


def ls(destination: str, *, fetch: FetchOptions | None = None) -> list[Entry]:
    """What a mirror holds, sorted by name. Reads listings, and the manifest of each dataset; raises the fetch errors."""
    location = open_location(destination, options=fetch)
    found: list[Entry] = []
    with ThreadPoolExecutor(8, "rbdata-ls") as pool:
        level = [""]
        for _ in range(DEEPEST):
            entries = list(pool.map(lambda folder: _look(location, folder), level))
            found += [entry for entry, _ in entries if entry is not None]
            level = [below for _, folders in entries for below in folders]
            if not level:
                break
    return sorted(found, key=lambda entry: (entry.kind, entry.name))


def _look(location: Location, folder: str) -> tuple[Entry | None, list[str]]:
    """What one folder is, and the folders below it that are worth a look."""
    objects = location.list(folder)
    if any(item.name == FILENAME for item in objects):
        return _describe(location, folder), []
    # What begins with a dot belongs to unfinished work, except for the raw objects at the top.
    below = [joined(folder, name) for name in location.folders(folder) if not name.startswith(".") or name == KEPT]
    plain = [item for item in objects if not item.name.startswith(".")]
    if not plain or not folder:
        return None, below
    size = None if any(item.size is None for item in plain) else sum(item.size or 0 for item in plain)
    return Entry("raw", folder, len(plain), size), below


def _describe(location: Location, folder: str) -> Entry:
    try:
        manifest = parse_manifest(
            read_all(location, location.stat(f"{folder}/{FILENAME}"), limit_bytes=LARGEST_MANIFEST)
        )
    except (NotADatasetError, DamagedDatasetError) as error:
        return Entry("dataset", folder, 0, None, problem=str(error))
    return Entry("dataset", manifest.id, len(manifest.files), manifest.bytes, manifest.steps, manifest.episodes)
