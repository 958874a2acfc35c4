"""What a source is: the data of one provider, by name, and the options that it declares.

A source lists the names of its datasets, declares its options, and turns a name into a `Reader`, which downloading and
converting run alike. The command line, the check of every download, the settings and the tables in ``docs/sources`` are made
from the declared options. `storage.plugins` says how a source is registered; docs/new_source.md shows how one is written.

This module and the modules that define sources are imported for ``rbdata download --help``: nothing heavy here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ... import settings
from ...errors import ObjectNotFoundError, UsageError
from ...storage.keywords import nearest
from ...storage.reference_scores import ReferenceScores, recorded_scores
from ..fetch import open_location
from ..fetch.location import join_path, without_login
from .catalogue_entry import CatalogueEntry, CatalogueFile, ListedDataset, RemoteListing, cache_listing, read_listing
from .known_environment import KnownEnvironment, stated_environment
from .options import RESERVED, SourceOption

if TYPE_CHECKING:
    from ...storage.manifest import Manifest
    from ..fetch import FetchOptions, Location, RemoteObject
    from ..ingest.reader import Reader
    from ..ingest.records import ConvertOptions


class Source:
    """One provider.

    A derived class sets ``name`` (that of its entry point) and ``home``, and defines `find`; all else has a default. It is
    imported for `rbdata list` and `rbdata download --help`, so readers and heavy packages are imported in `find`.
    """

    name: str
    #: The options that it declares.
    options: tuple[SourceOption, ...] = ()
    #: The general options (fields of `ConvertOptions`) that have an effect on its datasets. ``parts`` and ``time_limit``
    #: choose what is in a dataset and are refused by a source that does not support them; the others say how something is
    #: stored that a dataset may lack.
    supports: frozenset[str] = frozenset({"codec", "layout", "unknown_next"})
    #: Whether its datasets are made on this machine: no place is searched.
    makes: bool = False
    #: Whether any name may be a dataset of this source: a bare name is then resolved to it only if ``names`` lists it.
    open_ended: bool = False
    #: Whether it reads files of other sources as well: it gets a path only if no other source recognises it.
    reads_any: bool = False
    #: Whether its datasets state reference scores of their own, unknown before they are downloaded.
    scores_in_datasets: bool = False
    #: Where the provider's own package keeps the files on a machine, if it does: that is a mirror.
    own_cache: str = ""
    #: The file beside the module with what is known of the datasets before a download.
    catalogue_name: str = "catalogue.json"

    @property
    def home(self) -> str:
        """Where the provider's own copy is: a URL or a folder."""
        raise NotImplementedError

    def names(self) -> Sequence[str]:
        """All dataset names it can state without asking the network: those of its catalogue file, and what its remote held
        when it was last asked."""
        file, listing = self.catalogue_file, self.cached_listing()
        listed = [one.name for one in listing.datasets] if listing else []
        return list(dict.fromkeys([*(file.names() if file else ()), *listed]))

    def find(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """Find the raw objects of a dataset at a place (the home or a mirror). Raises FetchErrors, UsageError.

        ``options.extra`` holds a checked value for each of ``options``.
        """
        raise NotImplementedError

    def find_in_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """As `find`, for raw objects directly in a folder that is not laid out as the provider does it."""
        raise UsageError(
            f"{self.name} has no raw files to convert",
            hint=f"`rbdata list {self.name}` shows what can be downloaded",
        )

    def recognises(self, path: Path) -> bool:
        """Whether a file or folder on this machine is plainly raw data of this provider. Looks at names and heads only."""
        return False

    def knows(self, name: str) -> bool:
        """Whether a name is a dataset of this source."""
        return name in self.names()

    @property
    def catalogue_file(self) -> CatalogueFile | None:
        """What is known of the datasets before they are downloaded: ``catalogue_name`` beside the module, None without one."""
        module = sys.modules[type(self).__module__].__file__
        path = Path(module).with_name(self.catalogue_name) if module else None
        return CatalogueFile.read(path, self.name) if path and path.is_file() else None

    def catalogue(self) -> Sequence[CatalogueEntry]:
        """What is known of its datasets, without asking the network; a name of `names` that is missing here has an entry with
        its id only."""
        file = self.catalogue_file
        return list(file.entries()) if file else []

    def describe_unlisted(self, name: str) -> CatalogueEntry | None:
        """What is known of a dataset of this source that is not in `catalogue`; None if that is only what all datasets
        share."""
        return None

    def full_name(self, name: str, options: ConvertOptions) -> str:
        """The name of the dataset that a name and (unchecked) options ask for, where an option is part of the name."""
        return name

    def check_existing(self, manifest: Manifest, options: ConvertOptions) -> None:
        """Raise DatasetExistsError if a dataset with the requested options is nevertheless a different dataset."""

    def check_new(self, name: str, options: ConvertOptions, mirror: str | None) -> None:
        """Raise UsageError if a dataset that is nowhere must not be made from a name and these (unchecked) options alone.

        ``mirror``: the place that was asked for it, and has none.
        """

    def words_to_get(self, manifest: Manifest) -> list[str] | None:
        """The words after ``rbdata`` that give anyone the same dataset; None for one that only its owner has."""
        return ["download", manifest.id]

    def split_address(self, text: str) -> tuple[str, str] | None:
        """An address ``scheme://...`` as (name, mirror) if it is one of this provider's datasets.

        Raises UsageError for an address of this provider that leads to no dataset.
        """
        return None

    def places(self, name: str, options: ConvertOptions) -> Sequence[str]:
        """Where a dataset is looked for when no mirror is given, in the order in which to try; ``options`` are not checked."""
        return [self.home]

    def where_else(self, name: str) -> str | None:
        """A hint for when none of `places` gives a dataset; None for a source with one place, whose own errors say enough."""
        if not self.own_cache:
            return None
        option = f"--mirror (or RBDATA_{self.name.upper()}_MIRROR)"
        return f"name a folder or server that has its files with {option}, such as the provider's own cache: {self.own_cache}"

    def reference_scores(self, record: Mapping[str, Any]) -> ReferenceScores | None:
        """The returns that normalised scores call 0 and 100, by the ``source`` record of a manifest; None without any.

        For a dataset that is not on this machine, ``record`` holds its name as ``dataset`` and nothing else.
        """
        return recorded_scores(record)

    def reward_range(self, record: Mapping[str, Any]) -> tuple[float, float, str] | None:
        """The smallest and the largest reward that the task of a dataset has, and in words where that is stated; for `audit`.

        ``record`` is the ``source`` record of a manifest. None where nothing is stated.
        """
        return None

    def environment(self, record: Mapping[str, Any]) -> KnownEnvironment | None:
        """How the environment of a dataset is made, by the ``source`` record of its manifest; None where it is not known."""
        return stated_environment(record)

    def list_remote(self, location: Location, on_progress: Callable[[int, int], None]) -> Iterable[ListedDataset]:
        """Ask a remote what it holds; ``on_progress`` receives how many datasets are known so far, and of how many.

        Only a provider that can be asked defines it; what it says is cached (`refresh_listing`). Raises FetchErrors.
        """
        raise NotImplementedError

    @property
    def remote(self) -> str:
        """The place that is asked for a listing: the configured mirror, else the home."""
        return settings.mirror(self.name) or self.home

    # -- the same for all sources --------------------------------------------------------------------------------------

    @property
    def lists_remotely(self) -> bool:
        """Whether its remote can be asked for a listing."""
        return type(self).list_remote is not Source.list_remote

    def cached_listing(self, root: Path | None = None) -> RemoteListing | None:
        """What the remote held when it was last asked, as cached below a root; None if it was never asked."""
        return read_listing(self.name, without_login(self.remote), root) if self.lists_remotely else None

    def refresh_listing(
        self,
        root: Path | None = None,
        fetch: FetchOptions | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> RemoteListing:
        """Ask the remote now, and cache what it says. Raises FetchErrors, UsageError for a source without `list_remote`."""
        if not self.lists_remotely:
            raise UsageError(f"{self.name} has no remote listing: the datasets it knows are all there are")
        found = self.list_remote(open_location(self.remote, options=fetch), on_progress)
        return cache_listing(self.name, without_login(self.remote), found, root)

    def options_of(self, command: str) -> list[SourceOption]:
        """The options that ``download`` or ``convert`` takes; none to convert where there are no raw files."""
        makes = self.makes and command == "convert"
        return [option for option in self.options if command in option.commands and not makes]

    def open(self, name: str, location: Location, options: ConvertOptions) -> Reader:
        """`find` with checked options: the reader of a dataset at a place."""
        return self.find(name, location, self.check(options, "download"))

    def open_folder(self, location: Location, options: ConvertOptions) -> Reader:
        """`find_in_folder` with checked options."""
        return self.find_in_folder(location, self.check(options, "convert"))

    def asked_dataset(self, options: ConvertOptions) -> str | None:
        """The name that the option ``dataset`` of a conversion gives, if it does. Raises UsageError for an unknown one."""
        asked: str | None = options.extra["dataset"]
        name = asked and asked.removeprefix(f"{self.name}/")
        if name and not self.knows(name):
            raise UsageError(f"{self.name} has no dataset {asked!r}", hint=f"`rbdata list {self.name}` shows all")
        return name

    def check(self, options: ConvertOptions, command: str) -> ConvertOptions:
        """Options with a value for each that the source declares: the one given, else the one in the settings, else the
        default.

        Raises UsageError for options that the source does not have, or that ``command`` does not take, and for values that
        are not allowed.
        """
        own = {option.name: option for option in self.options}
        taken = [option.name for option in self.options_of(command)]
        given = {name: value for name, value in options.extra.items() if value is not None}
        unknown = [name for name in given if name not in taken]
        if unknown:
            every = f"options of {self.name}: {', '.join(taken)}" if taken else f"{self.name} has no options of its own"
            hint = " ".join(filter(None, (nearest(unknown[0], [*taken, *RESERVED]), every)))
            raise UsageError(f"{self.name} has no option {', '.join(unknown)} for {command}", hint=hint)
        if options.parts is not None and "parts" not in self.supports:
            raise UsageError(f"datasets of {self.name} have no shards to choose from", hint="leave out --shards")
        if options.time_limit is not None and "time_limit" not in self.supports:
            raise UsageError(f"datasets of {self.name} take no time limit", hint="leave out time_limit")
        extra = {name: option.check(given[name]) if name in given else _default(option) for name, option in own.items()}
        return replace(options, extra=extra)


def visible_files(path: Path, *suffixes: str) -> list[Path]:
    """The file itself, or those in a folder, with one of these suffixes; sorted."""
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    return [file for file in files if file.suffix.lower() in suffixes and file.is_file() and file.name[:1] != "."]


def only_file(path: Path, *suffixes: str) -> Path | None:
    """The only one of `visible_files`; None for no such file or several."""
    found = visible_files(path, *suffixes)
    return found[0] if len(found) == 1 else None


def only_object(location: Location, kind: str, *suffixes: str) -> RemoteObject:
    """The only object of a folder with one of these suffixes. Raises ObjectNotFoundError for none or several."""
    found = [item for item in location.list() if item.name.lower().endswith(suffixes)]
    if len(found) != 1:
        message = f"{location.url} holds {len(found)} {kind} files, not one"
        raise ObjectNotFoundError(message, hint="give the file, or a folder with that file alone")
    return found[0]


Found = TypeVar("Found")


def first_found(paths: Sequence[str], find: Callable[[str], Found], missing: str, hint: str) -> tuple[str, Found]:
    """The first of some paths at which ``find`` finds anything, with that: mirrors are copied from one level up or down.

    Raises ObjectNotFoundError ``missing`` if none of them holds anything; ``{paths}`` in the ``hint`` are those.
    """
    for path in paths:
        with suppress(ObjectNotFoundError):
            found = find(path)
            if found:
                return path, found
    raise ObjectNotFoundError(missing, hint=hint.format(paths=", ".join(paths)))


#: A file with its path below a location.
FoundFile: TypeAlias = "tuple[str, RemoteObject]"


def files_below(location: Location, folder: str, *suffixes: str) -> list[FoundFile]:
    """All files with one of these suffixes in a folder and the folders in it, sorted by their paths. Raises FetchErrors."""
    whole = getattr(location, "tree", None)
    found = whole(folder) if whole else _search(location, folder)
    return sorted(((path, item) for path, item in found if path.endswith(suffixes)), key=lambda one: one[0])


def files_in(location: Location, *suffixes: str, deep: bool = False) -> list[FoundFile]:
    """The files with one of these suffixes at the top, or all `files_below` it. Raises ObjectNotFoundError where there are
    none."""
    found = files_below(location, "", *suffixes) if deep else [(item.name, item) for item in location.list()]
    found = [(path, item) for path, item in found if path.endswith(suffixes)]
    if not found:
        message = f"{location.url} holds no {' and no '.join(suffixes)} files"
        raise ObjectNotFoundError(message, hint="give a file, or the folder that holds the files of one dataset")
    return found


def _search(location: Location, folder: str) -> Iterator[FoundFile]:
    for here, objects, names in location.walk(folder):
        yield from ((join_path(here, item.name), item) for item in objects)
        names[:] = [name for name in names if not name.startswith(".")]


def _default(option: SourceOption) -> Any:
    return settings.source_option(option).value if option.setting else option.default
