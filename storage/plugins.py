"""The registry of sources: the built-in ones, and those that other packages register.

A source is an entry point of the group ``rbdata.sources``: a name, and a class derived from `datasets.sources.source.Source`.
A package registers its own in its ``pyproject.toml``:

    [project.entry-points."rbdata.sources"]
    csvlog = "rbdata_csvlog:CsvLogSource"

BUILT_IN holds the same for the sources of this package. A source is imported on first use. `settings` reads names and options
from here, open datasets read scores and environments from sources, and call `preprocess` and `load`. So this module is below
the sources, and what `load` here returns is untyped: `datasets.catalogue.load_source` is the typed way to a source.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import DatasetNotFoundError, MissingExtraError, PluginWarning, reason

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "rbdata.sources"

#: Source name -> module and class.
BUILT_IN = {
    "atari": "rbdata.datasets.sources.atari.source:AtariSource",
    "d4rl": "rbdata.datasets.sources.d4rl.source:D4rlSource",
    "minari": "rbdata.datasets.sources.minari.source:MinariSource",
    "openml": "rbdata.datasets.sources.openml.source:OpenmlSource",
    "ogbench": "rbdata.datasets.sources.ogbench.source:OgbenchSource",
    "gen_dgrl": "rbdata.datasets.sources.gen_dgrl.source:GenDgrlSource",
    "exorl": "rbdata.datasets.sources.exorl.source:ExorlSource",
    "vd4rl": "rbdata.datasets.sources.vd4rl.source:VD4RLSource",
    "roboset": "rbdata.datasets.sources.roboset.source:RobosetSource",
    "rlds": "rbdata.datasets.sources.rlds.source:RldsSource",
    "openx": "rbdata.datasets.sources.rlds.source:OpenxSource",
    "lerobot": "rbdata.datasets.sources.lerobot.source:LerobotSource",
    "gymnasium": "rbdata.datasets.sources.gymnasium.source:GymnasiumSource",
    "arrays": "rbdata.datasets.sources.arrays.source:ArraysSource",
}

#: The suffixes of a file that a source may recognise. Those that are not here know folders alone; plug-ins are always asked.
SINGLE_FILES: Mapping[str, tuple[str, ...]] = {
    "d4rl": (".hdf5", ".h5"),
    "minari": (".hdf5", ".h5"),
    "openml": (".arff",),
    "ogbench": (".npz",),
    "gen_dgrl": (".xz", ".tar"),
    "exorl": (".zip",),
    "vd4rl": (".npz", ".hdf5"),
    "roboset": (".h5",),
}

#: Sources that read only this machine, so that no mirror holds anything for them.
WITHOUT_MIRRORS = frozenset({"arrays"})

#: The modules of the functions that methods of `dataset.Dataset` call, as text because this module is below them.
_ABOVE = {"preprocess": "rbdata.preprocess", "load": "rbdata.loading"}

#: The namespace of datasets that users make; no source can have this name.
MINE = "my"

#: A name is the first part of dataset ids, and part of the name of an environment variable.
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@lru_cache(maxsize=1)
def registered() -> Mapping[str, EntryPoint]:
    """Return all sources by name, not loaded; the built-in ones first.

    Warns about plug-ins that are left out, because their name is invalid or taken.
    """
    from importlib.metadata import EntryPoint, entry_points

    found = {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}
    for entry in entry_points(group=GROUP):
        if _NAME.fullmatch(entry.name) is None or entry.name == MINE:
            _warn(entry, "a source's name is lower-case letters, digits and underscores, and not 'my'")
        elif entry.name in found and found[entry.name].value != entry.value:
            _warn(entry, f"{found[entry.name].value} already has this name")
        else:
            found[entry.name] = entry
    return found


def load(name: str) -> Any:
    """Return a new object of the source with this name.

    Raises DatasetNotFoundError, naming the known sources, and MissingExtraError for a plug-in that cannot be imported.
    """
    entry = registered().get(name)
    if entry is None:
        raise DatasetNotFoundError(f"there is no source {name!r}", hint=f"sources: {', '.join(registered())}")
    try:
        return entry.load()()
    except Exception as error:
        if name in BUILT_IN:
            raise
        message = f"the source {name} cannot be loaded from {entry.value}: {type(error).__name__}: {reason(error)}"
        raise MissingExtraError(message, hint="update or uninstall the package that registers it") from error


def above(name: str) -> Any:
    """Return the function ``rbdata.preprocess`` or ``rbdata.load``."""
    return getattr(import_module(_ABOVE[name]), name)


def options_from_settings() -> Iterator[Any]:
    """Yield the options that sources declare with ``setting=True``; plug-ins that cannot be loaded have none."""
    for name in registered():
        try:
            source = load(name)
        except MissingExtraError:
            continue  # reported where the source itself is asked for
        yield from (option for option in source.options if option.setting)


def _warn(entry: EntryPoint, problem: str) -> None:
    package = f" of {entry.dist.name}" if entry.dist else ""
    message = f"the source {entry.name!r}{package} ({entry.value}) is left out: {problem}"
    warnings.warn(message, PluginWarning, stacklevel=3)
