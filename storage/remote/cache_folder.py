"""The folder of a cache: the layout of blocks, which blocks it holds, and the locks of the processes that share it.

    rbdata.json         only when the dataset is complete: until then the folder is not a dataset
    .rbdata-manifest    the manifest, as it was received
    .rbdata-blocks      the states of the blocks, one small file that all processes map
    .rbdata-*           locks; these files are empty
    all other files     those of the dataset, with holes

The blocks of a dataset are numbered consecutively through its files in the order of their paths. A file is read in blocks, or
*whole*: nearly every batch needs the small leaves, the episode table and the dictionaries, so those are fetched completely.

``.rbdata-blocks`` holds

    header   4096 bytes: one JSON object, zeros, and in the last byte 1 when the dataset is finished
    states   one byte per block: ABSENT, RESIDENT, or UNPROVEN
    sums     uint32 per block: crc32c of the stored bytes

A byte is written by one store instruction, so a reader sees the old state or the new one. Data and states are in the page
cache, so they survive the end of any process, but a crash of the machine can lose either. After a reboot, blocks are therefore
UNPROVEN: they are compared with their sums before they are used.

A reader holds the shared lock while it copies rows out of resident blocks; a process that removes blocks holds the exclusive
one. Both are ``flock``, which the system releases when a process ends. The exclusive side also takes a second lock (the gate)
that every reader passes, since a steady stream of readers would otherwise starve it. One machine uses a cache at a time.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CacheError, DiskSpaceError, RbdataError
from ..amounts import size as amount
from ..checksums import crc32c
from ..codecs import codec_of
from ..durable import is_full, open_plain, write_atomically
from ..folder import free_bytes
from ..manifest import Manifest
from ..schema import LARGE_ROW
from ..untrusted_json import parse_json

# -- the layout of blocks ------------------------------------------------------------------------------------------------

#: Files of at most this many bytes are whole, unless they hold the rows of a large leaf.
WHOLE = 64 << 20


class BlockLayout:
    """The blocks of files by path, of ``block_bytes`` each (the last one of a file may be shorter)."""

    def __init__(self, sizes: Mapping[str, int], in_blocks: frozenset[str], block_bytes: int) -> None:
        self.paths = sorted(sizes)
        self.sizes, self.in_blocks, self.block_bytes = dict(sizes), in_blocks, block_bytes
        counts = [-(-sizes[path] // block_bytes) for path in self.paths]
        self._edges = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._first = dict(zip(self.paths, self._edges.tolist()))
        self.count = int(self._edges[-1])
        starts = np.arange(self.count) - np.repeat(self._edges[:-1], counts)
        ends = np.minimum((starts + 1) * block_bytes, np.repeat([sizes[path] for path in self.paths], counts))
        #: Bytes of every block, int64 ``[count]``.
        self.lengths = ends - starts * block_bytes
        #: Which blocks may be evicted, bool ``[count]``: those of files in blocks.
        self.evictable = np.repeat([path in in_blocks for path in self.paths], counts).astype(bool)
        self.whole_bytes = sum(size for path, size in sizes.items() if path not in in_blocks)

    def of_file(self, path: str) -> np.ndarray:
        """All blocks of a file, int64."""
        first = self._first[path]
        return np.arange(first, first - (-self.sizes[path] // self.block_bytes))

    def of_bytes(self, path: str, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """The blocks that hold bytes ``start..stop-1`` (int64 ``[n]`` each, not empty) of a file, ascending."""
        low, high = start // self.block_bytes, (stop - 1) // self.block_bytes
        span = int((high - low).max()) if len(low) else 0
        touched = [np.minimum(low + step, high) for step in range(span + 1)]
        found: np.ndarray = np.unique(np.concatenate(touched)) + self._first[path]
        return found

    def place(self, block: int) -> tuple[str, int, int]:
        """The file of a block and its bytes in it: ``(path, start, stop)``."""
        number = int(np.searchsorted(self._edges, block, "right")) - 1
        path = self.paths[number]
        start = (block - int(self._edges[number])) * self.block_bytes
        return path, start, min(start + self.block_bytes, self.sizes[path])


def layout_of(manifest: Manifest, block_bytes: int) -> BlockLayout:
    """The layout of a dataset; files with rows of large leaves, and files larger than WHOLE, are read in blocks."""
    sizes = {path: manifest.size_of(path) for path in manifest.files}
    large = {
        codec_of(leaf).path("blob") for leaf in manifest.schema if leaf.constant is None and leaf.row_bytes >= LARGE_ROW
    }
    in_blocks = {path for path, size in sizes.items() if size > WHOLE or (path in large and size > block_bytes)}
    return BlockLayout(sizes, frozenset(path for path in in_blocks if not path.startswith("episodes/")), block_bytes)


# -- the states of blocks ------------------------------------------------------------------------------------------------

ABSENT, RESIDENT, UNPROVEN = 0, 1, 2
STATES_FILE = ".rbdata-blocks"
FORMAT, VERSION = "rbdata block cache", 1
_HEADER = 4096

_DELETE = "delete the folder, or choose another one with cache_dir"


class BlockStates:
    """The mapped file: ``states`` uint8 ``[blocks]`` and ``sums`` uint32 ``[blocks]``, shared and writable."""

    def __init__(self, path: Path, blocks: int) -> None:
        with open_plain(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _size(blocks))
        whole = np.frombuffer(self._map, np.uint8)
        self.states = whole[_HEADER : _HEADER + blocks]
        self.sums = whole[_sums_at(blocks) :].view(np.uint32)[:blocks]
        self._finished = whole[_HEADER - 1 : _HEADER]

    @property
    def finished(self) -> bool:
        """Whether every block is resident and checked, and will not be evicted."""
        return bool(self._finished[0])

    @finished.setter
    def finished(self, value: bool) -> None:
        self._finished[0] = value


def write_states(path: Path, blocks: int, facts: dict[str, Any]) -> None:
    """Write the file of an empty cache; atomic."""
    header = json.dumps({"format": FORMAT, "version": VERSION, "blocks": blocks, **facts}).encode()
    assert len(header) < _HEADER
    # Written in full: on a full disk, writing to the map of a hole kills the process.
    write_atomically(path, header.ljust(_size(blocks), b"\0"))


def read_header(path: Path) -> dict[str, Any] | None:
    """The facts that `write_states` wrote; None if the file is missing or was truncated by a crash.

    Raises CacheError for the file of another version of rbdata.
    """
    try:
        with open_plain(path, "rb") as file:
            facts = parse_json(file.read(_HEADER - 1).rstrip(b"\0"))
            if not isinstance(facts, dict) or facts.get("format") != FORMAT:
                return None
            if facts.get("version") != VERSION:
                message = f"{path.parent} is a cache of version {facts.get('version')}, this rbdata reads {VERSION}"
                raise CacheError(message, hint=_DELETE)
            whole = os.fstat(file.fileno()).st_size == _size(int(facts["blocks"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return facts if whole else None


def _sums_at(blocks: int) -> int:
    return _HEADER + -(-blocks // 8) * 8


def _size(blocks: int) -> int:
    return _sums_at(blocks) + 4 * blocks


# -- locks ---------------------------------------------------------------------------------------------------------------

_OFD_LOCK = getattr(fcntl, "F_OFD_SETLK", None)
_STRUCT_FLOCK = "hhqqi"


class CacheLock:
    """The lock of the cache in a folder. Every thread opens its own files: locks belong to an open file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = threading.local()

    @contextmanager
    def shared(self) -> Iterator[None]:
        main, gate = self._files()
        fcntl.flock(gate, fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        fcntl.flock(main, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(main, fcntl.LOCK_UN)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Must not be entered inside `shared`."""
        main, gate = self._files()
        fcntl.flock(gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(main, fcntl.LOCK_EX)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(main, fcntl.LOCK_UN)

    def _files(self) -> list[int]:
        return _of_thread(self._own, self._folder / ".rbdata-lock", self._folder / ".rbdata-gate")


class Claims:
    """Claims of threads and processes on the blocks they fetch, so that no two fetch the same one: a locked byte per block.

    On systems without such locks every claim is granted; two processes may then store the same bytes.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".rbdata-claims"
        self._own = threading.local()

    def take(self, number: int) -> bool:
        """Claim a number; False while another process, or another cache of this one, has it."""
        return self._set(number, fcntl.F_WRLCK)

    def release(self, number: int) -> None:
        """Give up a claim of this thread."""
        self._set(number, fcntl.F_UNLCK)

    def _set(self, number: int, kind: int) -> bool:
        if _OFD_LOCK is None:
            return True
        (file,) = _of_thread(self._own, self._path)
        try:
            fcntl.fcntl(file, _OFD_LOCK, struct.pack(_STRUCT_FLOCK, kind, os.SEEK_SET, number, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True


def _of_thread(own: threading.local, *paths: Path) -> list[int]:
    """Lock files opened by this thread, as locks belong to an open file; a forked process opens its own."""
    files = getattr(own, "files", None)
    if files is None or files.process != os.getpid():
        files = own.files = _Files(paths)
    return files.opened


class _Files:
    """Open lock files of one thread, closed when it ends."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.process, self.opened = os.getpid(), []
        for path in paths:
            self.opened.append(_open_lock(path))

    def __del__(self) -> None:
        for file in self.opened:
            os.close(file)


def _open_lock(path: Path) -> int:
    """A file to lock, created if missing; never inherited by other programs."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


# -- the folder ----------------------------------------------------------------------------------------------------------

_MANIFEST = ".rbdata-manifest"
_ANOTHER = "choose another cache_dir, or delete the folder"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise DiskSpaceError if the disk or the quota is full, CacheError if the folder cannot be written for other reasons."""
    try:
        yield
    except RbdataError:
        raise
    except OSError as error:
        message = f"the cache folder {folder} cannot be written: {error.strerror}"
        if is_full(error):
            hint = "free some space, give a cache_limit, or choose another cache_dir"
            raise DiskSpaceError(message, hint=hint) from error
        raise CacheError(message, hint=_ANOTHER) from error


def open_session(folder: Path, text: bytes, layout: BlockLayout, url: str) -> int:
    """Make the folder the cache of the dataset whose manifest is ``text``, or reopen it; returns a descriptor to close.

    Raises DiskSpaceError on a full disk, CacheError if the folder cannot be written for other reasons, holds something else, or
    is used by another machine.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        setup = _open_lock(folder / ".rbdata-setup")
        session = -1
        try:
            fcntl.flock(setup, fcntl.LOCK_EX)
            session = _open_lock(folder / ".rbdata-session")
            _enter(folder, session, text, layout, url)
            return session
        except BaseException:
            if session >= 0:
                os.close(session)
            raise
        finally:
            os.close(setup)


def _enter(folder: Path, session: int, text: bytes, layout: BlockLayout, url: str) -> None:
    _refuse_links(folder, layout)
    url = url[:300]  # the header of the states has 4 KiB
    path, boot = folder / STATES_FILE, _boot()
    facts = read_header(path)
    wanted = {"manifest": crc32c(text), "bytes": len(text), "block_bytes": layout.block_bytes}
    if facts is not None and any(facts.get(name) != value for name, value in wanted.items()):
        what = f"an earlier version of {url}" if facts.get("url") == url else f"another dataset, {facts.get('url')}"
        raise CacheError(f"{folder} is the cache of {what}", hint=_ANOTHER)
    alone = _is_alone(session)
    if facts is None or facts["boot"] != boot:
        if not alone:
            hint = "choose a cache_dir on a disk of this machine"
            raise CacheError(f"{folder} is used by another machine", hint=hint)
        if facts is None:
            _create(folder, text, layout)
        else:
            _restore_sizes(folder, layout)
        _begin(path, layout, {**wanted, "url": url, "boot": boot}, new=facts is None)
    fcntl.flock(session, fcntl.LOCK_SH)


def _refuse_links(folder: Path, layout: BlockLayout) -> None:
    for inner in sorted({folder / parent for path in layout.paths for parent in Path(path).parents} - {folder}):
        if inner.is_symlink():
            raise CacheError(f"{inner} is a link: nothing is written through it", hint=_ANOTHER)


def _is_alone(session: int) -> bool:
    try:
        fcntl.flock(session, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _create(folder: Path, text: bytes, layout: BlockLayout) -> None:
    """Create the files of the dataset as holes. Data of a cache that lost its states are discarded."""
    ours = {folder / path for path in layout.paths}
    foreign = [path for path in folder.rglob("*") if not path.is_dir() and not path.name.startswith(".rbdata-")]
    if foreign and not ours.issuperset(foreign):
        message = f"{folder} holds other files, such as {min(foreign).relative_to(folder)}"
        raise CacheError(message, hint="choose another cache_dir")
    for path in layout.paths:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        with target.open("xb") as file:
            file.truncate(layout.sizes[path])
    write_atomically(folder / _MANIFEST, text)


def _restore_sizes(folder: Path, layout: BlockLayout) -> None:
    """Extend files that a power cut truncated to their full length, by holes: blocks are compared before they are used."""
    for path in layout.paths:
        with open_plain(folder / path, "ab") as file:
            if file.tell() != layout.sizes[path]:
                file.truncate(layout.sizes[path])


def _begin(path: Path, layout: BlockLayout, facts: dict[str, Any], *, new: bool) -> None:
    """Write new states: all ABSENT, or UNPROVEN for blocks stored before a reboot."""
    before = None if new else BlockStates(path, layout.count)
    write_states(path, layout.count, facts)
    if before is not None:
        now = BlockStates(path, layout.count)
        now.sums[:] = before.sums
        now.states[:] = [UNPROVEN if state != ABSENT else ABSENT for state in before.states.tolist()]


def check_room(folder: Path, layout: BlockLayout, resident: int, needed: int) -> None:
    """Raise DiskSpaceError unless the disk has room for ``needed`` bytes, less the ``resident`` ones and the blocks on disk
    that are overwritten because they are damaged."""
    missing = needed - max(resident, sum((folder / path).stat().st_blocks * 512 for path in layout.paths))
    free = free_bytes(folder)
    if missing > free:
        message = f"the cache needs {amount(missing)} more on {folder}, where {amount(free)} are free"
        raise DiskSpaceError(message, hint="give a cache_limit, or a cache_dir on another disk")


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
