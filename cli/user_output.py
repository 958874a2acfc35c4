"""stdout carries results only: what a user's function prints in this process while a command works goes to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress


@contextmanager
def other_output_to_stderr() -> Iterator[None]:
    """Python's ``print`` (above a live bar, which takes over stderr), C code and child processes write to stderr inside."""
    if sys.stdout is None or sys.stderr is None:
        yield
        return
    sys.stdout.flush()
    saved = None
    with suppress(OSError):  # a descriptor is closed: ``2>&-``
        saved = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved is not None:
            _flush_c()
            os.dup2(saved, 1)
            os.close(saved)


def _flush_c() -> None:
    """Lines that C code has begun must not be written to stdout later."""
    ctypes = sys.modules.get("ctypes")  # where it is not loaded, no user's function was called
    if ctypes is not None and sys.platform != "win32":
        ctypes.CDLL(None).fflush(None)
