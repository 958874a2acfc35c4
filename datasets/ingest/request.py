"""What is wanted, what is about to happen, what happened: the records that go in and out of a download."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...storage.manifest import Manifest
from ..fetch import FetchOptions
from ..workers.task import TaskProgress
from .protocol import ConvertOptions


@dataclass(frozen=True)
class Request:
    """What is wanted.

    ``mirror`` replaces the provider's own place. ``procs`` worker processes fill parts (None: one for each processor, up
    to 8). ``keep_raw`` also stores the raw objects, below ``<root>/.raw/``, laid out as a mirror. ``force`` begins anew
    and replaces what is there (an interrupted run with ``force`` is continued by the next one). ``dry_run`` plans and stops.
    """

    id: str
    root: Path | None = None
    mirror: str | None = None
    procs: int | None = None
    options: ConvertOptions = field(default_factory=ConvertOptions)
    fetch: FetchOptions = field(default_factory=FetchOptions)
    keep_raw: bool = False
    force: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Outlook:
    """What a run is about to do; a dry run ends with it. Bytes are those still to be fetched and written.

    ``unread``: steps and episodes (0 here) are known only when the raw files have been fetched. ``estimated``: they are
    guesses. ``fetched``: raw files were fetched whole already, as an earlier outlook said.
    """

    id: str
    path: Path
    location: str
    shards: int
    fetch_bytes: int
    steps: int
    episodes: int
    disk_bytes: int
    free_bytes: int
    done_parts: int
    parts: int
    part_names: Sequence[str] = ()
    notes: Sequence[str] = ()
    #: Why it comes from there, where that needs saying.
    why: str = ""
    unread: bool = False
    estimated: bool = False
    fetched: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a run did: found the dataset ``complete``, has ``written`` it, or has ``planned`` it only."""

    id: str
    path: Path
    action: Literal["complete", "written", "planned"]
    manifest: Manifest | None
    seconds: float = 0.0
    outlook: Outlook | None = None


@dataclass
class Listener:
    """How a run reports; every member may be replaced. The library itself never prints."""

    #: A sentence about what begins now.
    stage: Callable[[str], None] = lambda text: None
    #: Shards planned so far, and in all.
    planned: Callable[[int, int], None] = lambda done, total: None
    outlook: Callable[[Outlook], None] = lambda outlook: None
    progress: Callable[[list[TaskProgress]], None] = lambda tasks: None
    part_done: Callable[[int], None] = lambda index: None
    #: With ``keep_raw``: an object, the bytes stored so far of all objects, and the bytes of all.
    fetched: Callable[[str, int, int], None] = lambda name, done, total: None
