"""Progress of a run: a bar on a terminal, one line every few seconds in a log.

Both are a `datasets.ingest.progress.Display`. With ``--quiet`` nothing is shown.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from ..datasets.ingest.progress import Display, Tally, both, bytes_of
from ..datasets.ingest.request import Estimate, Listener
from ..storage import amounts
from .console import out, printable, shortened

#: Seconds between two lines of a log, and before the first; after LINES lines the interval is LINES times as long.
LINE_INTERVAL, LINES = 10.0, 6
#: Seconds before the bar of `byte_progress` appears.
BAR_DELAY = 0.5
#: Columns reserved to the right of the bar, where the terminal echoes Ctrl-C (^C), twice.
ECHO_WIDTH = 5


@contextmanager
def show_progress(title: str, listener: Listener) -> Iterator[Listener]:
    """Show a run's progress inside the block; yield a listener that also calls the given one."""
    with _display(title) as display:
        display.phase("preparing")
        yield both(listener, display.listener())


@contextmanager
def byte_progress(title: str, then: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback ``(done, total)`` in bytes that shows the share done after a delay, then the phase ``then``."""
    began = time.monotonic()
    with _display(title) as display:

        def on_progress(done: int, total: int) -> None:
            if done >= total:
                display.phase(then)
            elif not out.live or time.monotonic() - began > BAR_DELAY:
                display.share(title, done / total, bytes_of(done, total))

        yield on_progress


@contextmanager
def count_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback ``(done, total)`` that shows a counter, for listings of unknown length."""
    with _display(title) as display:
        display.phase(title)
        yield lambda done, total: display.phase(title, amounts.count(done))


@contextmanager
def phase(title: str) -> Iterator[Callable[[str, float], None]]:
    """Show ``title`` while the block runs; yield a callback ``(what, share)`` that shows the share done."""
    with _display(title) as display:
        display.phase(title)
        yield lambda what, share: display.share(title, share, what)


@contextmanager
def _display(title: str) -> Iterator[Display]:
    """A bar or lines, which also show the waits before network retries."""
    from ..datasets.fetch import retries

    display = Display() if out.quiet else _TerminalBar() if out.live else _Lines(title)
    with display, retries.listen(display.wait):
        yield display


class _Lines(Display):
    """Progress in a log: one line every LINE_INTERVAL seconds, also while nothing new is reported."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._status = ""
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._print, name="rbdata-progress", daemon=True).start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()

    def phase(self, what: str, words: str = "") -> None:
        self._status = f"{what}, {words}" if words else what

    def share(self, what: str, share: float, words: str) -> None:
        self._status = f"{amounts.percent(share)}, {words}"

    def counted(self, what: str, done: int, total: int, words: str) -> None:
        self.phase(what, words)

    def wait(self, why: str, seconds: float) -> None:
        self._status = why

    def show(self, tally: Tally) -> None:
        waits = [task.wait for task in tally.running if task.wait]
        words = [amounts.percent(tally.share), *tally.describe(), *waits[:1]]
        self._status = "writing" if tally.share >= 1 else ", ".join(words)

    def _print(self) -> None:
        printed = 0
        while not self._over.wait(LINE_INTERVAL if printed < LINES else LINES * LINE_INTERVAL):
            if self._status:
                words = self._status.removeprefix(self._title).removeprefix(", ")
                out.note(f"{self._title}: {words}" if words else self._title)
                printed += 1


class _TerminalBar(Display):
    """Progress on a terminal: one row of a name, a bar, the share done and what else is known; removed at the end."""

    def __init__(self) -> None:
        from rich.console import Console as Screen
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__()
        # The terminal echoes ^C at the cursor, behind the row. If that wrapped to a new line, rich would erase the wrong one.
        self._width = max(20, out.width - ECHO_WIDTH)
        self._screen = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(max(8, min(30, self._width // 4))),
            TextColumn("{task.fields[share]}"),
            TextColumn("{task.fields[words]}", markup=False),
            console=Screen(file=sys.stderr, highlight=False, width=self._width),
            transient=True,
            refresh_per_second=5,
        )
        self._row = self._screen.add_task("", total=None, share="", words="")
        self._closed = False

    def __exit__(self, kind: object, *_: object) -> None:
        self._closed = True
        self._screen.stop()

    def phase(self, what: str, words: str = "") -> None:
        self._draw(what, None, words)

    def share(self, what: str, share: float, words: str) -> None:
        self._draw(what, share, words)

    def counted(self, what: str, done: int, total: int, words: str) -> None:
        self._draw(what, done / max(1, total), words)

    def wait(self, why: str, seconds: float) -> None:
        self._draw("waiting", None, why)

    def estimate(self, estimate: Estimate) -> None:
        super().estimate(estimate)
        self.phase("starting")

    def show(self, tally: Tally) -> None:
        if tally.share >= 1:
            self.phase("writing")
            return
        words = [*tally.describe(), *[task.wait for task in tally.running if task.wait][:1]]
        while len(words) > 1 and len(", ".join(words)) > self._width * 3 // 4 - 14:
            words = words[1:]  # the least important first
        self._draw("working", tally.share, ", ".join(words))

    def _draw(self, what: str, share: float | None, words: str) -> None:
        """Draw the row; without a share, or with all done (something else runs then), the bar shows no length."""
        if self._closed:  # a thread that still reads from the network, after Ctrl-C
            return
        known = share is not None and share < 1
        # On a narrow screen, names and words leave room for the share.
        what = shortened(printable(what, one_line=True), max(10, self._width - 29))
        words = shortened(printable(words, one_line=True), self._width - len(what) - 7)
        fields: dict[str, Any] = {"words": words, "share": amounts.percent(share or 0.0).rjust(4) if known else ""}
        self._screen.start()
        self._screen.update(
            self._row,
            description=what,
            total=1.0 if known else None,
            completed=share or 0.0,
            refresh=not known,
            **fields,
        )
