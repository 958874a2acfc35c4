"""Fetch first, plan then: for jobs whose row counts are known only when all of their bytes have been read.

A job says what it expects, its files are decoded into *spools* in the working folder by worker processes, and the plan is
made from those. A spool that is complete stays for the next run, so an interrupted one goes on with the files left.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...storage.folder import DatasetPlace, check_space, remove_tree
from ..workers.pool import run_tasks
from .estimate import expected
from .protocol import SpoolingJob
from .request import Listener, Outlook


def spool_all(
    job: SpoolingJob, folder: Path, place: DatasetPlace, procs: Callable[[int], int], cpus: int, listener: Listener
) -> Outlook:
    """Decode all files into spools below ``folder``. ``procs`` says how many processes so many tasks get."""
    finished = 0
    try:
        listener.stage(job.first_stage)
        left = len(job.spooling(folder, 1))
        finished = job.parts() - left
        outlook = expected(job, place, finished)
        listener.outlook(outlook)
        check_space(place.path, outlook.disk_bytes, place.id)
        count = procs(left)
        tasks = job.spooling(folder, max(1, cpus // count))
        for index, _ in run_tasks(tasks, count, listener.progress):
            finished += 1
            listener.part_done(index)
    except BaseException:
        if not finished:
            remove_tree(folder)  # nothing worth keeping for the next run
        raise
    listener.stage("putting the rows in order")
    return outlook
