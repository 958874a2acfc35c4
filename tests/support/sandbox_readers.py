"""Readers that crash, hang or take all memory, for `Sandbox` to call. A fork server finds them in a module of sys.path."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rbdata.datasets.workers.sandbox import RawFiles, limited
from rbdata.errors import UsageError


def add(subject: int, on_progress: Callable[[int, int], None], number: int) -> int:
    on_progress(number, 10)
    return subject + number


def crash(*_: object) -> Any:
    ctypes.string_at(0)


def abort(*_: object) -> Any:
    os.abort()


def leave(*_: object) -> Any:
    os._exit(3)


def be_killed(*_: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(*_: object) -> Any:
    while True:
        pass


def sleep(*_: object) -> Any:
    time.sleep(1000)


def swallow(*_: object) -> Any:
    kept = []
    while True:
        kept.append(np.ones(1 << 24))


def answer_at_length(*_: object) -> Any:
    return bytes(400 << 20)


def refuse(*_: object) -> Any:
    raise UsageError("no", hint="yes")


def be_wrong(*_: object) -> Any:
    raise ZeroDivisionError("a fault of ours")


def raise_what_cannot_be_sent(*_: object) -> Any:
    class Local(Exception):
        pass

    raise Local("no")


class ReadingTask:
    """A task of worker processes that reads in one of the ways above."""

    def __init__(self, index: int, files: RawFiles, how: Any) -> None:
        self.index, self.rows, self.files, self.how = index, 1, files, how

    def __call__(self, on_block: Any) -> dict[str, Any]:
        with limited(self.files):
            return {"found": self.how()}


def read_parquet(path: Any, _: Any) -> Any:
    from rbdata.datasets.formats.arrow import ParquetRows

    rows = ParquetRows(path, "x.parquet")
    return sum(len(array) for array in rows.read(("a",), 0, rows.rows, 10))
