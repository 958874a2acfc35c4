"""A value of one process: created on first use, not pickled, created again after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Holds a client or session, which must not be shared with or sent to another process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._value: Any = None

    def get(self, make: Callable[[], T]) -> T:
        """The value of this process; the first call creates it with `make`."""
        process = os.getpid()
        if self._owner != process:
            # A thread that does not exist in this process may have held the lock when it was forked.
            if self._owner is not None:
                self._lock = threading.Lock()
            with self._lock:
                if self._owner != process:
                    self._value = make()
                    self._owner = process
        return self._value

    def __reduce__(self) -> tuple[type[PerProcess[T]], tuple[()]]:
        return (PerProcess, ())
