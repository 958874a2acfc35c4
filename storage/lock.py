"""The writer's lock: one writer per dataset.

The lock is a small JSON file made by exclusive creation, which is atomic on local and on cluster file systems (``flock`` is
silently a no-op on some of the latter). It names its owner, which touches it regularly. On the owner's machine a lock is stale
once its process has ended (a stopped process keeps it); on other machines, if it was not touched for ``STALE_AFTER`` seconds.

Only one process at a time may break a stale lock: of two, the slower one could remove the new lock of the faster one.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import re
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DatasetBusyError
from .durable import open_plain
from .scratch import is_running, machine, pid_space
from .untrusted_json import parse_json

Done = TypeVar("Done")

TOUCH_EVERY = 20.0
STALE_AFTER = 180.0
#: Breaking a stale lock takes milliseconds; a process that started it longer ago was killed.
BREAKING_AFTER = 10.0
#: The locks of this process by path, and the threads that took them.
_holders: dict[str, int] = {}
#: Limit in bytes; a lock has about 200.
_LARGEST = 1 << 16


class WriterLock:
    """Context manager that holds ``path`` as the writer's lock; raises DatasetBusyError when another process has it."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self._token = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> WriterLock:
        until = time.monotonic() + 2 * BREAKING_AFTER
        while not self._create():
            if time.monotonic() > until:
                message = f"{self.what} cannot be locked: {self.path} or files beside it cannot be removed"
                raise DatasetBusyError(message, hint=f"remove {self.path}*")
            owner = _read(self.path)
            if owner is None:
                continue  # released in the meantime, or the folder was removed
            if not _is_stale(self.path, owner):
                raise self._busy(owner)
            self._break(owner)
        self._sweep()
        _holders[str(self.path)] = threading.get_ident()
        self._stop.clear()
        self._thread = threading.Thread(target=self._touch, name="rbdata-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        _holders.pop(str(self.path), None)
        owner = _read(self.path)
        if owner is not None and owner.get("token") == self._token:
            self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise DatasetBusyError if the lock was lost: another machine considered this process dead."""
        owner = _read(self.path)
        if owner is None or owner.get("token") != self._token:
            message = f"{self.what}: another process took over while this one was stopped"
            raise DatasetBusyError(message, hint="run the command again: what is finished is kept")

    def check_free(self) -> None:
        """Raise DatasetBusyError if a running process has the lock; other obstacles to taking it are ignored."""
        busy = None
        with contextlib.suppress(OSError):
            owner = _read(self.path)
            if owner is not None and not _is_stale(self.path, owner):
                busy = self._busy(owner)
        if busy:
            raise busy

    def is_held(self) -> bool:
        """Whether a running process has the lock."""
        return _is_held(self.path)

    def is_stale(self, path: Path) -> bool:
        """Whether a file that belongs to the lock was left by a process that has ended."""
        return _is_stale(path, _read(path) or _named(path))

    def _busy(self, owner: dict[str, Any]) -> DatasetBusyError:
        if "pid" in owner:
            process = f"process {owner.get('pid')!s:.20} on {owner.get('host')!s:.100}{_since(owner)}"
            message = f"{self.what} is being written by {''.join(filter(str.isprintable, process))}"
            hint = f"wait for it, or stop it; if it is long gone, remove {self.path}"
        else:  # damaged: its owner is unknown
            left = max(1, math.ceil(STALE_AFTER - _age(self.path)))
            message = f"{self.what} is locked by {self.path}, which does not say by which process"
            hint = f"run the command again in {left} s: a lock that no process touches is then removed; or"
            hint += " remove it now, if nothing writes this dataset"
        error = DatasetBusyError(message, hint=hint)
        if _holders.get(str(self.path)) != threading.get_ident():  # a thread that waits for itself waits forever
            error.is_held = partial(_is_held, self.path)
        return error

    def _create(self) -> bool:
        self._token = f"{machine()}{os.getpid():08x}{secrets.token_hex(8)}"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._sign(self.path)
        except (FileNotFoundError, FileExistsError):
            # Another process that deletes the last dataset of the folder removes the folder.
            if os.path.lexists(self.path.parent) and not self.path.parent.is_dir():
                raise
            return False

    def _sign(self, path: Path) -> bool:
        """Create a file that names this process as its owner, unless the file exists; returns whether it was created."""
        pid = os.getpid()
        record = {"pid": pid, "host": socket.gethostname(), "space": pid_space(), "started": _started(pid)}
        record.update(token=self._token, since=time.time())
        # Written under a temporary name and linked into place, so that no process sees it half-written.
        temporary = self.path.with_name(f"{self.path.name}.{self._token}")
        try:
            temporary.write_bytes(json.dumps(record).encode())
            return _place(temporary, path)
        finally:
            with contextlib.suppress(NotADirectoryError):
                temporary.unlink(missing_ok=True)

    def _break(self, owner: dict[str, Any]) -> None:
        """Remove a stale lock, unless another process is doing so or has done it."""
        breaking = self.path.with_name(f"{self.path.name}.breaking")
        try:
            made = self._sign(breaking)
        except FileNotFoundError:
            return  # the lock was removed with its folder
        if not made:
            with contextlib.suppress(FileNotFoundError):
                status = breaking.lstat()
                if time.time() - status.st_mtime > BREAKING_AFTER or not stat.S_ISREG(status.st_mode):
                    _remove(breaking)
            time.sleep(0.01)
            return
        try:
            found = _read(self.path)
            if found is not None and found.get("token") == owner.get("token"):
                _remove(self.path)
        finally:
            breaking.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove the files of processes that were killed while creating or breaking the lock; call as its owner."""
        for path in self.path.parent.glob(f"{glob.escape(self.path.name)}.*"):
            with contextlib.suppress(OSError):
                old = self.is_stale(path)  # not those of a process that is waiting
                if old and re.fullmatch(r"breaking|[0-9a-f]{32}", path.name[len(self.path.name) + 1 :]):
                    path.unlink()

    def _touch(self) -> None:
        while not self._stop.wait(TOUCH_EVERY):
            with contextlib.suppress(OSError):
                os.utime(self.path)


def _is_held(path: Path) -> bool:
    owner = _read(path)
    return owner is not None and not _is_stale(path, owner)


def _read(path: Path) -> dict[str, Any] | None:
    """The record in a lock; None if there is none, empty for a path that is not a lock, such as a link or a pipe."""
    try:
        with open_plain(path, "rb") as file:
            owner = parse_json(file.read(_LARGEST))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    except OSError:
        if _is_file(path):
            raise
        return {}
    return owner if isinstance(owner, dict) else {}


def _named(path: Path) -> dict[str, Any]:
    """The owner of a lock whose process was killed before it wrote the record, by the name of its temporary file."""
    token = path.name.rpartition(".")[2]
    if re.fullmatch(r"[0-9a-f]{32}", token) and token.startswith(machine()):
        return {"pid": int(token[8:16], 16) % (1 << 31), "host": socket.gethostname(), "space": pid_space()}
    return {}


def _age(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.lstat().st_mtime
    return STALE_AFTER


def _since(owner: dict[str, Any]) -> str:
    try:
        return time.strftime(" since %H:%M:%S", time.localtime(float(owner["since"])))
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return ""


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _remove(path: Path) -> None:
    """Remove a lock, or anything with its name; a folder only if it is empty."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        if not path.is_dir():
            raise
        try:
            path.rmdir()
        except OSError as error:
            raise DatasetBusyError(f"{path} is a folder where a lock should be", hint="remove it") from error


def _place(temporary: Path, path: Path) -> bool:
    """Give a finished file its name, unless that is taken; returns whether it did."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # no hard links on this filesystem
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(temporary.read_bytes())
    return True


def _is_stale(path: Path, owner: dict[str, Any]) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    if not stat.S_ISREG(status.st_mode):
        return True  # not created by any process
    age = time.time() - status.st_mtime
    pid = owner.get("pid")
    if isinstance(pid, int) and owner.get("host") == socket.gethostname() and owner.get("space") == pid_space():
        started = _started(pid)
        if started is not None and owner.get("started") is not None:
            return started != owner["started"]  # the pid may now belong to another process
        if not is_running(pid):
            return True
    return age > STALE_AFTER


def _started(pid: int) -> str | None:
    """The start time of a process (ticks since boot), "" if it has ended, None if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


# -- waiting for another process --------------------------------------------------------------------------------

#: Seconds between two checks of another process's lock.
_POLL = 0.5
#: The stage of a run while it waits for another process.
WAITING = "waiting for another process"


def when_free(
    action: Callable[[], Done], wait: bool, on_note: Callable[[str], None], on_stage: Callable[[str], None]
) -> Done:
    """The result of ``action``. If another process holds the lock, and with ``wait``, waits for that and calls it again.

    The second call finds what the other process finished, and continues with the rest. ``on_note`` receives a sentence for
    every process that is waited for.
    """
    said = ""
    while True:
        try:
            return action()
        except DatasetBusyError as error:
            if error.is_held is None or not wait:
                raise
            on_stage(WAITING)
            if error.message != said:
                said = error.message
                on_note(f"{said}; waiting for it to end")
            busy = error.is_held
        while busy():
            time.sleep(_POLL)
