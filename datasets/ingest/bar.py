"""The bar that Python functions such as `rbdata.download` show, on a terminal (stderr) or in a notebook."""

from __future__ import annotations

import html
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from ...storage import amounts
from .progress import Display, Tally, both
from .request import Estimate, Listener

#: Draws the current activity and the share done: 0 to 1, or None if it is unknown.
Show = Callable[[str, "float | None"], None]

#: Seconds between two drawings in a notebook.
_INTERVAL = 0.2


@contextmanager
def progress_listener(title: str, listener: Listener | None, show: bool | None) -> Iterator[Listener]:
    """A listener that draws a bar inside the block where ``show`` is True, and calls ``listener`` as well.

    None: draw where it is visible (a terminal, a notebook), from the first event on, unless the caller listens.
    """
    given = listener or Listener()
    if not (listener is None and _is_seen() if show is None else show):
        yield given
        return
    with _Bar(title, at_once=bool(show)) as bar:
        yield both(bar.listener(), given)


def _is_seen() -> bool:
    """Whether a bar would be seen: in a notebook, or on a terminal that can draw it."""
    try:
        on_terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        on_terminal = False
    return on_terminal or _in_notebook()


class _Bar(Display):
    """One bar for a run, which stays when the run is over; unless ``at_once``, it appears with the first event."""

    def __init__(self, title: str, *, at_once: bool) -> None:
        super().__init__()
        self._title, self._at_once = title, at_once
        self._opened = ExitStack()
        self._draw: Show | None = None

    def __enter__(self) -> Self:
        if self._at_once:
            self._begin()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._opened:
            if self._draw is not None:
                self._draw(*(("", 1.0) if kind is None else ("stopped", 0.0)))

    def phase(self, what: str, words: str = "") -> None:
        self._begin()(what, None)

    def counted(self, what: str, done: int, total: int, words: str) -> None:
        self._begin()(what, done / total if done < total else None)

    def estimate(self, estimate: Estimate) -> None:
        super().estimate(estimate)
        self._begin()("", 0.0)

    def show(self, tally: Tally) -> None:
        if tally.share < 1:
            self._begin()("", tally.share)
        else:
            self.phase("writing")

    def _begin(self) -> Show:
        if self._draw is None:
            self._draw = self._opened.enter_context((_notebook_bar if _in_notebook() else _terminal_bar)(self._title))
        return self._draw


@contextmanager
def _terminal_bar(title: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        row = progress.add_task(title, total=None)

        def show(what: str, share: float | None) -> None:
            known = None if share is None else 1.0
            progress.update(row, description=_titled(title, what), total=known, completed=share or 0.0)

        yield show


@contextmanager
def _notebook_bar(title: str) -> Iterator[Show]:
    """HTML that is replaced, instead of rich's bars, which need ipywidgets."""
    from IPython.display import display

    began, drawn = time.monotonic(), -_INTERVAL

    def page(what: str, share: float | None) -> dict[str, str]:
        passed = time.monotonic() - began
        words = _titled(title, what)
        if share is not None and what != "stopped":
            words += f" {amounts.percent(share)}"
        if share and share < 1 and passed > 2:
            words += f", about {amounts.duration(passed / share - passed)} left"
        bar = "" if what == "stopped" else f"<progress{'' if share is None else f' value={share:.3f}'}></progress> "
        return {"text/html": f"<div>{bar}{html.escape(words)}</div>", "text/plain": words}

    def show(what: str, share: float | None) -> None:
        nonlocal drawn
        now = time.monotonic()
        if share in (0, 1, None) or now - drawn >= _INTERVAL:
            drawn = now
            handle.update(page(what, share), raw=True)

    handle = display(page("", None), raw=True, display_id=True)
    yield show


def _titled(title: str, what: str) -> str:
    return f"{title}: {what}" if what else title


def _in_notebook() -> bool:
    """Whether this is the kernel of a notebook; IPython in a terminal is not one."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
