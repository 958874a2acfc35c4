"""Waits: between a failure of the network and the next try (`announce`), and for another process (`when_free`).

The former arise deep inside of what reads, so that they are passed on by the process: `listen` where progress is shown, and in
worker processes, whose pool hands them to its parent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..errors import DatasetBusyError

Done = TypeVar("Done")

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


#: Seconds between two looks at the lock of another process.
POLL = 0.5
#: The stage while another process is waited for.
WAITING = "waiting for another process"


def when_free(
    action: Callable[[], Done], wait: bool, on_note: Callable[[str], None], on_stage: Callable[[str], None]
) -> Done:
    """The result of ``action``; where another process is at it, and with ``wait``, once that one has ended.

    The action is then begun again: it finds what the other process finished, and goes on with what it did not. ``on_note`` is
    called once for every process that is waited for, with a sentence.
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
            time.sleep(POLL)
