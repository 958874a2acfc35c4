"""Worker processes, and the engines that run tasks: on this machine's processors (``local``) or on a Ray cluster (``ray``).

C libraries (HDF5, Arrow, FFmpeg) and users' functions run in them: what crashes there, or takes all memory, is an error that
names the file or the steps, in a process that goes on.

Read in this order: `task` (tasks, progress, the interface of engines), `open_engine` and one engine (`here`, `local_engine`,
`ray_cluster`). Importing this package is cheap: engines are imported when they are opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from ...errors import UsageError
from .here import open_local
from .task import Engine

NAMES = ("local", "ray")


@contextmanager
def open_cluster(name: str, *, procs: int | None, address: str | None) -> Iterator[Engine | None]:
    """The engine ``ray``, closed at the end; None for ``local``, for which downloads start their own processes.

    Raises as `open_engine`.
    """
    if name == "local" and address is None:
        yield None
        return
    with closing(open_engine(name, procs=procs, address=address)) as engine:
        yield engine


def open_engine(name: str, *, procs: int | None, address: str | None = None, preload: Sequence[str] = ()) -> Engine:
    """The engine of this name; ``procs`` defaults to one process locally and to all processors of a cluster;
    0 is this process.

    ``preload`` are the modules that the work needs, imported before local workers are forked.

    Raises UsageError for other names, MissingExtraError if ``ray`` is not installed.
    """
    if name == "local":
        if address is not None:
            raise UsageError("an address is only for the engine ray", hint="add --engine ray, or leave --address out")
        return open_local(1 if procs is None else procs, preload)
    if name == "ray":
        from .ray_cluster import RayEngine

        return RayEngine(procs, address)
    raise UsageError(f"there is no engine {name!r}", hint=f"engines: {', '.join(NAMES)}")
