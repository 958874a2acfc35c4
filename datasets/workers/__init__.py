"""Worker processes, and the engines that run tasks in them: on this machine (``local``) or on a Ray cluster (``ray``).

C libraries (HDF5, Arrow, FFmpeg) and users' functions run in them: what crashes there, or takes all memory, is an error that
names the file or the steps, in a process that goes on.

Read in this order: `task` (tasks, progress, `Engine`, which does the work in this process), `local_engine`, `ray_cluster`.
Importing this package is cheap: engines are imported when they are opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import UsageError
from .task import Engine

NAMES = ("local", "ray")


def open_cluster(name: str, *, procs: int | None, address: str | None) -> Engine | None:
    """The engine ``ray`` (``procs``: all processors by default); None for ``local``: who has work starts processes for it.

    Raises UsageError for other names, MissingExtraError if ``ray`` is not installed.
    """
    if name == "ray":
        from .ray_cluster import RayEngine

        return RayEngine(procs, address)
    if name != "local":
        raise UsageError(f"there is no engine {name!r}", hint=f"engines: {', '.join(NAMES)}")
    if address is not None:
        raise UsageError("an address is only for the engine ray", hint="add --engine ray, or leave --address out")
    return None


def open_local(procs: int, modules: Sequence[str] = (), *, memory: int | None = None) -> Engine:
    """The engine of ``procs`` processes (`LocalEngine`); 0: this one."""
    if not procs:
        return Engine()
    from .local_engine import LocalEngine

    return LocalEngine(procs, modules, memory=memory)
