"""Where a job reads its raw files: in a sandbox if native libraries read them, else in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import CorruptSourceError
from ...storage.writer import ColumnWriter
from ..formats.hdf5_checks import root_names
from ..workers.sandbox import RawFiles, Sandbox
from ..workers.task import OnBlock, Task
from .protocol import Job, Plan
from .row_source import SampleRows

Ranges = dict[str, list[list[object]]]


class RawReading:
    """The steps of one job that read its whole files, given by url.

    A sandbox works on a copy of the job; what a step sets in it is set in the job as well. ``files`` is None where there is
    none. Every step raises what the job raises, and CorruptSourceError where the sandbox ends.
    """

    def __init__(self, job: Job, paths: Mapping[str, Path]) -> None:
        self._job, self._paths = job, paths
        self.files = _raw_files(job, paths) if job.native else None
        self._copy = _Copy(job)
        modules = [type(job).__module__, *job.native]
        self._sandbox = Sandbox(self._copy, self.files, modules) if self.files else None

    def __enter__(self) -> RawReading:
        return self

    def __exit__(self, *_: object) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    def inspect(self) -> None:
        """`Job.inspect_files`."""
        self._set(self._call(_inspect, self._paths))

    def plan(
        self, open_columns: Callable[[], ColumnWriter], on_planned: Callable[[int, int], None]
    ) -> tuple[Plan, Ranges]:
        """`Job.plan` into columns that are opened here or there, and what closing them returns."""
        plan, ranges, state = self._call(_plan, self._paths, open_columns, on_progress=on_planned)
        self._set(state)
        return plan, ranges

    def sample_rows(self) -> SampleRows:
        """`Job.sample_rows`."""
        found: SampleRows = self._call(_sample_rows)
        return found

    def fill(self, task: Task, on_block: OnBlock) -> dict[str, Any]:
        """Do the task of a part."""
        record: dict[str, Any] = self._call(_fill, task, on_progress=on_block)
        return record

    def _call(
        self, function: Callable[..., Any], *args: Any, on_progress: Callable[..., None] = lambda *_: None
    ) -> Any:
        if self._sandbox is None:
            return function(self._copy, on_progress, *args)
        return self._sandbox.call(function, *args, on_progress=on_progress)

    def _set(self, state: Mapping[str, Any]) -> None:
        vars(self._job).update(state)


class _Copy:
    """What a sandbox works on: a job, and what it was made with, which is not sent back."""

    def __init__(self, job: Job) -> None:
        self.job, self._made_with = job, dict(vars(job))

    @property
    def state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self.job).items() if self._made_with.get(name) is not value}


def _inspect(copy: _Copy, _: Any, paths: Mapping[str, Path]) -> dict[str, Any]:
    copy.job.inspect_files(paths)
    return copy.state


def _plan(
    copy: _Copy, on_planned: Any, paths: Mapping[str, Path], open_columns: Callable[[], ColumnWriter]
) -> tuple[Plan, Ranges, dict[str, Any]]:
    columns = open_columns()
    try:
        plan = copy.job.plan(columns, paths, on_planned)
        return plan, columns.close(), copy.state
    finally:
        columns.abandon()


def _sample_rows(copy: _Copy, _: Any) -> SampleRows:
    return copy.job.sample_rows()


def _fill(_: _Copy, on_block: OnBlock, task: Task) -> dict[str, Any]:
    return task(on_block)


def _raw_files(job: Job, paths: Mapping[str, Path]) -> RawFiles:
    size = 0
    for path in paths.values():
        with suppress(OSError):  # its reader says so
            size += path.stat().st_size
    name = next(iter(paths)) if len(paths) == 1 else f"one of the {len(paths)} files at {job.location.url}"
    return RawFiles(name, size)


def hdf5_names(path: Path) -> set[str]:
    """Names of the members and attributes of an HDF5 file's root group; empty for other files."""
    try:
        with Sandbox(path, RawFiles(path.name, path.stat().st_size), ["h5py"]) as sandbox:
            names: set[str] = sandbox.call(_root_names)
            return names
    except (CorruptSourceError, OSError):
        return set()


def _root_names(path: Path, _: Any) -> set[str]:
    return root_names(path)
