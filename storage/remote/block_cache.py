"""The cache of one dataset: a folder that becomes the dataset, block by block.

Its files have their full length from the beginning, with holes for absent blocks, so that datasets map them like complete ones.
Without ``rbdata.json`` the folder is not a dataset; it gets one when every block is resident and checked.

    hold(blocks)   fetches missing blocks, checks them, and protects them from eviction while rows are copied
    eviction       removes random blocks that no batch waits for: a pass reads every block once, so the least recently used
                   block is the first that the next pass needs (LRU never hits); random eviction keeps its share of hits

`_BlockFetcher` has the threads: they fetch the blocks that a reader waits for first, then the planned ones in order. They
start when there is a block to fetch and end after some idle seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import google_crc32c
import numpy as np

from ...errors import CacheError, ChecksumError, DamagedDatasetError
from ..amounts import size as amount
from ..checksums import damaged_ranges
from ..durable import open_plain, sync_folder, write_at, write_atomically
from ..manifest import FILENAME, Manifest
from .cache_folder import ABSENT, RESIDENT, STATES_FILE, UNPROVEN, BlockLayout, BlockStates, CacheLock, Claims, writing


class RemoteFiles(Protocol):
    """The files of one version of a dataset, by their paths in its folder. Picklable; used by several threads."""

    @property
    def url(self) -> str:
        """The location of the dataset, without credentials."""

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Bytes ``start..stop-1`` of a file, with retries.

        Raises ObjectChangedError if the file is no longer that of this version, and the other fetch errors.
        """

    def check(self) -> None:
        """Raise ObjectChangedError if the dataset was replaced since this version was opened."""


# -- threads that fetch --------------------------------------------------------------------------------------------------

_IDLE_SECONDS = 5.0


class _BlockFetcher:
    """Runs ``load(number)`` in at most ``connections`` threads. A forked child, which has none of them, must call `begin`.

    Ctrl-C may interrupt a caller at any place, and the next call goes on. So the lock is taken as such: a Condition, which is
    Python code, may be interrupted with the lock held.
    """

    def __init__(self, load: Callable[[int], None], connections: int) -> None:
        self._load, self._connections = load, connections
        self.begin()

    def begin(self) -> None:
        """Start empty: after a fork, threads and waiting callers belong to the parent."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._asked: deque[tuple[int, Future[None]]] = deque()
        self._futures: dict[int, Future[None]] = {}
        self._plan: Iterator[int] = iter(())
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def fetch(self, numbers: Iterable[int]) -> None:
        """Load these and wait for them. Raises the first error once all loads have ended."""
        futures = [self._ask(number) for number in numbers]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error

    def plan(self, numbers: Iterable[int]) -> None:
        """Set what to fetch, in this order, while no reader waits; replaces the previous plan. Errors end a plan silently."""
        with self._lock:
            if not self._closed:
                self._plan = iter(numbers)
                self._start(self._connections)

    def close(self, *, wait: bool = False) -> None:
        """Drop the plan and end the threads after their current jobs; with ``wait``, return after that."""
        with self._lock:
            self._closed, self._plan = True, iter(())
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (wait and self._living()))

    def _ask(self, number: int) -> Future[None]:
        with self._lock:
            future = self._futures.get(number)
            if future is None:
                future = Future()
                self._asked.append((number, future))
                self._futures[number] = future
            if self._asked:  # perhaps by a call that was interrupted before it started a thread
                self._start(1)
            return future

    def _start(self, wanted: int) -> None:
        self._changed.notify(wanted)
        for _ in range(min(wanted, self._connections - len(self._living()))):
            thread = threading.Thread(target=self._work, name="rbdata-blocks", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _living(self) -> set[threading.Thread]:
        """The threads, without those whose start was interrupted."""
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        return self._threads

    def _work(self) -> None:
        while True:
            with self._lock:
                job = self._next()
                if job is None and not self._closed:
                    self._changed.wait(_IDLE_SECONDS)
                    job = self._next()
                if job is None:
                    self._threads.discard(threading.current_thread())
                    self._changed.notify_all()
                    return
            number, future, planned = job
            try:
                self._load(number)
            except BaseException as error:
                with self._lock:
                    self._futures.pop(number, None)
                    if planned:
                        self._plan = iter(())
                future.set_exception(error)
            else:
                with self._lock:
                    self._futures.pop(number, None)
                future.set_result(None)

    def _next(self) -> tuple[int, Future[None], bool] | None:
        """The next job; with the condition held."""
        if self._asked:
            return *self._asked.popleft(), False
        for number in self._plan:
            if number not in self._futures:
                future = self._futures[number] = Future()
                return number, future, True
        return None


# -- the cache -----------------------------------------------------------------------------------------------------------

#: Maximum number of concurrent requests.
CONNECTIONS = 16
#: One in this many blocks of the limit is evicted at once.
_EVICTED_SHARE = 64
#: How often a read fetches its blocks if other processes evict them.
_ATTEMPTS = 100
_PUNCH_HOLE = 0x03  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


class BlockCache:
    """The blocks of a dataset in ``folder``, fetched from ``files``; ``sums`` are the block checksums by path."""

    def __init__(
        self,
        folder: Path,
        text: bytes,
        manifest: Manifest,
        layout: BlockLayout,
        files: RemoteFiles,
        sums: Mapping[str, np.ndarray],
        limit: int | None,
    ) -> None:
        self.folder, self.manifest, self.layout, self.files = folder, manifest, layout, files
        self._text, self._expected = text, sums
        self._known = BlockStates(folder / STATES_FILE, layout.count)
        self.states, self._sums = self._known.states, self._known.sums
        self._lock, self._claims = CacheLock(folder), Claims(folder)
        self._fetcher = _BlockFetcher(self._load, CONNECTIONS)
        self._most = None if limit is None else (limit - layout.whole_bytes) // layout.block_bytes
        self._planned = np.empty(0, np.int64)
        self._failure: Exception | None = None
        self._begin()
        _caches.add(self)

    def _begin(self) -> None:
        """Initialise the state of this process: the blocks it waits for, and its threads."""
        self._wanted_lock = threading.Lock()
        self._wanted: Counter[int] = Counter()
        self._fetcher.begin()

    @property
    def _hint(self) -> str:
        """What to do about a limit that is too small; ``shuffle='blocks'`` has planned what it reads."""
        others = "or smaller batches" if len(self._planned) else "smaller batches, or shuffle='blocks'"
        return f"give a larger cache_limit, {others}"

    # -- resident blocks -----------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every block is resident, checked, and will not be evicted."""
        return self._known.finished

    @property
    def resident_bytes(self) -> int:
        """Bytes of the blocks on disk."""
        return int(self.layout.lengths[self.states != ABSENT].sum())

    def are_resident(self, blocks: np.ndarray) -> bool:
        return bool((self.states[blocks] == RESIDENT).all())

    # -- reading -------------------------------------------------------------------------------------------------------

    @contextmanager
    def hold(self, blocks: np.ndarray) -> Iterator[None]:
        """Keep blocks (int64, each once) resident while the body runs.

        Raises CacheError if the limit has no room for them, DamagedDatasetError for a block that arrives damaged twice, and
        the fetch errors.
        """
        if not len(blocks) or self.finished:
            yield
            return
        for _ in range(_ATTEMPTS):
            self.ensure(blocks)
            with self._lock.shared():
                if self.are_resident(blocks):
                    yield
                    return
        message = f"{self.folder}: blocks of a batch are evicted before all of them are fetched"
        raise CacheError(message, hint=self._hint)

    def ensure(self, blocks: np.ndarray) -> None:
        """Fetch the missing ones of these blocks; they may be evicted at any time. Raises as `hold`."""
        if self._failure is not None:
            raise self._failure
        missing = blocks[self.states[blocks] != RESIDENT]
        if not len(missing):
            return
        if self._most is not None and int(self.layout.evictable[blocks].sum()) > self._most:
            needed = self.layout.whole_bytes + len(blocks) * self.layout.block_bytes
            limit = self.layout.whole_bytes + self._most * self.layout.block_bytes
            message = f"{self.files.url}: a read needs {amount(needed)} at once, cache_limit is {amount(limit)}"
            raise CacheError(message, hint=self._hint)
        with self._keep(blocks.tolist()):
            self._fetcher.fetch(missing.tolist())

    def fetch_files(self, paths: Iterable[str]) -> None:
        """Fetch files that are not in blocks, whole and checked. Raises as `hold`."""
        blocks = (self.layout.of_file(path) for path in paths if path not in self.layout.in_blocks)
        # The first block represents the file, which is fetched in one piece.
        self._fetcher.fetch([int(group[0]) for group in blocks if len(group) and not self.are_resident(group)])

    def fetch_all(self) -> None:
        """Fetch everything and make the folder the dataset. Raises as `hold`, and CacheError if the limit is too small."""
        if self.finished:
            return
        self.fetch_files(self.layout.paths)
        self.ensure(np.flatnonzero(self.layout.evictable))
        self._fetcher.fetch([self.layout.count])
        if self._failure is not None:
            raise self._failure

    def plan(self, blocks: Iterable[int]) -> None:
        """Fetch these in this order while no reader waits; they may take three quarters of a limit."""
        first = list(dict.fromkeys(blocks))
        if self._most is not None:
            first = first[: self._most * 3 // 4]
        self._planned = np.array(first, np.int64)
        self._fetcher.plan(block for block in first if self.states[block] != RESIDENT)

    @property
    def holds_all(self) -> bool:
        """Whether the limit leaves room for everything."""
        return self._most is None or self._most >= int(self.layout.evictable.sum())

    def close(self, *, wait: bool = False) -> None:
        """Drop the plan; with ``wait``, return when the current requests have ended."""
        self._fetcher.close(wait=wait)

    @contextmanager
    def _keep(self, blocks: list[int]) -> Iterator[None]:
        """Keep blocks from being evicted by this process."""
        with self._wanted_lock:
            self._wanted.update(blocks)
        try:
            yield
        finally:
            with self._wanted_lock:
                self._wanted -= Counter(blocks)

    def forget(self, blocks: np.ndarray) -> bool:
        """Drop the blocks without checksums among these, whose rows are damaged; returns whether there are any."""
        unproven = [block for block in blocks.tolist() if self.layout.place(block)[0] not in self._expected]
        if not unproven or self.finished:
            return False
        with self._lock.exclusive():
            self.states[unproven] = ABSENT
        return True

    # -- one block -----------------------------------------------------------------------------------------------------

    def _load(self, block: int) -> None:
        """Fetch a block, or the whole file of a block that represents it; in one of the fetcher's threads."""
        if block == self.layout.count:
            self._finish()
            return
        path, start, stop = self.layout.place(block)
        whole = path not in self.layout.in_blocks
        if whole:
            start, stop = 0, self.layout.sizes[path]
        blocks = self.layout.of_file(path) if whole else np.array([block])
        claim = int(blocks[0])
        while not self.are_resident(blocks):
            if not self._claims.take(claim):
                time.sleep(0.002)  # another process fetches it; if that is killed, its claim is released
                continue
            try:
                if not self.are_resident(blocks) and not self._prove(blocks, path):
                    self._store(path, blocks, start, *self._receive(path, start, stop))
            finally:
                self._claims.release(claim)
        if not self.finished and bool((self.states == RESIDENT).all()):
            self._fetcher.plan([self.layout.count])

    def _prove(self, blocks: np.ndarray, path: str) -> bool:
        """Compare blocks from before a reboot with their sums, and mark them RESIDENT or ABSENT; whether all are RESIDENT."""
        if not (self.states[blocks] != ABSENT).all():
            return False
        with self._lock.shared(), open_plain(self.folder / path, "rb") as file:
            for block in blocks[self.states[blocks] == UNPROVEN].tolist():
                _, start, stop = self.layout.place(block)
                file.seek(start)
                sound = google_crc32c.value(file.read(stop - start)) == int(self._sums[block])
                self.states[block] = RESIDENT if sound else ABSENT
        return self.are_resident(blocks)

    def _receive(self, path: str, start: int, stop: int) -> tuple[bytes, list[int]]:
        """Bytes of a file and the sums of their blocks, checked if checksums exist; requested again if they are wrong."""
        problem, size = "", self.layout.block_bytes
        for _ in range(2):
            data = self.files.read(path, start, stop)
            sums = [google_crc32c.value(data[low : low + size]) for low in range(0, len(data), size)]
            problem = self._damage(path, start, data, sums)
            if not problem:
                return data, sums
            self.files.check()  # of a replaced dataset, no block matches
        hint = "the copy in the store is damaged: push it again, or use another mirror"
        raise DamagedDatasetError(f"{self.files.url}/{path}: {problem}, twice", hint=hint)

    def _damage(self, path: str, start: int, data: bytes, sums: list[int]) -> str:
        """How bytes from ``start`` on differ from their checksums, "" where they do not or none covers them."""
        expected, size = self._expected.get(path), self.layout.block_bytes
        if expected is not None:
            for number, found in enumerate(sums, start // size):
                if found != int(expected[number]):
                    return f"block {number} (bytes {number * size}-{min((number + 1) * size, start + len(data))}) is damaged"
        elif start == 0 and len(data) == self.layout.sizes[path]:
            at = 0
            for length, wanted in self.manifest.files[path]:
                if f"{google_crc32c.value(data[at : at + length]):08x}" != wanted:
                    return f"bytes {at}-{at + length} are damaged"
                at += length
        return ""

    def _store(self, path: str, blocks: np.ndarray, start: int, data: bytes, sums: list[int]) -> None:
        # With a limit, blocks are stored one at a time, so that it is never exceeded.
        with self._lock.shared() if self._most is None else self._lock.exclusive():
            if self._most is not None and path in self.layout.in_blocks:
                self._make_room()
            with writing(self.folder), open_plain(self.folder / path, "r+b") as file:
                write_at(file.fileno(), data, start)
            self._sums[blocks] = sums
            self.states[blocks] = RESIDENT

    # -- eviction --------------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Evict until another block fits; with the exclusive lock held."""
        assert self._most is not None
        there = np.flatnonzero((self.states != ABSENT) & self.layout.evictable)
        surplus = len(there) + 1 - self._most
        if surplus <= 0 or self.finished:
            return
        with self._wanted_lock:
            wanted = np.concatenate([np.fromiter(self._wanted, np.int64), self._planned])
        free = np.setdiff1d(there, wanted)
        if len(free) < surplus:  # other processes hold the rest of the limit
            free = there
        surplus = min(len(free), max(surplus, self._most // _EVICTED_SHARE))
        for block in np.random.default_rng().choice(free, surplus, replace=False).tolist():
            self.states[block] = ABSENT
            path, start, stop = self.layout.place(block)
            _punch(self.folder / path, start, stop - start)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Make the folder the dataset once every block is resident, and check files without block checksums."""
        if not self._claims.take(self.layout.count):
            return
        try:
            with writing(self.folder), self._lock.shared():  # no block is evicted at the same time
                if not self.finished and bool((self.states == RESIDENT).all()):
                    self._check_unproven()
                    for path in self.layout.paths:
                        with open_plain(self.folder / path, "r+b") as file:
                            os.fsync(file.fileno())
                    write_atomically(self.folder / FILENAME, self._text)
                    sync_folder(self.folder)
                    self._known.finished = True
        finally:
            self._claims.release(self.layout.count)

    def _check_unproven(self) -> None:
        for path in sorted(self.layout.in_blocks - set(self._expected)):
            for begin, length in damaged_ranges(self.folder / path, self.manifest.files[path]):
                self.states[self.layout.of_bytes(path, np.array([begin]), np.array([begin + length]))] = ABSENT
                message = f"{self.files.url}/{path}: bytes {begin}-{begin + length} arrived damaged"
                hint = "open the dataset again: damaged blocks are then fetched again"
                self._failure = self._failure or ChecksumError(message, hint=hint)
        if self._failure is not None:
            raise self._failure


_caches: weakref.WeakSet[BlockCache] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_caches):
        cache._begin()


os.register_at_fork(after_in_child=_after_fork)


def _punch(path: Path, start: int, length: int) -> None:
    """Free the disk space of a range of a file. Raises CacheError if the file system does not support that."""
    with open_plain(path, "r+b") as file, contextlib.suppress(AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(file.fileno(), _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(length)) == 0:
            return
    message = f"the file system of {path} cannot free parts of files, which a cache_limit needs"
    raise CacheError(message, hint="choose a cache_dir on another disk (ext4, xfs, btrfs, tmpfs), or no cache_limit")
