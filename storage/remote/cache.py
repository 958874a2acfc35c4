"""The cache of a remote dataset: a folder that becomes the dataset, block by block.

    rbdata.json         only when everything is there: until then the folder is not a dataset
    .rbdata-blocks      4096 bytes of JSON, and a byte for each block; all processes map it
    .rbdata-session, .rbdata-claim-N    locks; these files are empty
    all other files     those of the dataset, at full length, with holes

The blocks of a dataset are numbered through its files in the order of their paths. Files of the rows of large leaves are read
in blocks (those of the table of checksums, 4 MiB each); all others are needed by nearly every batch, and are fetched whole.
Every block is compared with its checksum when it arrives.

The byte of a block is odd while the block is resident, and changes with every eviction and every arrival. So a read needs no
lock: what was copied out of a block is right if its byte was odd before, and is the same after. The bytes of a block are on the
disk before it becomes resident, and an eviction is before its bytes go: a crash of the machine loses blocks, and never makes a
hole of one. One machine uses a cache at a time.

Each block is fetched by one thread of one process, which holds a lock file for it (`_claim`); the system releases it when the
process ends. Eviction takes random blocks that no batch waits for: over several passes the least recently used block is the
one that is needed next, so that LRU would never hit.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from filelock import FileLock

from ...errors import DamagedDatasetError, DiskError, RbdataError
from ..amounts import size as amount
from ..checksums import crc32c
from ..codecs import codec_of
from ..durable import is_full, sync_folder, write_at, write_atomically
from ..folder import free_bytes
from ..integrity import BlockChecksums, CheckedBlock
from ..manifest import FILENAME, Manifest
from ..schema import LARGE_ROW

T = TypeVar("T")

#: Files of at most this many bytes are fetched whole, unless they hold the rows of a large leaf.
WHOLE = 64 << 20
#: Maximum number of concurrent requests, and of those that fetch what is planned.
CONNECTIONS, PLANNED = 16, 12
#: How often a read fetches its blocks if other processes evict them meanwhile.
ATTEMPTS = 100
#: One in this many blocks of the limit is evicted at once.
EVICTED_SHARE = 64
#: Lock files of a cache: blocks that share one are fetched one after the other.
CLAIMS = 64
BLOCKS_FILE, FORMAT, VERSION = ".rbdata-blocks", "rbdata block cache", 3
_HEADER = 4096
_ANOTHER = "choose another cache_dir, or delete the folder"


class RemoteFiles(Protocol):
    """The files of one version of a dataset, by their paths in its folder. Picklable; used by several threads."""

    @property
    def url(self) -> str:
        """The location of the dataset, without credentials."""

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Return bytes ``start..stop-1`` of a file, with retries.

        Raises ChecksumError if the file is no longer that of this version, and the other fetch errors.
        """

    def check(self) -> None:
        """Raise ChecksumError if the dataset was replaced since this version was opened."""


class BlockLayout:
    """The blocks of a dataset's files; the last one of a file may be shorter than ``block_bytes``."""

    def __init__(self, manifest: Manifest, checksums: BlockChecksums) -> None:
        self.block_bytes = size = checksums.size
        self.sizes = {path: manifest.size_of(path) for path in sorted(manifest.files)}
        large = {codec_of(leaf).path("blob") for leaf in manifest.schema if leaf.row_bytes >= LARGE_ROW}
        #: The files that are read in blocks.
        self.in_blocks = {
            path
            for path in checksums.tabled
            if not path.startswith("episodes/") and (self.sizes[path] > WHOLE or path in large)
        }
        counts = [-(-length // size) for length in self.sizes.values()]
        self._edges = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._paths, self.count = [*self.sizes], int(self._edges[-1])
        self._first = dict(zip(self._paths, self._edges.tolist()))
        #: Bytes of every block, int64 ``[count]``.
        self.lengths = np.full(self.count, size, np.int64)
        for path, length in self.sizes.items():
            if length % size:
                self.lengths[self.of_file(path)[-1]] = length % size
        #: Which blocks may be evicted, bool ``[count]``: those of files in blocks.
        self.evictable = np.repeat([path in self.in_blocks for path in self._paths], counts).astype(bool)
        self.whole_bytes = int(self.lengths[~self.evictable].sum())

    def of_file(self, path: str) -> np.ndarray:
        """Return all blocks of a file, int64."""
        first = self._first[path]
        return np.arange(first, first + -(-self.sizes[path] // self.block_bytes))

    def of_bytes(self, path: str, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """The blocks that hold bytes ``start..stop-1`` (int64 ``[n]`` each, not empty) of a file, ascending; none if it is
        fetched whole."""
        if path not in self.in_blocks or not len(start):
            return np.empty(0, np.int64)
        low, high = start // self.block_bytes, (stop - 1) // self.block_bytes
        touched = [np.minimum(low + step, high) for step in range(int((high - low).max()) + 1)]
        found: np.ndarray = np.unique(np.concatenate(touched)) + self._first[path]
        return found

    def place(self, block: int) -> tuple[str, int]:
        """Return the file of a block, and the number of the block in it."""
        file = int(np.searchsorted(self._edges, block, "right")) - 1
        return self._paths[file], block - int(self._edges[file])


class BlockCache:
    """The blocks of a dataset in ``folder``, fetched from ``files``; ``limit`` bounds the bytes of all files.

    Raises DiskError for a folder that cannot be the cache, for a limit that is too small for any read, and if
    the disk is full.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        text: bytes,
        checksums: BlockChecksums,
        files: RemoteFiles,
        limit: int | None,
    ) -> None:
        self.folder, self.files = folder, files
        self.layout = layout = BlockLayout(manifest, checksums)
        self._text, self._checksums = text, checksums
        least = layout.whole_bytes + layout.block_bytes * bool(layout.in_blocks)
        if limit is not None and limit < least:
            message = f"{files.url}: a cache_limit of {amount(limit)} is too small, reads need at least {amount(least)}"
            raise DiskError(message, hint="give a larger cache_limit")
        #: How many blocks may be stored at a time, besides the files that are whole.
        self._most = None if limit is None else (limit - layout.whole_bytes) // layout.block_bytes
        self._planned = np.empty(0, np.int64)
        self._session = _open_session(folder, text, layout, files.url)
        with (folder / BLOCKS_FILE).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _HEADER + layout.count)
        whole = np.frombuffer(self._map, np.uint8)
        #: The bytes of the blocks, uint8 ``[count]``, and of the whole dataset, shared by all processes.
        self.states, self._finished = whole[_HEADER:], whole[_HEADER - 1 : _HEADER]
        self._begin()
        _caches.add(self)
        if not self.finished:
            needed = manifest.bytes if limit is None else min(limit, manifest.bytes)
            there = max(self.resident_bytes, sum((folder / path).stat().st_blocks * 512 for path in layout.sizes))
            if needed - there > (free := free_bytes(folder)):
                message = f"the cache needs {amount(needed - there)} more on {folder}, where {amount(free)} are free"
                raise DiskError(message, hint="give a cache_limit, or a cache_dir on another disk")

    def _begin(self) -> None:
        """The state of this process; a forked one starts again, without its parent's threads and locks."""
        self._lock, self._room = threading.Lock(), threading.Lock()
        self._pool = ThreadPoolExecutor(CONNECTIONS, "rbdata-blocks")
        self._running: dict[int, Future[None]] = {}
        self._plan: Iterator[int] = iter(())
        self._planners = 0
        #: Blocks that reads of this process need, which it does not evict.
        self._wanted: Counter[int] = Counter()

    def close(self) -> None:
        """Drop the plan, and let other machines use the folder."""
        self._plan = iter(())
        self._pool.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(OSError):
            os.close(self._session)

    # -- what is there -------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every block is resident, and none will be evicted."""
        return bool(self._finished[0])

    @property
    def resident_bytes(self) -> int:
        """Bytes of the blocks on disk."""
        return int(self.layout.lengths[(self.states & 1).astype(bool)].sum())

    def are_resident(self, blocks: np.ndarray) -> bool:
        return bool((self.states[blocks] & 1).all())

    @property
    def holds_all(self) -> bool:
        """Whether the limit leaves room for everything."""
        return self._most is None or self._most >= int(self.layout.evictable.sum())

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, extents: Callable[[], Iterable[tuple[str, np.ndarray, np.ndarray]]], read: Callable[[], T]) -> T:
        """Return what ``read()`` returns, with the bytes of ``extents()`` resident: ``(path, starts, stops)`` a file.

        Both may be called again: other processes evict blocks at any time. Raises DiskError if the limit has no room for the
        blocks, DamagedDatasetError for one that arrives damaged twice, and the fetch errors.
        """
        for _ in range(ATTEMPTS):
            if self.finished:
                return read()
            before: list[tuple[np.ndarray, np.ndarray]] = []
            wanted = Counter[int]()
            try:
                for path, starts, stops in extents():
                    blocks = self.layout.of_bytes(path, starts, stops)
                    wanted.update(blocks.tolist())
                    with self._lock:
                        self._wanted.update(blocks.tolist())
                    self.ensure(blocks)
                    before.append((blocks, self.states[blocks]))
                value = read()
            except DamagedDatasetError:
                if self._unchanged(before):
                    raise
                continue  # holes were read
            finally:
                with self._lock:
                    self._wanted -= wanted
            if self._unchanged(before):
                return value
        message = f"{self.folder}: blocks of a batch are evicted before all of them are fetched"
        raise DiskError(message, hint=self._hint)

    def _unchanged(self, before: list[tuple[np.ndarray, np.ndarray]]) -> bool:
        return all((states & 1).all() and (self.states[blocks] == states).all() for blocks, states in before)

    @property
    def _hint(self) -> str:
        """What to do about a limit that is too small; ``shuffle='blocks'`` has planned what it reads."""
        others = "or smaller batches" if len(self._planned) else "smaller batches, or shuffle='blocks'"
        return f"give a larger cache_limit, {others}"

    def ensure(self, blocks: np.ndarray) -> None:
        """Fetch the missing ones of these blocks (int64, each once); they may be evicted at any time. Raises as `read`."""
        missing = blocks[self.states[blocks] & 1 == 0]
        if not len(missing):
            return
        if self._most is not None and int(self.layout.evictable[blocks].sum()) > self._most:
            needed = self.layout.whole_bytes + len(blocks) * self.layout.block_bytes
            limit = self.layout.whole_bytes + self._most * self.layout.block_bytes
            message = f"{self.files.url}: a read needs {amount(needed)} at once, cache_limit is {amount(limit)}"
            raise DiskError(message, hint=self._hint)
        self._fetch(missing.tolist())

    def fetch_files(self, paths: Iterable[str]) -> None:
        """Fetch those of these files that are not read in blocks. Raises as `read`."""
        blocks = (self.layout.of_file(path) for path in paths if path not in self.layout.in_blocks)
        # The first block represents the file, which is fetched in one piece.
        self._fetch([int(group[0]) for group in blocks if len(group) and not self.are_resident(group)])

    def fetch_all(self) -> None:
        """Fetch everything and make the folder the dataset. Raises as `read`, and DiskError if the limit is too small."""
        if not self.finished:
            self.fetch_files(self.layout.sizes)
            self.ensure(np.flatnonzero(self.layout.evictable))
            self._finish()

    def plan(self, blocks: Iterable[int]) -> None:
        """Fetch these in this order while no reader waits, instead of what was planned; they may take three quarters of a
        limit. An error ends a plan: the read that needs the block raises it."""
        first = list(dict.fromkeys(blocks))
        if self._most is not None:
            first = first[: self._most * 3 // 4]
        with self._lock:
            self._planned, self._plan = np.array(first, np.int64), iter(first)
            more = min(PLANNED, len(first)) - self._planners
            self._planners += max(0, more)
        for _ in range(more):
            threading.Thread(target=self._work_on_plan, name="rbdata-plan", daemon=True).start()

    def _work_on_plan(self) -> None:
        pool = self._pool
        while True:
            with self._lock:
                block = next(self._plan, None)
                if block is None or pool is not self._pool:
                    self._planners -= 1
                    return
            try:
                if not self.states[block] & 1:
                    self._fetch([block])
            except Exception:
                with self._lock:
                    self._plan = iter(())

    # -- one block -----------------------------------------------------------------------------------------------------

    def _fetch(self, blocks: Iterable[int]) -> None:
        """Load these and wait for them. Raises the first error once all loads have ended."""
        futures = []
        for block in blocks:
            with self._lock:
                future = self._running.get(block)
                if future is None:
                    future = self._running[block] = self._pool.submit(self._load, block)
                    # The future is the default of ``pop``: the block may be gone.
                    future.add_done_callback(partial(self._running.pop, block))
            futures.append(future)
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error

    def _load(self, block: int) -> None:
        """Fetch a block, or the whole file of a block that represents it."""
        path, number = self.layout.place(block)
        is_whole = path not in self.layout.in_blocks
        blocks = self.layout.of_file(path) if is_whole else np.array([block])
        parts = list(self._checksums.all(path)) if is_whole else [self._checksums.block(path, number)]
        with self._claim(str(int(blocks[0]) % CLAIMS)):
            if self.are_resident(blocks):
                return
            data = self._receive(path, parts)
            with self._room_for_one() if self._most is not None and not is_whole else contextlib.nullcontext():
                with _writing(self.folder), (self.folder / path).open("r+b") as file:
                    write_at(file.fileno(), data, parts[0].begin)
                    os.fdatasync(file.fileno())
                self.states[blocks] += 1
        if (self.states & 1).all():
            self._finish()

    def _claim(self, name: str) -> FileLock:
        """A lock that no other thread and no other process has meanwhile."""
        return FileLock(self.folder / f".rbdata-claim-{name}", poll_interval=0.005)

    def _receive(self, path: str, parts: list[CheckedBlock]) -> bytes:
        """The bytes of consecutive parts of a file, compared with their checksums; asked for again where they differ."""
        begin, problem = parts[0].begin, ""
        for _ in range(2):
            data = self.files.read(path, begin, parts[-1].end)
            damaged = next(
                (part for part in parts if not part.is_sound([data[part.begin - begin : part.end - begin]])), None
            )
            if damaged is None:
                return data
            problem = self._checksums.where(damaged).removeprefix(" in ").removeprefix(", ")
            self.files.check()  # of a replaced dataset, no block matches
        hint = "the copy in the store is damaged: push it again, or use another mirror"
        raise DamagedDatasetError(f"{self.files.url}/{path}: {problem} arrived damaged, twice", hint=hint)

    # -- eviction --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _room_for_one(self) -> Iterator[None]:
        """Evict until another block fits; while the body stores it, no other thread or process does this."""
        with self._room, self._claim("room"):
            assert self._most is not None
            there = np.flatnonzero((self.states & 1).astype(bool) & self.layout.evictable)
            surplus = len(there) + 1 - self._most
            if surplus > 0 and not self.finished:
                with self._lock:
                    kept = np.concatenate([np.fromiter(self._wanted, np.int64), self._planned])
                free = np.setdiff1d(there, kept)
                if len(free) < surplus:  # other processes hold the rest of the limit
                    free = there
                surplus = min(len(free), max(surplus, self._most // EVICTED_SHARE))
                gone = np.random.default_rng().choice(free, surplus, replace=False)
                self.states[gone] += 1
                self._map.flush()
                for block in gone.tolist():
                    path, number = self.layout.place(block)
                    _punch(self.folder / path, number * self.layout.block_bytes, int(self.layout.lengths[block]))
            yield

    # -- the end ---------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Make the folder the dataset if every block is resident."""
        with self._room, self._claim("room"), _writing(self.folder):
            if self.finished or not (self.states & 1).all():
                return
            write_atomically(self.folder / FILENAME, self._text)
            sync_folder(self.folder)
            self._finished[0] = 1


_caches: weakref.WeakSet[BlockCache] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_caches):
        cache._begin()


os.register_at_fork(after_in_child=_after_fork)


def _punch(path: Path, start: int, length: int) -> None:
    """Free the disk space of a range of a file. Raises DiskError if the file system does not support that."""
    keep_size_punch_hole = 0x03  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
    with path.open("r+b") as file, contextlib.suppress(AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(file.fileno(), keep_size_punch_hole, ctypes.c_int64(start), ctypes.c_int64(length)) == 0:
            return
    message = f"the file system of {path} cannot free parts of files, which a cache_limit needs"
    raise DiskError(message, hint="choose a cache_dir on another disk (ext4, xfs, btrfs, tmpfs), or no cache_limit")


# -- the folder ----------------------------------------------------------------------------------------------------------


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise DiskError if the disk or the quota is full, or the folder cannot be written for other reasons."""
    try:
        yield
    except RbdataError:
        raise
    except OSError as error:
        hint = "free some space, give a cache_limit, or choose another cache_dir" if is_full(error) else _ANOTHER
        raise DiskError(f"the cache folder {folder} cannot be written: {error.strerror}", hint=hint) from error


def _open_session(folder: Path, text: bytes, layout: BlockLayout, url: str) -> int:
    """Make the folder the cache of the dataset whose manifest is ``text``, or go on with it; returns a descriptor to close.

    Who is alone may set the folder up; all share the lock afterwards.
    """
    wanted = {"manifest": crc32c(text), "block_bytes": layout.block_bytes, "blocks": layout.count}
    ours = {"format": FORMAT, "version": VERSION}
    with _writing(folder), contextlib.ExitStack() as failed:
        folder.mkdir(parents=True, exist_ok=True)
        session = os.open(folder / ".rbdata-session", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        failed.callback(os.close, session)
        while True:
            try:
                fcntl.flock(session, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_alone = True
            except BlockingIOError:
                fcntl.flock(session, fcntl.LOCK_SH)
                is_alone = False
            facts = _read_header(folder / BLOCKS_FILE)
            if facts and any(facts.get(name) != value for name, value in ours.items()):
                message = f"{folder} is a cache of version {facts.get('version')}, this rbdata reads {VERSION}"
                raise DiskError(message, hint=_ANOTHER)
            if facts and any(facts.get(name) != value for name, value in wanted.items()):
                known = facts.get("url")
                what = f"an earlier version of {url}" if known == url[:300] else f"another dataset, {known}"
                raise DiskError(f"{folder} is the cache of {what}", hint=_ANOTHER)
            is_ready = facts.get("boot") == _boot()
            if is_alone and not is_ready:
                _set_up(folder, {**ours, **wanted, "url": url[:300], "boot": _boot()}, layout, is_old=bool(facts))
            elif facts and not is_ready:
                hint = "choose a cache_dir on a disk of this machine"
                raise DiskError(f"{folder} is used by another machine", hint=hint)
            if is_alone or is_ready:  # else who set it up has failed
                fcntl.flock(session, fcntl.LOCK_SH)
                failed.pop_all()
                return session


def _set_up(folder: Path, facts: dict[str, Any], layout: BlockLayout, *, is_old: bool) -> None:
    states = (folder / BLOCKS_FILE).read_bytes()[_HEADER:] if is_old else bytes(layout.count)
    _make_files(folder, layout, keep=is_old)
    # Written in full: on a full disk, writing to the map of a hole kills the process.
    write_atomically(folder / BLOCKS_FILE, json.dumps(facts).encode().ljust(_HEADER, b"\0") + states)


def _read_header(path: Path) -> dict[str, Any]:
    """The facts of a cache; empty if there are none, or they were cut by a crash."""
    try:
        with path.open("rb") as file:
            facts: dict[str, Any] = json.loads(file.read(_HEADER - 1).rstrip(b"\0"))
            return facts if os.fstat(file.fileno()).st_size == _HEADER + facts["blocks"] else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}


def _make_files(folder: Path, layout: BlockLayout, *, keep: bool) -> None:
    """Make the files of the dataset as holes; with ``keep`` only give them their size, which a power cut may have changed."""
    ours = {folder / path for path in layout.sizes}
    for inner in sorted({parent for path in ours for parent in path.parents if folder in parent.parents}):
        if inner.is_symlink():
            raise DiskError(f"{inner} is a link: nothing is written through it", hint=_ANOTHER)
    foreign = [path for path in folder.rglob("*") if not path.is_dir() and not path.name.startswith(".rbdata-")]
    if foreign and not ours.issuperset(foreign):
        message = f"{folder} holds other files, such as {min(foreign).relative_to(folder)}"
        raise DiskError(message, hint="choose another cache_dir")
    for path, size in layout.sizes.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not keep:
            target.unlink(missing_ok=True)
        with target.open("ab") as file:
            file.truncate(size)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
