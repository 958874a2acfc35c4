"""A progress bar for `rbdata.download(..., progress=True)` and the like: on a terminal (stderr) and in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from typing import Any

from ..workers.task import TaskProgress
from .request import Estimate, Listener


@contextmanager
def progress_listener(title: str, listener: Listener | None, show: bool) -> Iterator[Listener]:
    """A listener that draws a bar inside the block where ``show`` is True, and calls ``listener`` as well."""
    given = listener or Listener()
    with _drawn(title) if show else nullcontext(given) as drawn:
        yield given if drawn is given else _both(drawn, given)


@contextmanager
def _drawn(title: str) -> Iterator[Listener]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        row = progress.add_task(title, total=None)
        left = 1
        finished: set[int] = set()
        running: dict[int, float] = {}

        def stage(what: str) -> None:
            progress.update(row, description=f"{title}: {what}")

        def estimate(plan: Estimate) -> None:
            nonlocal left
            left = max(1, plan.parts - plan.done_parts)
            progress.update(row, description=title, total=1.0, completed=0.0)

        def update() -> None:
            unfinished = sum(share for index, share in running.items() if index not in finished)
            progress.update(row, completed=min(1.0, (len(finished) + unfinished) / left))

        def moved(tasks: list[TaskProgress]) -> None:
            running.update((task.index, task.rows / max(1, task.total)) for task in tasks)
            update()

        def part_done(index: int) -> None:
            finished.add(index)
            update()

        yield Listener(
            on_stage=stage,
            on_planned=lambda done, total: progress.update(row, total=total, completed=done),
            on_estimate=estimate,
            on_progress=moved,
            on_part_done=part_done,
            on_fetched=lambda name, done, total: progress.update(row, total=total, completed=done),
        )
        progress.update(row, description=title, total=1.0, completed=1.0)


def _both(first: Listener, second: Listener) -> Listener:
    def call(name: str) -> Callable[..., Any]:
        def both(*event: Any) -> None:
            getattr(first, name)(*event)
            getattr(second, name)(*event)

        return both

    return Listener(**{field.name: call(field.name) for field in fields(Listener)})
