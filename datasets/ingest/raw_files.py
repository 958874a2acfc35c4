"""Raw files that lie whole on a disk: fetched over several connections, checked, kept for the next run, and read.

``--keep-raw`` stores the raw objects below the root in the provider's own layout. That is a mirror: ``--mirror
<root>/.raw/<source>`` reads it.

A run keeps whole files, and folders that were decoded from raw files, in its working folder. The journal has the checksum of
each file. The next run compares them before it uses them: what changed, or was never recorded, is removed and made again.
Fetches in progress (``*.part``) are left to `fetch.reading`.

`RawReading` is where a job reads them: in a sandbox if native libraries do it, else in this process. `WholeFileJob` is a job
with one such file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from ...errors import ChecksumError, CorruptSourceError
from ...storage.checksums import Crc32c, hash_file
from ...storage.folder import RAW, check_space, remove_tree
from ..fetch import Location, RemoteObject, Verifier, fetch_to_file, resolve
from ..fetch.reading import bytes_there, discard_part
from ..workers.sandbox import RawFiles, Sandbox
from ..workers.task import OnBlock, Task
from .job import ConvertOptions, Job, Plan, RawObject

if TYPE_CHECKING:
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


def remember_complete(writer: DatasetWriter) -> None:
    """Record the files that are complete and not recorded yet."""
    known = writer.remembered(_KIND)
    for path in _complete(writer.folder / RAW):
        if path.name not in known:
            writer.remember(
                _KIND, {"files": {name: _size_and_checksum(path / name) for name in _files_of(path)}}, path.name
            )


def remember_fetched(writer: DatasetWriter, path: Path, found: RemoteObject) -> None:
    """Record a file that was just fetched, with the size and checksum of the received bytes."""
    summed = found.checksums.get("crc32c")  # others are summed again: the provider states another algorithm
    writer.remember(_KIND, {"files": {".": [found.size, summed] if summed else _size_and_checksum(path)}}, path.name)


def drop_changed(writer: DatasetWriter) -> None:
    """Remove files that differ from what was recorded."""
    known = writer.remembered(_KIND)
    for path in list(_complete(writer.folder / RAW)):
        if not _is_as_recorded(path, known.get(path.name, {}).get("files"), writer):
            remove_tree(path)
    for name in known:
        if not (isinstance(name, str) and (writer.folder / RAW / name).exists()):
            writer.forget(_KIND, name)


def _is_as_recorded(path: Path, files: Any, writer: DatasetWriter) -> bool:
    if not isinstance(files, dict) or not set(_files_of(path)) <= set(files):
        return False
    for name, found in files.items():
        if not (path / name).is_file() and not _is_part(path / name, found, writer):
            return False
        if (path / name).is_file() and _size_and_checksum(path / name) != found:
            return False
    return True


def _is_part(path: Path, found: list[Any], writer: DatasetWriter) -> bool:
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
    """The steps of one job that read its whole files, given by url.

    A sandbox works on a copy of the job; what a step sets in it is set in the job as well. ``files`` is None where there is
    none. Every step raises what the job raises, and CorruptSourceError where the sandbox ends.
    """

    def __init__(self, job: Job, paths: Mapping[str, Path]) -> None:
        self._job, self._steps = job, _Steps(job, paths)
        self.files = _raw_files(job, paths) if job.native_libraries else None
        modules = [type(job).__module__, *job.native_libraries]
        self._sandbox = Sandbox(self._steps, self.files, modules) if self.files else None

    def __enter__(self) -> RawReading:
        return self

    def __exit__(self, *_: object) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    def inspect(self) -> None:
        """`Job.inspect_files`."""
        vars(self._job).update(self._call(_Steps.inspect))

    def plan(
        self, open_columns: Callable[[], ColumnWriter], on_planned: Callable[[int, int], None]
    ) -> tuple[Plan, Ranges]:
        """`Job.plan` into columns that are opened in this process or in the sandbox; returns what closing them returns."""
        plan, ranges, state = self._call(_Steps.plan, open_columns, on_progress=on_planned)
        vars(self._job).update(state)
        return plan, ranges

    def sample_rows(self) -> SampleRows:
        """`Job.sample_rows`."""
        found: SampleRows = self._call(_Steps.sample_rows)
        return found

    def fill(self, task: Task, on_block: OnBlock) -> dict[str, Any]:
        """Do the task of a part."""
        record: dict[str, Any] = self._call(_Steps.fill, task, on_progress=on_block)
        return record

    def _call(
        self, function: Callable[..., Any], *args: Any, on_progress: Callable[..., None] = lambda *_: None
    ) -> Any:
        if self._sandbox is None:
            return function(self._steps, on_progress, *args)
        return self._sandbox.call(function, *args, on_progress=on_progress)


class _Steps:
    """The steps, done here or in a sandbox, where the job is a copy: `inspect` and `plan` return what they set in it."""

    def __init__(self, job: Job, paths: Mapping[str, Path]) -> None:
        self._job, self._paths, self._made_with = job, paths, dict(vars(job))

    def _state(self) -> dict[str, Any]:
        """The attributes of the job, except those that it was created with."""
        return {name: value for name, value in vars(self._job).items() if self._made_with.get(name) is not value}

    def inspect(self, _: Any) -> dict[str, Any]:
        self._job.inspect_files(self._paths)
        return self._state()

    def plan(
        self, on_planned: Callable[[int, int], None], open_columns: Callable[[], ColumnWriter]
    ) -> tuple[Plan, Ranges, dict[str, Any]]:
        columns = open_columns()
        try:
            plan = self._job.plan(columns, self._paths, on_planned)
            return plan, columns.close(), self._state()
        finally:
            columns.abandon()

    def sample_rows(self, _: Any) -> SampleRows:
        return self._job.sample_rows()

    def fill(self, on_block: OnBlock, task: Task) -> dict[str, Any]:
        return task(on_block)


def _raw_files(job: Job, paths: Mapping[str, Path]) -> RawFiles:
    size = 0
    for path in paths.values():
        with suppress(OSError):  # its reader says so
            size += path.stat().st_size
    name = next(iter(paths)) if len(paths) == 1 else f"one of the {len(paths)} files at {job.location.url}"
    return RawFiles(name, size)


def hdf5_names(path: Path) -> dict[str, str]:
    """What an HDF5 file holds, as `formats.hdf5.head_names` has it; empty for other files."""
    try:
        with Sandbox(path, RawFiles(path.name, path.stat().st_size), ["h5py"]) as sandbox:
            names: dict[str, str] = sandbox.call(_head_names)
            return names
    except (CorruptSourceError, OSError):
        return {}


def _head_names(path: Path, _: Any) -> dict[str, str]:
    from ..formats.hdf5 import head_names  # imports numpy, which listings do not need

    return head_names(path)


# -- jobs with one raw file ----------------------------------------------------------------------------------------------

ACCEPT = "if it was replaced on purpose, take it with --accept-changed"


class WholeFileJob(Job):
    """A job with one raw file, which is fetched whole, checked and read in place.

    ``item`` is the object, ``path`` the file, known from `inspect` on, ``sha256`` its checksum, which `plan` or `inspect` sets
    (`hash_whole`). A dataset that is replaced must be made from a file of the same checksum, unless the source has the option
    ``accept_changed`` and it is given: not every place states what its files must hold.
    """

    path: Path
    sha256: str
    _recorded: str | None = None

    def __init__(self, name: str | None, location: Location, item: RemoteObject, options: ConvertOptions) -> None:
        super().__init__(name, location, options)
        self.item = resolve(location, [item])[0]
        self.accept_changed: bool = options.extra.get("accept_changed", False)

    def files(self) -> list[RemoteObject]:
        return [self.item]

    def inspect_files(self, files: Mapping[str, Path]) -> None:
        self.path = files[self.item.url]
        self.inspect()

    def inspect(self) -> None:
        """Read the head of the file at ``path``, and set the columns. Raises as `inspect_files`."""
        raise NotImplementedError

    def hash_whole(self) -> None:
        """Set ``sha256``. Raises ChecksumError for a file that is not the one that the dataset to be replaced was made from."""
        self.sha256 = hash_file(self.path, hashlib.sha256(usedforsecurity=False)).hexdigest()
        self.check_recorded()

    def set_previous_objects(self, objects: Sequence[Mapping[str, Any]]) -> None:
        same = [entry.get("sha256") for entry in objects if entry.get("name") == self.item.name]
        self._recorded = next((str(sha256) for sha256 in same if sha256), None)

    def check_recorded(self) -> None:
        """Raise ChecksumError where ``sha256`` is not that of the file that the dataset to be replaced was made from."""
        if self._recorded in (None, self.sha256) or self.accept_changed:
            return
        message = (
            f"{self.item.url} is not the file this dataset was made from before: its sha256 is {self.sha256}, "
            f"not {self._recorded}"
        )
        raise ChecksumError(message, hint=ACCEPT)

    def objects(self) -> list[dict[str, Any]]:
        return [{"name": self.item.name, "size": self.path.stat().st_size, "sha256": self.sha256}]

    def raw_objects(self) -> list[RawObject]:
        """The file, with its name at the top of a mirror."""
        return [RawObject(self.item.name, self.item, self.location)]
