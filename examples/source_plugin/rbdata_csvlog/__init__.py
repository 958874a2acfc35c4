"""Episodes logged as CSV files, one file for each dataset: ``<place>/<name>.csv``.

This module is imported for `rbdata list` and `rbdata download --help`, so it stays light: the reader, which needs numpy, is
imported when a dataset is opened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rbdata.datasets.sources import ConvertOptions, Location, Reader, Source, SourceOption, only_object


class CsvLogSource(Source):
    """Names are those of the files, without ``.csv``."""

    name = "csvlog"
    home = "https://csvlog.example.org/logs"
    options = (
        SourceOption("actions", "what the column action holds", choices=("discrete", "continuous"), default="discrete"),
    )
    supports = frozenset()  # nothing in such a dataset is large, and all successors are known
    #: A mirror may hold files that `names` does not list.
    open_ended = True

    def names(self) -> Sequence[str]:
        """What is published at ``home``."""
        return ["cartpole", "pendulum"]

    def knows(self, name: str) -> bool:
        return re.fullmatch(r"[\w-]+", name) is not None

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """Raises ObjectNotFoundError where the place has no such file."""
        from .reader import CsvLogReader

        return CsvLogReader(name, location, location.stat(f"{name}.csv"), options)

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """A folder with one CSV file."""
        from .reader import CsvLogReader

        return CsvLogReader(None, location, only_object(location, "CSV", ".csv"), options)
