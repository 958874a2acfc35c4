"""How many processes do some work, and the engine that is this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ... import settings
from .task import (
    Engine,
    OnBlock,
    OnOutput,
    Report,
    T,
    TaskProgress,
    Work,
    do_task,
    progress_of,
    usable_cpus,
    write_to_stderr,
)

#: Processes, unless another number is asked for: more make a disk or a server no faster.
MAX_PROCS = 8
#: Memory that C libraries may take for files of a size: a base, and bytes per byte.
_MEMORY, _MEMORY_A_BYTE = 2 << 30, 4


def usual_procs(tasks: int, asked: int | None = None) -> int:
    """The number of worker processes for so many tasks: as asked for, as the settings say, or one per processor, at most 8."""
    procs = settings.procs(asked)
    return min(min(MAX_PROCS, usable_cpus()) if procs is None else procs, max(1, tasks))


def memory_for(size: int) -> int:
    """Bytes of memory that a worker may take in which C libraries read files of ``size`` bytes: they trust what files state."""
    return _MEMORY + _MEMORY_A_BYTE * size


def threads_of_task(procs: int, engine: Engine | None) -> int:
    """How many threads each of ``procs`` tasks may use side by side; on a cluster a task has one processor."""
    return 1 if engine is not None else max(1, usable_cpus() // max(1, procs))


def open_local(procs: int, modules: Sequence[str] = (), *, memory: int | None = None) -> Engine:
    """The engine of ``procs`` processes (`LocalEngine`); 0: this one."""
    if not procs:
        return HereEngine()
    from .local_engine import LocalEngine

    return LocalEngine(procs, modules, memory=memory)


class HereEngine:
    """The `Engine` that does the work in this process, task by task."""

    name, parallel = "local, 1 process", 1
    on_output: OnOutput = staticmethod(write_to_stderr)

    def run(self, work: Work[T], tasks: Sequence[T], report: Report) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield ``(task index, record)`` as tasks are done."""
        for task in tasks:
            yield task.index, work(task, lambda *done, task=task: report([progress_of(task, *done)]))

    def close(self) -> None:
        """There is nothing to end."""


@dataclass(frozen=True)
class _Call:
    """A call of a function, as a task."""

    label: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    index: int = 0
    rows: int = -1

    def __call__(self, on_block: OnBlock) -> dict[str, Any]:
        return {"result": self.function(*self.args, lambda done, total: on_block(done, total, 0))}


def call(
    engine: Engine,
    label: str,
    function: Callable[..., Any],
    *args: Any,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Any:
    """``function(*args, on_progress)`` on an engine; ``label`` is what it reads."""

    def report(tasks: list[TaskProgress]) -> None:
        for one in tasks:
            on_progress(one.rows, one.fetched)

    ((_, record),) = engine.run(do_task, [_Call(label, function, args)], report)
    return record["result"]
