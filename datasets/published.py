"""Where the raw objects of a source's datasets lie: at its own places, or on a mirror."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import ChecksumError, FetchError, ForbiddenError, ObjectNotFoundError, TransientFetchError
from .fetch import FetchOptions, open_location
from .fetch.location import join_path
from .fetch.retries import failure_at
from .ingest.raw_files import FOLDER as RAW_FOLDER
from .ingest.reader import Reader
from .ingest.records import ConvertOptions
from .sources.source import Source


def open_raw_objects(source: Source, name: str, url: str, options: ConvertOptions, fetch: FetchOptions) -> Reader:
    """Open a dataset's raw objects at a location: in the provider's layout, or in that of ``push --raw``."""
    try:
        return source.open(name, open_location(url, options=fetch), options)
    except ObjectNotFoundError as error:
        if url in source.places(name, options):
            raise
        pushed = open_location(join_path(url.rstrip("/"), RAW_FOLDER, source.name), options=fetch)
        try:
            return source.open(name, pushed, options)
        except ObjectNotFoundError:
            raise error from None


def open_published(
    source: Source, name: str, options: ConvertOptions, fetch: FetchOptions, on_place: Callable[[str], None]
) -> Reader:
    """Open a dataset's raw objects at the first of the source's own places that has them.

    ``reader.why`` gives the failures at the places before it. A place whose copy is faulty raises its error: the next place is
    not tried. Raises the error of the only place, or one with the failures at all places.
    """
    failures: dict[str, FetchError] = {}
    for url in source.places(name, options):
        location = open_location(url, options=fetch)
        on_place(location.url)
        try:
            reader = open_raw_objects(source, name, url, options, fetch)
        except FetchError as error:
            partly_there = isinstance(error, ObjectNotFoundError) and error.partly_there
            if partly_there or isinstance(error, ChecksumError):
                raise
            failures[location.url] = error
            continue
        if failures:
            options_used = [f"{key} {value}" for key, value in reader.resolved_options.items()]
            reader.why = ", ".join([*options_used, f"because {_list_failures(failures)}"])
        return reader
    raise _unavailable(source, name, failures) from next(iter(failures.values())).__cause__


def _unavailable(source: Source, name: str, failures: Mapping[str, FetchError]) -> FetchError:
    """The error if no place has a dataset; of several classes, the one that another attempt is most likely to mend."""
    errors, hint = list(failures.values()), source.where_else(name)
    if len(errors) == 1 and hint is None:
        return errors[0]
    kinds = (TransientFetchError, ForbiddenError, ObjectNotFoundError)
    kind = next((one for one in kinds if any(isinstance(error, one) for error in errors)), FetchError)
    if all(isinstance(error, TransientFetchError) and error.unresolved for error in errors):
        hint = f"check the network of this machine; or {hint}"
    return kind(f"{source.name}/{name} is not available: {_list_failures(failures)}", hint=hint)


def _list_failures(failures: Mapping[str, FetchError]) -> str:
    return "; ".join(f"{place}: {failure_at(error, place)}" for place, error in failures.items())
