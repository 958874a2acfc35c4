"""Functions, policies and environments of users run in one thread at a time, as they share what the process has.

The global random generators, the default dtype, the current directory, warning filters and standard streams are seeded or put
back around them. Between two threads, each would draw from the generators that the other has seeded. Which modules cloudpickle
sends by value is also kept for the whole process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

_turn, _pickling = threading.RLock(), threading.RLock()


@contextmanager
def own_turn() -> Iterator[None]:
    """Wait until no other thread of this process is in here."""
    with _turn:
        yield


@contextmanager
def pickled_by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Let cloudpickle send these modules by value, in one thread at a time."""
    import cloudpickle

    with _pickling, ExitStack() as stack:
        for one in modules:
            if one.__name__ not in cloudpickle.list_registry_pickle_by_value():  # or the program has registered it
                cloudpickle.register_pickle_by_value(one)
                stack.callback(cloudpickle.unregister_pickle_by_value, one)
        yield


def _after_fork() -> None:
    """In the child no other thread goes on, which might hold the locks."""
    global _turn, _pickling
    _turn, _pickling = threading.RLock(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
