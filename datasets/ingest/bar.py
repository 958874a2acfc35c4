"""The bar that Python functions such as `rbdata.download` show, on a terminal (stderr) or in a notebook."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .progress import Display, Tally, both
from .request import Estimate, Listener


@contextmanager
def progress_listener(title: str, listener: Listener | None, show: bool | None) -> Iterator[Listener]:
    """A listener that draws a bar inside the block, from the first event on, where ``show`` is True, and calls ``listener`` as
    well. None: draw where it is visible (a terminal, a notebook), unless the caller listens.
    """
    given = listener or Listener()
    if not (listener is None and _is_seen() if show is None else show):
        yield given
        return
    with _Bar(title) as bar:
        yield both(bar.listener(), given)


def _is_seen() -> bool:
    """Whether a bar would be seen: in a notebook, or on a terminal that can draw it."""
    try:
        on_terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        on_terminal = False
    return on_terminal or _in_notebook()


class _Bar(Display):
    """One bar for a run, which stays when the run is over."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        super().__init__()
        # rich would need ipywidgets in notebooks, which show the text of a terminal as well.
        console = Console(stderr=True, force_jupyter=False, force_terminal=_in_notebook() or None)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        self._screen = Progress(*columns, console=console)
        self._title, self._row = title, self._screen.add_task(title, total=None)

    def __exit__(self, kind: object, *_: object) -> None:
        if self._screen.live.is_started:
            self._draw(*(("", 1.0) if kind is None else ("stopped", 0.0)))
            self._screen.stop()

    def phase(self, what: str, words: str = "") -> None:
        self._draw(what, None)

    def counted(self, what: str, done: int, total: int, words: str) -> None:
        self._draw(what, done / total if done < total else None)

    def estimate(self, estimate: Estimate) -> None:
        super().estimate(estimate)
        self._draw("", 0.0)

    def show(self, tally: Tally) -> None:
        self._draw(*(("", tally.share) if tally.share < 1 else ("writing", None)))

    def _draw(self, what: str, share: float | None) -> None:
        """Draw what is going on, and the share done: 0 to 1, None if it is unknown."""
        self._screen.start()
        title = f"{self._title}: {what}" if what else self._title
        total = None if share is None else 1.0
        self._screen.update(self._row, description=title, total=total, completed=share or 0.0)


def _in_notebook() -> bool:
    """Whether this is the kernel of a notebook; IPython in a terminal is not one."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
