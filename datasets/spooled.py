"""Fetch first, plan then: for jobs whose row counts are known only when all of their bytes have been read.

A job says what it expects, its files are decoded into *spools* in the working folder by worker processes, and the plan is
made from those. A spool that is complete stays for the next run, so an interrupted one goes on with the files left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..storage.folder import DatasetPlace, check_space, free_bytes, remove_tree
from .pool import run_tasks
from .request import Listener, Outlook
from .source import Job, SpoolingJob


def spooling(job: Job) -> SpoolingJob | None:
    """The job as one that spools, if it is one."""
    return cast("SpoolingJob", job) if hasattr(job, "spooling") else None


def expected(job: SpoolingJob, place: DatasetPlace, done: int = 0) -> Outlook:
    """What is likely to be fetched and written. Reads the heads of a few files."""
    expectation = job.expect()
    left = 1 - done / max(1, job.parts())
    return Outlook(
        id=place.id,
        path=place.path,
        location=job.location.url,
        shards=job.parts(),
        fetch_bytes=int(expectation.fetch_bytes * left),
        steps=expectation.steps,
        episodes=expectation.episodes,
        disk_bytes=int(expectation.disk_bytes * left),
        free_bytes=free_bytes(place.path),
        done_parts=done,
        parts=job.parts(),
        part_names=expectation.part_names,
        why=getattr(job, "why", ""),
        estimated=True,
    )


def spool_all(
    job: SpoolingJob, folder: Path, place: DatasetPlace, procs: Callable[[int], int], cpus: int, listener: Listener
) -> Outlook:
    """Decode all files into spools below ``folder``. ``procs`` says how many processes so many tasks get."""
    finished = 0
    try:
        listener.stage(getattr(job, "first_stage", "sampling frames"))
        left = len(job.spooling(folder, 1))
        finished = job.parts() - left
        outlook = expected(job, place, finished)
        listener.outlook(outlook)
        check_space(place.path, outlook.disk_bytes, place.id)
        count = procs(left)
        tasks = job.spooling(folder, max(1, cpus // count))
        for index, _ in run_tasks(cast("Job", _Worker(job.spool)), tasks, count, listener.progress):
            finished += 1
            listener.part_done(index)
    except BaseException:
        if not finished:
            remove_tree(folder)  # nothing worth keeping for the next run
        raise
    listener.stage("putting the rows in order")
    return outlook


@dataclass(frozen=True)
class _Worker:
    """What the pool needs of a job."""

    fill: Callable[..., dict[str, Any]]
