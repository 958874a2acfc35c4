"""OpenML: tables with a label, as one-step episodes (contextual bandits).

Vanschoren, van Rijn, Bischl, Torgo, "OpenML: networked science in machine learning", SIGKDD Explorations 15 (2), 2013.
A name is a number (``61``), a name (``iris``: the oldest active version), a name with a version (``adult@2``), or one of
TorchRL's (``adult_onehot``; see `PRESETS`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ....errors import ObjectNotFoundError, UsageError
from ...fetch import Location, RemoteObject
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions, RawObject
from ..catalogue_entry import ListedDataset
from ..options import declared
from ..source import Source, only_file, only_object
from .client import Api, Description, path_of

HOME = "https://www.openml.org"
_NAME = re.compile(r"(?P<number>[1-9]\d{0,8})|(?P<name>[A-Za-z_][\w.()+-]{0,254})(?:@(?P<version>[1-9]\d{0,5}))?")

_ADULT = {"target": "occupation", "exclude": "class", "missing": "drop"}
#: Tables that TorchRL offers under names of its own (`OpenMLExperienceReplay`): the number, and the options where none are
#: given, for the same version, label and scaling.
PRESETS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "adult_num": (179, {**_ADULT, "standardize": "all"}),
    "adult_onehot": (179, {**_ADULT, "standardize": "numeric", "one_hot": True}),
    "mushroom_num": (24, {"missing": "code", "standardize": "all"}),
    "mushroom_onehot": (24, {"missing": "code", "one_hot": True}),
    "covertype": (150, {"standardize": "all"}),
    "shuttle": (40685, {"standardize": "all"}),
    "magic": (1120, {"standardize": "all"}),
}


class OpenmlSource(Source):
    """Options have no default here: those of a preset come first, then those of `TableOptions`."""

    name = "openml"
    home = HOME
    options = declared("openml")
    supports = frozenset()
    open_ended = True

    def list_remote(self, location: Location, on_progress: Callable[[int, int], None]) -> Iterator[ListedDataset]:
        """Under the names by which they are asked for: the oldest version by its name alone, others with their version."""
        found = Api(location).list_all(on_progress)
        oldest = {one.name: one.version for one in sorted(found, key=lambda one: one.version, reverse=True)}
        for one in found:
            name = one.name if one.version == oldest[one.name] else f"{one.name}@{one.version}"
            yield ListedDataset(name if self.knows(name) else str(one.id), one.rows, one.rows)

    def knows(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """Asks the API which dataset is meant and where its file is. Raises FetchErrors, UsageError."""
        from .reader import OpenmlReader, table_options

        preset = PRESETS.get(name, (0, {}))[1]
        table, api = table_options(options, preset), Api(location)
        number, notes = _number(api, name)
        about = api.describe(number)
        if not about.url:
            raise ObjectNotFoundError(f"OpenML states no file for {about.name}", hint="try another version of it")
        path = path_of(about.url)
        answers = [(path, RemoteObject(f"{location.url}/{path}", path.rpartition("/")[2])) for path in api.paths]
        raws = [RawObject(path, item, location) for path, item in [*answers, (path, location.stat(path))]]
        return OpenmlReader(about, raws, table, notes, options)

    def recognises(self, path: Path) -> bool:
        return only_file(path, ".arff") is not None

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """A folder with one ARFF file; its label has to be named."""
        from .reader import OpenmlReader, table_options

        item = only_object(location, "ARFF", ".arff")
        about, file = Description(0, item.name.rpartition(".")[0]), RawObject(item.name, item, location)
        return OpenmlReader(about, [file], table_options(options, {}), (), options)


def _number(api: Api, name: str) -> tuple[int, list[str]]:
    """The number of the dataset that is meant, and what to say about the choice."""
    if name in PRESETS:
        number, options = PRESETS[name]
        return number, [f"Preset {name}: {', '.join(f'{key} {value}' for key, value in options.items())}."]
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"{name!r} is not the name of an OpenML dataset", hint="for example: 61, iris, adult@2")
    if match["number"]:
        return int(match["number"]), []
    number, found = api.find(match["name"], int(match["version"]) if match["version"] else None)
    others = [f"{version} (number {other})" for version, other in found if other != number]
    return number, [f"There are other versions of {name}: {', '.join(others)}, perhaps more."] if others else []
