"""OpenML: tables with a label, as one-step episodes (contextual bandits).

Vanschoren, van Rijn, Bischl, Torgo, "OpenML: networked science in machine learning", SIGKDD Explorations 15 (2), 2013.
A name is a number (``61``), a name (``iris``: the oldest active version), a name with a version (``adult@2``), or one of
TorchRL's (``adult_onehot``; see `table_options.PRESETS`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from ....errors import ObjectNotFoundError, UsageError
from ...fetch import Location, RemoteObject, open_location
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions, RawObject
from ..catalogue_entry import RemoteDataset
from ..options import declared
from ..source import Source, only_file, only_object
from .client import Api, Description, Listed, path_of
from .table_options import PRESETS, Preset, TableOptions, table_options

HOME = "https://www.openml.org"

_NAME = re.compile(r"(?P<number>[1-9]\d{0,8})|(?P<name>[A-Za-z_][\w.()+-]{0,254})(?:@(?P<version>[1-9]\d{0,5}))?")
_PARQUET = (".pq", ".parquet")


class OpenmlSource(Source):
    """Options have no default here: those of a preset come first, then those of `TableOptions`."""

    name = "openml"
    home = HOME
    options = declared("openml")
    supports = frozenset()
    open_ended = True

    def list_remote(self, location: Location, on_progress: Callable[[int, int], None]) -> Iterator[RemoteDataset]:
        return _named(Api(location).list_all(on_progress))

    def knows(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """Asks the API which dataset is meant and where its file is. Raises FetchErrors, UsageError."""
        from .reader import OpenmlReader

        preset = PRESETS.get(name)
        table = table_options(options, preset.options if preset else {})
        api = Api(location)
        number, notes = _number(api, name, preset)
        about = api.describe(number)
        file, is_parquet = self._file(about, location, table)
        answers = [(path, RemoteObject(f"{location.url}/{path}", path.rpartition("/")[2])) for path in api.paths]
        mirrored = [RawObject(path, item, location) for path, item in answers]
        return OpenmlReader(about, file, table, notes, mirrored, options, is_parquet=is_parquet)

    def recognises(self, path: Path) -> bool:
        from ...formats.arrow import holds_steps  # imports numpy

        file = only_file(path, ".arff", *_PARQUET)
        return file is not None and not (file.suffix.lower() in _PARQUET and holds_steps(file))

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """A folder with one ARFF or Parquet file; its label has to be named."""
        from .reader import OpenmlReader

        table = table_options(options, {})
        item = only_object(location, "ARFF or Parquet", ".arff", *_PARQUET)
        about, file = Description(0, item.name.rpartition(".")[0]), RawObject(item.name, item, location)
        return OpenmlReader(about, file, table, (), (), options, is_parquet=item.name.lower().endswith(_PARQUET))

    def _file(self, about: Description, location: Location, table: TableOptions) -> tuple[RawObject, bool]:
        """The ARFF file, or the Parquet one where that is asked for, or all there is; and whether it is Parquet."""
        tries = [(about.url, False), (about.parquet_url, True)]
        if table.format != "auto":
            tries = [entry for entry in tries if entry[1] == (table.format == "parquet")]
        elif find_spec("pyarrow") is None and about.url:
            tries = tries[:1]
        failures = []
        for url, is_parquet in tries:
            if not url:
                continue
            path, place = path_of(url), location
            if is_parquet and location.url.rstrip("/") == self.home:  # where Parquet files are on their own host
                place = open_location(f"https://{urlsplit(url).hostname}", options=location.options)
            try:
                return RawObject(path, place.stat(path), place), is_parquet
            except ObjectNotFoundError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        message = f"OpenML states no {'file' if table.format == 'auto' else table.format} for {about.name}"
        raise ObjectNotFoundError(message, hint="try another version of it, or another --format")


def _named(found: Sequence[Listed]) -> Iterator[RemoteDataset]:
    """Under the names by which they are asked for: the oldest version by its name alone, others with their version."""
    oldest = {one.name: one.version for one in sorted(found, key=lambda one: one.version, reverse=True)}
    for one in found:
        name = one.name if one.version == oldest[one.name] else f"{one.name}@{one.version}"
        yield RemoteDataset(name if _NAME.fullmatch(name) else str(one.id), one.rows, one.rows)


def _number(api: Api, name: str, preset: Preset | None) -> tuple[int, list[str]]:
    """The number of the dataset that is meant, and what to say about the choice."""
    if preset is not None:
        said = {key: ", ".join(value) if isinstance(value, tuple) else value for key, value in preset.options.items()}
        return preset.number, [f"Preset {name}: {', '.join(f'{key} {value}' for key, value in said.items())}."]
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"{name!r} is not the name of an OpenML dataset", hint="for example: 61, iris, adult@2")
    if match["number"]:
        return int(match["number"]), []
    version = int(match["version"]) if match["version"] else None
    number, found = api.find(match["name"], version)
    others = [f"{version} (number {other})" for version, other in found if other != number]
    return number, [f"There are other versions of {name}: {', '.join(others)}, perhaps more."] if others else []
