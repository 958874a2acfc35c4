"""``--keep-raw``: the raw objects themselves, stored below the root in the provider's own layout.

What is stored this way is a mirror: ``--mirror <root>/.raw/<source>`` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from threading import Event, Lock

from ...errors import ChecksumError
from ...storage.folder import check_space
from ..fetch import RemoteObject, Verifier, fetch_to_file
from ..fetch.to_file import bytes_there, discard_part
from .protocol import RawObject
from .whole_file import hash_file

FOLDER = ".raw"
CONNECTIONS = 4
#: How long a failure waits for the other connections to end; one that is silent has its own time-out.
ENDING_SECONDS = 5.0


def fetch_all(
    folder: Path,
    objects: Sequence[RawObject],
    on_bytes: Callable[[str, int, int], None],
    on_stored: Callable[[Path, RemoteObject], None] = lambda path, found: None,
) -> None:
    """Store objects by their paths in a folder: over several connections, resumable across processes, checked.

    What is there already and sound is not fetched again; what was begun is continued. ``on_bytes`` receives a name, the bytes
    stored by this call and those that it has to fetch; ``on_stored`` is called in this thread when a file is complete, with
    the size and checksum that were found.
    """
    missing = [raw for raw in objects if not _is_sound(folder / raw.path, raw.item)]
    for raw in objects:
        if raw not in missing:
            discard_part(folder / raw.path)
    #: What is there already of files that were begun; the rest is to be fetched.
    begun = {raw.path: 0 if (folder / raw.path).is_file() else bytes_there(folder / raw.path) for raw in missing}
    total = sum(max(0, (raw.item.size or 0) - begun[raw.path]) for raw in missing)
    check_space(folder, total, "the raw data")
    stored, lock, stop = 0, Lock(), Event()

    def fetch(raw: RawObject) -> tuple[Path, RemoteObject]:
        if stop.is_set():
            raise InterruptedError  # another object has failed
        target = folder / raw.path
        target.parent.mkdir(parents=True, exist_ok=True)
        expected = min(begun[raw.path], raw.item.size or 0)

        def resume(kept: int) -> None:
            """Bytes that were begun and are of no use are fetched as well."""
            nonlocal total, expected
            with lock:
                total, expected = total + max(0, expected - kept), 0

        def count(length: int) -> None:
            nonlocal stored
            if stop.is_set():
                raise InterruptedError
            if expected:
                resume(0)
            with lock:
                stored += length
            on_bytes(raw.item.name, stored, total)

        return target, fetch_to_file(raw.location, raw.item, target, on_bytes=count, on_resume=resume)

    pool = ThreadPoolExecutor(CONNECTIONS, "rbdata-raw")
    fetches = [pool.submit(fetch, raw) for raw in missing]
    try:
        for one in as_completed(fetches):
            on_stored(*one.result())
    except BaseException as error:
        # The others end with their next bytes; what they hold is free for the next try of this process.
        stop.set()
        if isinstance(error, Exception):
            wait(fetches, ENDING_SECONDS)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _is_sound(path: Path, item: RemoteObject) -> bool:
    """Whether a file holds an object: its size and checksum are what the provider states."""
    if not path.is_file() or (item.size is None and not item.checksums):
        return False
    try:
        hash_file(path, Verifier(item)).finish()
    except ChecksumError:
        return False
    return True
