"""The progress bar of `rbdata.download` and the like: on a terminal (stderr) and in a notebook."""

from __future__ import annotations

import html
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import fields
from typing import Any

from ...storage import amounts
from ..workers.task import TaskProgress
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
    wanted = listener is None and _is_seen() if show is None else show
    with _drawn(title, at_once=bool(show)) if wanted else nullcontext(given) as drawn:
        yield given if drawn is given else _both(drawn, given)


def _is_seen() -> bool:
    """Whether a bar would be seen: in a notebook, or on a terminal that can draw it."""
    try:
        on_terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        on_terminal = False
    return on_terminal or _in_notebook()


@contextmanager
def _drawn(title: str, *, at_once: bool) -> Iterator[Listener]:
    with ExitStack() as opened:
        bar: Show | None = None
        left = 1
        finished: set[int] = set()
        running: dict[int, float] = {}

        def open_bar() -> Show:
            nonlocal bar
            bar = bar or opened.enter_context((_notebook_bar if _in_notebook() else _terminal_bar)(title))
            return bar

        def show(what: str, share: float | None) -> None:
            open_bar()(what, share)

        def estimate(plan: Estimate) -> None:
            nonlocal left
            left = max(1, plan.parts - plan.done_parts)
            show("", 0.0)

        def count(what: str, done: float, total: float, then: str) -> None:
            if done < total:
                show(what, done / total)
            else:
                show(then, None)

        def update() -> None:
            unfinished = sum(share for index, share in running.items() if index not in finished)
            count("", len(finished) + unfinished, left, "writing")

        def moved(tasks: list[TaskProgress]) -> None:
            running.update((task.index, task.rows / max(1, task.total)) for task in tasks)
            update()

        def part_done(index: int) -> None:
            finished.add(index)
            update()

        if at_once:
            open_bar()
        try:
            yield Listener(
                on_stage=lambda what: show(what, None),
                on_planned=lambda done, total: count("planning", done, total, "planning"),
                on_estimate=estimate,
                on_progress=moved,
                on_part_done=part_done,
                on_fetched=lambda name, done, total: count("raw files", done, total, "raw files"),
            )
        except BaseException:
            if bar is not None:
                show("stopped", 0.0)
            raise
        if bar is not None:
            show("", 1.0)


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


def _both(first: Listener, second: Listener) -> Listener:
    def call(name: str) -> Callable[..., Any]:
        def both(*event: Any) -> None:
            getattr(first, name)(*event)
            getattr(second, name)(*event)

        return both

    return Listener(**{field.name: call(field.name) for field in fields(Listener)})
