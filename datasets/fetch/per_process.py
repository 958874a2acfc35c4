"""A value that belongs to one process: made on first use, never pickled, made anew after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Holds a client or a session, which must not be shared with a child process nor sent to one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._value: Any = None

    def get(self, make: Callable[[], T]) -> T:
        """The value of this process; `make` is called the first time."""
        process = os.getpid()
        if self._owner != process:
            # A lock inherited over a fork may be held by a thread that does not exist here.
            if self._owner is not None:
                self._lock = threading.Lock()
            with self._lock:
                if self._owner != process:
                    self._value = make()
                    self._owner = process
        return self._value

    def __reduce__(self) -> tuple[type[PerProcess[T]], tuple[()]]:
        return (PerProcess, ())
