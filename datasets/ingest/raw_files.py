"""Raw files that lie whole on a disk: fetched over several connections, checked, kept for the next run, and read.

``--keep-raw`` stores the raw objects below the root in the provider's own layout. That is a mirror: ``--mirror
<root>/.raw/<source>`` reads it.

A run keeps whole files in its working folder. The next run uses those that are what their place states. Fetches in progress
(``*.part``) are left to `fetch.reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from ...errors import ChecksumError, CorruptSourceError
from ...storage.checksums import crc32c, hash_file
from ...storage.folder import RAW, DatasetPlace, check_space
from ...storage.threads import call_in_threads
from ...storage.work import Work
from ..fetch import RemoteObject, Verifier, fetch_to_file
from ..fetch.reading import bytes_there, discard_part
from ..workers import open_local
from ..workers.task import call, memory_for, usual_procs
from .estimate import estimate_fetch
from .reader import Reader
from .records import RawObject
from .request import Listener

FOLDER = ".raw"
CONNECTIONS = 4


def fetch_all(
    folder: Path,
    objects: Sequence[RawObject],
    on_bytes: Callable[[str, int, int], None],
) -> None:
    """Store objects by their paths in a folder: over several connections, resumable across processes, checked.

    Valid files that exist are not fetched again; incomplete ones are continued. ``on_bytes`` receives a name, the bytes
    stored by this call and those that it is likely to fetch.
    """
    missing = [raw for raw in objects if not is_sound(folder / raw.path, raw.item)]
    for raw in objects:
        if raw not in missing:
            discard_part(folder / raw.path)
    begun = sum(bytes_there(folder / raw.path) for raw in missing if not (folder / raw.path).is_file())
    total = max(0, sum(raw.item.size or 0 for raw in missing) - begun)
    check_space(folder, total, "the raw data")
    stored, lock = 0, Lock()

    def fetch(raw: RawObject, go_on: Callable[[], None]) -> None:
        def count(length: int) -> None:
            nonlocal stored
            go_on()
            with lock:
                stored += length
            on_bytes(raw.item.name, stored, max(stored, total))  # more where what was there could not be kept

        target = folder / raw.path
        target.parent.mkdir(parents=True, exist_ok=True)
        fetch_to_file(raw.location, raw.item, target, on_bytes=count)

    call_in_threads(fetch, missing, CONNECTIONS, "rbdata-raw")


def is_sound(path: Path, item: RemoteObject) -> bool:
    """Whether a file holds an object: its size and checksum are what the provider states."""
    if not path.is_file() or (item.size is None and not item.checksums):
        return False
    try:
        hash_file(path, Verifier(item)).finish()
    except ChecksumError:
        return False
    return True


# -- the whole files of a reader ---------------------------------------------------------------------------------------


def remote_files(reader: Reader) -> list[RemoteObject]:
    """The files that are fetched whole; others are opened where they are."""
    return [item for item in reader.files() if not item.url.startswith("/")]


def local_path(item: RemoteObject, folder: Path) -> Path:
    """Where a whole file is read: in place, or in a folder, with a name of its own there."""
    return Path(item.url) if item.url.startswith("/") else folder / f"{crc32c(item.url.encode())}-{item.name}"


def paths_of(reader: Reader, folder: Path) -> dict[str, Path]:
    """The paths of the whole files by url: in place, or in the working folder."""
    return {item.url: local_path(item, folder / RAW) for item in reader.files()}


def bytes_left(reader: Reader, folder: Path | None) -> int:
    """Bytes still to be fetched into a working folder that an interrupted run may have begun to fill."""
    remote = [(item.size or 0, item) for item in remote_files(reader)]
    kept = sum(min(size, bytes_there(local_path(item, folder / RAW))) for size, item in remote) if folder else 0
    return sum(size for size, _ in remote) - kept


def fetch_whole(reader: Reader, place: DatasetPlace, work: Work, listener: Listener) -> dict[str, Path]:
    """Have the whole files of a reader on this machine; returns `paths_of`."""
    folder = work.folder / RAW
    if remote := remote_files(reader):
        listener.on_estimate(estimate_fetch(reader, place, bytes_left(reader, work.folder)))
        listener.on_stage("fetching the raw files")
        raw = [RawObject(local_path(item, folder).name, item, reader.location) for item in remote]
        fetch_all(folder, raw, listener.on_fetched)
    return paths_of(reader, work.folder)


# -- looking -----------------------------------------------------------------------------------------------------------


def hdf5_names(path: Path) -> dict[str, str]:
    """What an HDF5 file holds, as `formats.hdf5.head_names` has it; empty for other files."""
    try:
        memory = memory_for(path.stat().st_size)
        with open_local(usual_procs(1), ["h5py"], memory=memory) as engine:
            names: dict[str, str] = call(engine, path.name, _head_names, path)
            return names
    except (CorruptSourceError, OSError):
        return {}


def _head_names(path: Path) -> dict[str, str]:
    from ..formats.hdf5 import head_names  # imports numpy, which listings do not need

    return head_names(path)
