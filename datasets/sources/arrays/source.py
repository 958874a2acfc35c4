"""Arrays of a user's own as a source: ``rbdata convert own.npz --name my/x --map observation=obs``."""

from __future__ import annotations

from pathlib import Path

from ....errors import UsageError
from ...fetch import Location
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions
from ..options import declared
from ..source import Source


class ArraysSource(Source):
    """It has no names: what it converts is on this machine."""

    name = "arrays"
    home = "/"  # no place is searched
    options = declared("arrays")
    reads_any = True

    def recognises(self, path: Path) -> bool:
        from .files import PICKLES, SUFFIXES, ZARR, suffix_of, visible

        if path.is_file():
            return suffix_of(path) in (*SUFFIXES, *PICKLES)  # which of them are refused, the job says
        if any((path / name).is_file() for name in ("meta.json", "storage/meta.json", "state.json", *ZARR)):
            return True
        return path.is_dir() and any(suffix_of(one) in SUFFIXES for one in visible(path))

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        raise UsageError("arrays come from this machine", hint="`rbdata convert PATH --source arrays` reads them")

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        from .reader import reader_of_path

        return reader_of_path(location, options)
