"""Raw files that lie whole on a disk: fetched over several connections, checked, kept for the next run, and read.

``--keep-raw`` stores the raw objects below the root in the provider's own layout. That is a mirror: ``--mirror
<root>/.raw/<source>`` reads it.

A run keeps whole files, and folders that were decoded from raw files, in its working folder. The journal has the checksum of
each file. The next run compares them before it uses them: what changed, or was never recorded, is removed and made again.
Fetches in progress (``*.part``) are left to `fetch.reading`.

`RawReading` is where a job reads them: in a worker process if C libraries do it, else in this process. `WholeFileJob` is a job
with one such file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from ...errors import ChecksumError, CorruptSourceError
from ...storage.checksums import Crc32c, hash_file
from ...storage.folder import RAW, check_space, remove_tree
from ..fetch import RemoteObject, Verifier, fetch_to_file
from ..fetch.reading import bytes_there, discard_part
from ..workers.local_engine import LocalEngine, call, memory_for, usual_procs
from .job import Job, Plan, RawObject

if TYPE_CHECKING:
    from ...storage.work import Work
    from ...storage.writer import ColumnWriter, DatasetWriter
    from .row_source import SampleRows

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

    Valid files that exist are not fetched again; incomplete ones are continued. ``on_bytes`` receives a name, the bytes
    stored by this call and those that it has to fetch; ``on_stored`` is called in this thread when a file is complete, with
    the size and checksum that were found.
    """
    missing = [raw for raw in objects if not is_sound(folder / raw.path, raw.item)]
    for raw in objects:
        if raw not in missing:
            discard_part(folder / raw.path)
    #: The existing bytes of unfinished files; the rest is fetched.
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
            """Earlier bytes that cannot be kept count as bytes to fetch."""
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


def is_sound(path: Path, item: RemoteObject) -> bool:
    """Whether a file holds an object: its size and checksum are what the provider states."""
    if not path.is_file() or (item.size is None and not item.checksums):
        return False
    try:
        hash_file(path, Verifier(item)).finish()
    except ChecksumError:
        return False
    return True


# -- what a run keeps for the next one ---------------------------------------------------------------------------------

_KIND = "kept"


def remember_complete(writer: DatasetWriter | Work) -> None:
    """Record the files that are complete and not recorded yet."""
    known = writer.remembered(_KIND)
    for path in _complete(writer.folder / RAW):
        if path.name not in known:
            writer.remember(
                _KIND, {"files": {name: _size_and_checksum(path / name) for name in _files_of(path)}}, path.name
            )


def remember_fetched(writer: DatasetWriter | Work, path: Path, found: RemoteObject) -> None:
    """Record a file that was just fetched, with the size and checksum of the received bytes."""
    summed = found.checksums.get("crc32c")  # others are summed again: the provider states another algorithm
    writer.remember(_KIND, {"files": {".": [found.size, summed] if summed else _size_and_checksum(path)}}, path.name)


def drop_changed(writer: DatasetWriter | Work) -> None:
    """Remove files that differ from what was recorded."""
    known = writer.remembered(_KIND)
    for path in list(_complete(writer.folder / RAW)):
        if not _is_as_recorded(path, known.get(path.name, {}).get("files"), writer):
            remove_tree(path)
    for name in known:
        if not (isinstance(name, str) and (writer.folder / RAW / name).exists()):
            writer.forget(_KIND, name)


def _is_as_recorded(path: Path, files: Any, writer: DatasetWriter | Work) -> bool:
    if not isinstance(files, dict) or not set(_files_of(path)) <= set(files):
        return False
    for name, found in files.items():
        if not (path / name).is_file() and not _is_part(path / name, found, writer):
            return False
        if (path / name).is_file() and _size_and_checksum(path / name) != found:
            return False
    return True


def _is_part(path: Path, found: list[Any], writer: DatasetWriter | Work) -> bool:
    """Whether a file was renamed to the file of a part. If no record says so, it is moved back."""
    for record in writer.parts_done().values():
        for leaf in record["leaves"].values():
            if [[piece["length"], piece["crc32c"]] for piece in leaf.get("pieces", ())] == [found]:
                return True
    from ...storage.parts import PARTS

    for part in (writer.folder / PARTS).glob("*.blob"):
        if part.stat().st_size == found[0] and _size_and_checksum(part) == found:
            part.replace(path)
            return True
    return False


def _complete(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if ".part" not in path.suffixes)


def _files_of(path: Path) -> list[str]:
    """The files of a folder, relative to it; "." for a file."""
    files = [one.relative_to(path).as_posix() for one in sorted(path.rglob("*")) if one.is_file()]
    return files if path.is_dir() else ["."]


def _size_and_checksum(path: Path) -> list[Any]:
    return list(hash_file(path, Crc32c()).range)


# -- reading -----------------------------------------------------------------------------------------------------------

Ranges = dict[str, list[list[object]]]


class RawReading:
    """The steps of one job that read its whole files, given by url: in a worker process if C libraries do it.

    A worker works on a copy of the job; what a step sets in it is set in the job as well. ``engine`` is where these libraries
    read the files; without them it is this process. Every step raises what the job raises, and CorruptSourceError if its
    worker crashes or takes too much memory.
    """

    def __init__(self, job: Job, paths: Mapping[str, Path], procs: int) -> None:
        self._job, self._paths, self._made_with = job, paths, frozenset(vars(job))
        size = 0
        for path in paths.values():
            with suppress(OSError):  # its reader says so
                size += path.stat().st_size
        self.label = next(iter(paths)) if len(paths) == 1 else f"one of the {len(paths)} files at {job.location.url}"
        modules = [type(job).__module__, *job.native_libraries]
        self.engine = LocalEngine(procs if job.native_libraries else 0, modules, memory=memory_for(size))

    def __enter__(self) -> RawReading:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def inspect(self) -> None:
        """`Job.inspect_files`."""
        self._call(_inspect, self._paths)

    def plan(
        self, open_columns: Callable[[], ColumnWriter], on_planned: Callable[[int, int], None]
    ) -> tuple[Plan, Ranges]:
        """`Job.plan` into columns that are opened where the files are read; returns what closing them returns."""
        result: tuple[Plan, Ranges] = self._call(_plan, self._paths, open_columns, on_progress=on_planned)
        return result

    def sample_rows(self) -> SampleRows:
        """`Job.sample_rows`."""
        result: SampleRows = self._call(_sample_rows)
        return result

    def _call(self, step: Callable[..., Any], *args: Any, **how: Any) -> Any:
        work = partial(_with_state, step, self._job, self._made_with)
        result, state = call(self.engine, self.label, work, *args, **how)
        vars(self._job).update(state)
        return result


def _with_state(
    step: Callable[..., Any], job: Job, made_with: Collection[str], *args: Any
) -> tuple[Any, dict[str, Any]]:
    """What a step returns, and the attributes that it, or an earlier step, has set in the job."""
    before = dict(vars(job))
    result = step(job, *args)
    state = {name: value for name, value in vars(job).items() if name not in made_with or before[name] is not value}
    return result, state


def _inspect(job: Job, paths: Mapping[str, Path], _: Any) -> None:
    job.inspect_files(paths)


def _plan(
    job: Job,
    paths: Mapping[str, Path],
    open_columns: Callable[[], ColumnWriter],
    on_planned: Callable[[int, int], None],
) -> tuple[Plan, Ranges]:
    columns = open_columns()
    try:
        plan = job.plan(columns, paths, on_planned)
        return plan, columns.close()
    finally:
        columns.abandon()


def _sample_rows(job: Job, _: Any) -> SampleRows | None:
    return job.sample_rows()


def hdf5_names(path: Path) -> dict[str, str]:
    """What an HDF5 file holds, as `formats.hdf5.head_names` has it; empty for other files."""
    try:
        memory = memory_for(path.stat().st_size)
        with closing(LocalEngine(usual_procs(1), ["h5py"], memory=memory)) as engine:
            names: dict[str, str] = call(engine, path.name, _head_names, path)
            return names
    except (CorruptSourceError, OSError):
        return {}


def _head_names(path: Path, _: Any) -> dict[str, str]:
    from ..formats.hdf5 import head_names  # imports numpy, which listings do not need

    return head_names(path)
