"""Compare a dataset's files with its manifest: sizes, checksums of every range, and the invariants of TED."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ..amounts import plural
from ..amounts import size as amount
from ..errors import DamagedDatasetError, DatasetBusyError, RbdataError
from .checksums import check_range
from .codecs import codec_of
from .file_problems import Problem, check_sizes
from .html_table import html_table
from .manifest import Manifest
from .memory_map import verify_hint
from .snapshot import pinned, read_snapshot


@dataclass
class Report:
    """What ``verify`` found."""

    files: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def _repr_html_(self) -> str:
        state = "good" if self.ok else "damaged"
        title = f"{state}: {plural(self.files, 'file')}, {amount(self.bytes)} read"
        return html_table(title, [(problem.path or "data", problem.what) for problem in self.problems])


@dataclass(frozen=True)
class _Folder:
    path: Path
    manifest: Manifest


@dataclass(frozen=True)
class _Range:
    """One range of a file: its number, where it begins, its length and checksum."""

    path: str
    number: int
    begin: int
    length: int
    crc32c: str


def verify(
    folder: Path,
    *,
    quick: bool = False,
    invariants: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a dataset folder; ``quick`` looks at sizes only. Does without torch, and reads with several threads.

    ``on_progress(bytes checked, bytes in all)`` is called after every range. Raises NotADatasetError, FormatVersionError and
    DamagedDatasetError for a folder whose manifest cannot be used, DatasetBusyError for one that is replaced or deleted
    meanwhile; all else is in the report.
    """
    with pinned(folder) as pin:
        report = _verify(folder, quick, invariants, on_progress)
        if report.ok or pin.is_unchanged():
            return report
    raise DatasetBusyError(f"{folder} was replaced or deleted while it was verified", hint="verify it again")


def _verify(folder: Path, quick: bool, invariants: bool, on_progress: Callable[[int, int], None] | None) -> Report:
    manifest, problems = read_snapshot(folder, lambda manifest: (manifest, check_sizes(folder, manifest)))
    report = Report(files=len(manifest.files), problems=problems)
    if not quick:
        wrong = {problem.path for problem in report.problems}
        _check_contents(
            folder, manifest, [path for path in sorted(manifest.files) if path not in wrong], report, on_progress
        )
        report.problems.sort(key=lambda problem: (problem.path, problem.begin))
    if report.ok and invariants and not quick:
        from .ted import check_invariants

        try:
            report.problems += [Problem("", what) for what in check_invariants(_Folder(folder, manifest))]
        except RbdataError as error:
            report.problems.append(Problem("", error.message))
    return report


def _check_contents(
    folder: Path,
    manifest: Manifest,
    paths: Sequence[str],
    report: Report,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Sum every range of files of the right size."""

    def check(one: _Range) -> tuple[_Range, int, bool, str | None]:
        try:
            return one, *check_range(folder / one.path, one.begin, one.length, one.crc32c), None
        except OSError as error:  # a failing disk
            return one, 0, False, f"cannot be read after byte {one.begin}: {error.strerror}"

    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1), "rbdata-verify")
    try:
        for one, found, sound, problem in pool.map(check, _ranges(manifest, paths)):
            if not sound:
                end = one.begin + one.length
                what = f"checksum mismatch, bytes {one.begin}-{end}{_where(manifest, one.path, one.number)}"
                report.problems.append(Problem(one.path, problem or what, one.begin, one.length))
            report.bytes += found
            if on_progress is not None:
                on_progress(report.bytes, manifest.bytes)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _ranges(manifest: Manifest, paths: Iterable[str]) -> Iterator[_Range]:
    for path in paths:
        begin = 0
        for number, (length, crc32c) in enumerate(manifest.files[path]):
            yield _Range(path, number, begin, int(length), crc32c)
            begin += int(length)


def check_leaves(folder: Path, manifest: Manifest, names: Collection[str]) -> None:
    """Compare the leaves ``names`` with their checksums. Raises DamagedDatasetError where they differ."""
    for name in sorted(names):
        path = codec_of(manifest.schema[name]).damaged_file(folder, manifest.files)
        if path is not None:
            raise DamagedDatasetError(f"{folder / path} has a checksum mismatch", hint=verify_hint(folder))


def _where(manifest: Manifest, path: str, number: int) -> str:
    """The ranges of what parts are appended to are those parts: name the source object."""
    codecs = [codec for codec in map(codec_of, manifest.schema.states) if not codec.fixed_rows]
    appended = {codec.path(name) for codec in codecs for name in codec.appended}
    return f" ({manifest.parts[number].get('name')})" if path in appended and number < len(manifest.parts) else ""
