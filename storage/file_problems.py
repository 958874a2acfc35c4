"""What is wrong with the files of a dataset, as far as their sizes show it: quick enough for a list of datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .durable import is_about_reader
from .manifest import Manifest


@dataclass(frozen=True)
class Problem:
    """Something wrong with one file (or, with path ``""``, with the data as a whole).

    Of a file of the right size, ``length`` bytes from ``begin`` on are wrong; otherwise (None) the whole file is.
    """

    path: str
    what: str
    begin: int = 0
    length: int | None = None


def check_sizes(folder: Path, manifest: Manifest) -> list[Problem]:
    """The files that are missing or not as large as the manifest states; none is read."""
    found = []
    for path, ranges in sorted(manifest.files.items()):
        what = _check_size(folder, path, sum(int(length) for length, _ in ranges))
        if what is not None:
            found.append(Problem(path, what))
    return found


def _check_size(folder: Path, path: str, size: int) -> str | None:
    try:
        if not (folder / path).is_file():
            return "is missing"
        found = (folder / path).stat().st_size
    except OSError as error:
        if is_about_reader(error):
            raise
        return f"cannot be read: {error.strerror}"
    return None if found == size else f"has {found} bytes instead of {size}"
