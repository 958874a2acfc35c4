"""One writer per dataset.

The lock is a small JSON file made by exclusive creation, which is atomic on local and on cluster filesystems (``flock``
is silently a no-op on some of the latter). It names its owner; the owner touches it while it lives. A lock is stale when
its process is gone (asked on the same machine only) or when it was not touched for ``STALE_AFTER`` seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from ..errors import DatasetBusyError

TOUCH_EVERY = 20.0
STALE_AFTER = 180.0


class WriterLock:
    """Context manager that holds ``path`` as the writer's lock; raises DatasetBusyError when another process has it."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self._token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> WriterLock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while not self._create():
            owner = _read(self.path)
            if owner is None:
                continue  # released in between
            if not _is_stale(self.path, owner):
                since = time.strftime("%H:%M:%S", time.localtime(owner.get("since", 0)))
                message = (
                    f"{self.what} is being written by process {owner.get('pid')} on {owner.get('host')} since {since}"
                )
                raise DatasetBusyError(message, hint=f"wait for it, or stop it; if it is long gone, remove {self.path}")
            self._break(owner)
        self._thread = threading.Thread(target=self._touch, name="rbdata-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        owner = _read(self.path)
        if owner is not None and owner.get("token") == self._token:
            self.path.unlink(missing_ok=True)

    def _create(self) -> bool:
        record = {"pid": os.getpid(), "host": socket.gethostname(), "space": _pid_space(), "token": self._token}
        data = json.dumps({**record, "since": time.time()}).encode()
        # Written aside and linked into place: the lock is never seen half-written.
        temporary = self.path.with_name(f"{self.path.name}.{self._token}")
        temporary.write_bytes(data)
        try:
            os.link(temporary, self.path)
        except FileExistsError:
            return False
        except OSError:  # no hard links on this filesystem
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                return True
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _break(self, owner: dict[str, Any]) -> None:
        """Take a stale lock away. Of several processes that try, the rename lets one succeed."""
        grave = self.path.with_name(f"{self.path.name}.{self._token}.stale")
        try:
            self.path.rename(grave)
        except FileNotFoundError:
            return
        found = _read(grave)
        if found is not None and found.get("token") != owner.get("token"):
            # Another process broke the stale lock first, and this is its fresh one: give it back.
            with contextlib.suppress(FileExistsError):
                os.link(grave, self.path)
        grave.unlink(missing_ok=True)

    def _touch(self) -> None:
        while not self._stop.wait(TOUCH_EVERY):
            with contextlib.suppress(OSError):
                os.utime(self.path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        owner = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_stale(path: Path, owner: dict[str, Any]) -> bool:
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return True
    if age > STALE_AFTER:
        return True
    if owner.get("host") != socket.gethostname() or owner.get("space") != _pid_space():
        return False
    try:
        os.kill(int(owner.get("pid", 0)), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _pid_space() -> str:
    """Containers on one host may share its name but not its process numbers."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
