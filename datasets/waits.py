"""The waits between a failure of the network and the next try, for those who show progress.

They arise deep inside of what reads, so that they are passed on by the process: `listen` where progress is shown, and in
worker processes, whose pool hands them to its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Receives the reason of a wait, and its seconds.
Listener = Callable[[str, float], None]

_listener: Listener = lambda text, seconds: None  # noqa: E731


def announce(text: str, seconds: float) -> None:
    """Say why there is a wait: ``HTTP 503 Service Unavailable: retry 2 of 8 in 4.0 s``. Called in any thread."""
    _listener(text, seconds)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Call ``listener`` with every wait of this process inside the block."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
