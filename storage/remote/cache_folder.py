"""The folder of a cache: made, recognised, and used by one machine at a time.

rbdata.json         only when the dataset is complete: until then the folder is none
.rbdata-manifest    the manifest, as it was received
.rbdata-blocks      see `block_states`
.rbdata-*           locks; they hold nothing
all other files     those of the dataset, with holes
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...amounts import size as amount
from ...errors import CacheError, DiskSpaceError, RbdataError
from ..checksums import crc32c
from ..durable import is_full, open_plain, write_atomically
from ..folder import free_bytes
from . import block_states
from .block_layout import BlockLayout
from .block_states import ABSENT, UNPROVEN, BlockStates
from .cache_lock import open_lock

MANIFEST = ".rbdata-manifest"
_ANOTHER = "choose another cache_dir, or delete the folder"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise DiskSpaceError for a disk or quota that is full, CacheError for a folder that cannot be written otherwise."""
    try:
        yield
    except RbdataError:
        raise
    except OSError as error:
        message = f"the cache folder {folder} cannot be written: {error.strerror}"
        if is_full(error):
            hint = "make room, give a cache_limit, or choose another cache_dir"
            raise DiskSpaceError(message, hint=hint) from error
        raise CacheError(message, hint=_ANOTHER) from error


def open_session(folder: Path, text: bytes, layout: BlockLayout, url: str) -> int:
    """Make the folder the cache of the dataset whose manifest is ``text``, or go on with it; returns a file to close.

    Raises DiskSpaceError on a full disk, CacheError where it cannot be written otherwise, holds something else, or is used by
    another machine.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        setup = open_lock(folder / ".rbdata-setup")
        session = -1
        try:
            fcntl.flock(setup, fcntl.LOCK_EX)
            session = open_lock(folder / ".rbdata-session")
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
    path, boot = folder / block_states.FILENAME, _boot()
    facts = block_states.read_facts(path)
    wanted = {"manifest": crc32c(text), "bytes": len(text), "block_bytes": layout.block_bytes}
    if facts is not None and any(facts.get(name) != value for name, value in wanted.items()):
        what = f"an earlier version of {url}" if facts.get("url") == url else f"another dataset, {facts.get('url')}"
        raise CacheError(f"{folder} is the cache of {what}", hint=_ANOTHER)
    alone = _is_alone(session)
    if facts is None or facts["boot"] != boot:
        if not alone:
            raise CacheError(
                f"{folder} is used by another machine", hint="choose a cache_dir on a disk of this machine"
            )
        if facts is None:
            _create(folder, text, layout)
        else:
            _restore_sizes(folder, layout)
        _begin(path, layout, {**wanted, "url": url, "boot": boot}, new=facts is None)
    fcntl.flock(session, fcntl.LOCK_SH)


def _refuse_links(folder: Path, layout: BlockLayout) -> None:
    """Raise CacheError where blocks would be written outside the cache."""
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
    """The files of the dataset, all holes. What a cache left without its states held is not used."""
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
    write_atomically(folder / MANIFEST, text)


def _restore_sizes(folder: Path, layout: BlockLayout) -> None:
    """Files that a loss of power has cut get holes in the place of what is gone: blocks are compared before they are used."""
    for path in layout.paths:
        with open_plain(folder / path, "ab") as file:
            if file.tell() != layout.sizes[path]:
                file.truncate(layout.sizes[path])


def _begin(path: Path, layout: BlockLayout, facts: dict[str, Any], *, new: bool) -> None:
    """States in which nothing is there, or nothing that was stored before the machine was started is proven."""
    before = None if new else BlockStates(path, layout.count)
    block_states.create(path, layout.count, facts)
    if before is not None:
        now = BlockStates(path, layout.count)
        now.sums[:] = before.sums
        now.states[:] = [UNPROVEN if state != ABSENT else ABSENT for state in before.states.tolist()]


def check_room(folder: Path, layout: BlockLayout, resident: int, most: int) -> None:
    """Raise DiskSpaceError unless the disk has room for ``most`` bytes, beside the ``resident`` ones and what is written over:
    blocks that are damaged have their place on the disk."""
    missing = most - max(resident, sum((folder / path).stat().st_blocks * 512 for path in layout.paths))
    free = free_bytes(folder)
    if missing > free:
        message = f"the cache needs {amount(missing)} more on {folder}, where {amount(free)} are free"
        raise DiskSpaceError(message, hint="give a cache_limit, or a cache_dir on another disk")


def _boot() -> str:
    """What names this start of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
