"""Functions, policies and environments of users run in one thread at a time, as they share what the process has.

The global random generators, the default dtype, the current directory, warning filters and standard streams are seeded or put
back around them. Between two threads, each would draw from the generators that the other has seeded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_turn = threading.RLock()


@contextmanager
def own_turn() -> Iterator[None]:
    """Wait until no other thread of this process is in here."""
    with _turn:
        yield


def _after_fork() -> None:
    """In the child no other thread goes on, which might hold the lock."""
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
