"""Progress of a run: bars on a terminal, one line every few seconds in a log.

Both are a `datasets.ingest.progress.Display`. With ``--quiet`` nothing is shown. A phase with a known share of work done has a
bar; others show only their name: "looking for ...", "writing", "committing".
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
#: Seconds after which a phase without a bar shows its elapsed time.
ELAPSED_DELAY = 2.0
#: Columns reserved to the right of the bars, where the terminal echoes Ctrl-C (^C), twice.
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
    """Bars or lines, which also show the waits before network retries."""
    from ..datasets.fetch import retries

    display = Display() if out.quiet else _Bars() if out.live else _Lines(title)
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


class _Bars(Display):
    """Progress on a terminal: a bar for the total and one per running part, removed when the work is done."""

    def __init__(self) -> None:
        from rich.console import Console as Screen
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.text import Text

        class Bar(BarColumn):
            def render(self, task: Any) -> Any:
                # A task without a known total is shown as text only.
                return Text() if task.total is None else super().render(task)

        class Words(TextColumn):
            def render(self, task: Any) -> Any:
                words, passed = task.fields["words"], task.elapsed or 0.0
                late = task.total is None and passed >= ELAPSED_DELAY
                return Text(words or (amounts.duration(int(passed)) if late else ""))

        super().__init__()
        # The terminal echoes ^C at the cursor, behind the last bar. If that wrapped to a new line, rich would erase the wrong
        # lines.
        terminal = Screen(file=sys.stderr, highlight=False, width=max(20, out.width - ECHO_WIDTH))
        bar = max(8, min(30, terminal.width // 4))
        self._width = terminal.width
        #: Width of the text behind a bar, and the number of bars that fit on the screen.
        self._text_width, self._most_bars = terminal.width - bar - 16, max(2, terminal.height - 4)
        self._screen = Progress(
            TextColumn("{task.description}", markup=False),
            Bar(bar),
            TextColumn("{task.fields[share]}", justify="right"),
            Words(""),
            console=terminal,
            transient=True,
            refresh_per_second=5,
        )
        self._rows: dict[object, Any] = {}
        self._closed = False

    def __exit__(self, kind: object, *_: object) -> None:
        self._closed = True
        self._screen.stop()

    def phase(self, what: str, words: str = "") -> None:
        """Replace all bars by a row of text."""
        if self._rows.keys() != {what}:
            self._clear()
        self._show(what, what, None, words)

    def share(self, what: str, share: float, words: str) -> None:
        """Replace all bars by one."""
        if share >= 1:
            self.phase(what, words)
            return
        if self._rows.keys() != {"share"}:
            self._clear()
        self._show("share", what, share, words)

    def counted(self, what: str, done: int, total: int, words: str) -> None:
        self.share(what, done / max(1, total), words)

    def wait(self, why: str, seconds: float) -> None:
        """Show below the bars why no data arrive, for the duration of the wait."""
        self._show("wait", "waiting", None, why)
        timer = threading.Timer(seconds + 1.0, self._drop, ("wait",))
        timer.daemon = True
        timer.start()

    def estimate(self, estimate: Estimate) -> None:
        super().estimate(estimate)
        self.phase("starting")

    def show(self, tally: Tally) -> None:
        if tally.share >= 1:
            self.phase("writing")
            return
        if "total" not in self._rows:
            self._clear()
        for key in ("wait", *tally.finished):
            self._drop(key)
        words = tally.describe()
        while len(words) > 1 and len(", ".join(words)) > self._text_width:
            words = words[1:]  # the least important first
        self._show("total", "total", tally.share, ", ".join(words))
        for task in tally.running[: self._most_bars]:
            if tally.parts == 1 and not task.wait:  # the bar of the total shows the same
                self._drop(task.index)
                continue
            fetched = amounts.size(task.fetched) if task.fetched else ""  # a recording fetches nothing
            self._show(task.index, tally.names[task.index], task.rows / max(1, task.total), task.wait or fetched)

    def _show(self, key: object, what: str, share: float | None, words: str) -> None:
        """Draw a row or update it; without a share it has text only."""
        if self._closed:  # a thread that still reads from the network, after Ctrl-C
            return
        self._screen.start()
        what, words = (printable(part, one_line=True) for part in (what, words))
        if share is not None:  # on a narrow screen, shorten names and words to leave room for the share
            what = shortened(what, max(10, self._width - 29))
            names = [str(row.description) for row in self._screen.tasks]
            words = shortened(words, self._width - max(map(len, [what, *names])) - 7)
        fields: dict[str, Any] = {"words": words, "share": "" if share is None else amounts.percent(share)}
        total = None if share is None else 1.0
        if key in self._rows:
            self._screen.update(self._rows[key], description=what, total=total, completed=share or 0.0, **fields)
        else:
            self._rows[key] = self._screen.add_task(what, total=total, completed=share or 0.0, **fields)  # type: ignore[arg-type]

    def _drop(self, key: object) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._screen.remove_task(row)

    def _clear(self) -> None:
        for key in list(self._rows):
            self._drop(key)
