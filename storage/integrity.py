"""Compare a dataset's files with its manifest: sizes, checksums of every range, and the invariants of TED."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from ..amounts import plural
from ..amounts import size as amount
from ..errors import DamagedDatasetError, RbdataError
from .checksums import check_ranges
from .codecs import codec_of
from .html_table import html_table
from .manifest import Manifest, read_manifest
from .memory_map import verify_hint


@dataclass(frozen=True)
class Problem:
    """Something wrong with one file (or, with path ``""``, with the data as a whole)."""

    path: str
    what: str


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


def verify(
    folder: Path,
    *,
    quick: bool = False,
    invariants: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a dataset folder; ``quick`` looks at sizes only.

    ``on_progress(bytes checked, bytes in all)`` is called after every range. Raises NotADatasetError, FormatVersionError and
    DamagedDatasetError for a folder whose manifest cannot be used; all else is in the report.
    """
    manifest = read_manifest(folder)
    report = Report()
    for path, ranges in sorted(manifest.files.items()):
        report.files += 1
        what = _check_size(folder, path, sum(int(length) for length, _ in ranges))
        if what is not None:
            report.problems.append(Problem(path, what))
        if what is not None or quick:
            continue
        at = 0
        try:
            for number, (length, sound) in enumerate(check_ranges(folder / path, ranges)):
                if not sound:
                    what = f"checksum mismatch, bytes {at}-{at + length}{_where(manifest, path, number)}"
                    report.problems.append(Problem(path, what))
                at += length
                report.bytes += length
                if on_progress is not None:
                    on_progress(report.bytes, manifest.bytes)
        except OSError as error:  # a failing disk
            report.problems.append(Problem(path, f"cannot be read after byte {at}: {error.strerror}"))
    if report.ok and invariants and not quick:
        from .dataset import Dataset
        from .ted import check_invariants

        try:
            report.problems += [Problem("", what) for what in check_invariants(Dataset(folder))]
        except RbdataError as error:
            report.problems.append(Problem("", error.message))
    return report


def check_leaves(folder: Path, manifest: Manifest, names: Collection[str]) -> None:
    """Compare the leaves ``names`` with their checksums. Raises DamagedDatasetError where they differ."""
    for name in sorted(names):
        path = codec_of(manifest.schema[name]).damaged_file(folder, manifest.files)
        if path is not None:
            raise DamagedDatasetError(f"{folder / path} has a checksum mismatch", hint=verify_hint(folder))


def _check_size(folder: Path, path: str, size: int) -> str | None:
    try:
        if not (folder / path).is_file():
            return "is missing"
        found = (folder / path).stat().st_size
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if found == size else f"has {found} bytes instead of {size}"


def _where(manifest: Manifest, path: str, number: int) -> str:
    """The ranges of what parts are appended to are those parts: name the source object."""
    codecs = [codec for codec in map(codec_of, manifest.schema.states) if not codec.fixed_rows]
    appended = {codec.path(name) for codec in codecs for name in codec.appended}
    return f" ({manifest.parts[number].get('name')})" if path in appended and number < len(manifest.parts) else ""
