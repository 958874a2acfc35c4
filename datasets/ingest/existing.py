"""What is at a dataset's place already, and whether it is what a request asks for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ...errors import DatasetExistsError, FormatVersionError, NotADatasetError, RbdataError
from ...storage.folder import DatasetPlace
from ...storage.manifest import Manifest, read_manifest
from .protocol import ConvertOptions
from .request import Listener, Request, format_numbers


def find_existing(place: DatasetPlace, request: Request) -> Manifest | None:
    """The dataset at a place if it already is what the request asks for; None if there is work to do.

    Raises DatasetExistsError when something else is there. What is damaged is returned all the same (`check_sizes`).
    """
    if request.force or not place.path.exists():
        return None
    try:
        manifest = read_manifest(place.path)
    except FormatVersionError:
        raise
    except NotADatasetError:
        place.check_free()
        return None
    if manifest.id != place.id and manifest.id.lower() == place.id.lower():
        message = f"{place.path} holds {manifest.id}: on this disk, names that differ in case alone are one"
        raise DatasetExistsError(message, hint="write it as it is there, or choose another --root")
    differs = _differences(manifest, request.options)
    if differs:
        message = f"{place.id} already exists, made with different options: {', '.join(differs)}"
        raise DatasetExistsError(message, hint="replace it with --force, or delete it first")
    return None if list_missing(manifest, request.options) else manifest


def list_missing(manifest: Manifest, options: ConvertOptions) -> list[str]:
    """The options and the choice of shards in which a dataset is not what is asked for; more shards are sufficient."""
    wanted, have = options.parts, manifest.source
    enough = have.get("all_shards", True) if wanted is None else set(wanted) <= set(have.get("shards", []))
    return _differences(manifest, options) + ([] if enough else ["choice of shards"])


def extend(place: DatasetPlace, request: Request, declared: Collection[str]) -> Request:
    """The request that makes the dataset at its place larger: with the shards that are there and the options they were
    converted with (``declared``: those of the source). Without ``force`` nothing that is there is given up."""
    if request.force or not place.exists():
        return request
    options, have = request.options, read_manifest(place.path).source
    recorded, shards = have.get("options", {}), have.get("shards", ())
    options = replace(
        options,
        codec=recorded.get("codec", options.codec) if options.codec == "auto" else options.codec,
        layout=recorded.get("layout", options.layout) if options.layout == "auto" else options.layout,
        time_limit=recorded.get("time_limit") if options.time_limit is None else options.time_limit,
        parts=None if options.parts is None else tuple(sorted({*options.parts, *shards})),
        extra={**options.extra, **{name: value for name, value in recorded.items() if name in declared}},
    )
    return replace(request, options=options)


def announce_replacement(
    place: DatasetPlace, request: Request, shards: Collection[int], where: str, listener: Listener
) -> None:
    """Before a dataset with these shards takes the place of another: with ``force`` say what is replaced.

    Raises DatasetExistsError without it if a shard would be lost.
    """
    if not place.exists():
        return
    try:
        manifest = read_manifest(place.path)
    except RbdataError:  # only ``force`` replaces it
        return
    lost = format_numbers(sorted(set(manifest.source.get("shards", ())) - set(shards)))
    if request.force:
        what = f"{manifest.steps:,} steps in {manifest.episodes:,} episodes"
        listener.on_note(f"replaces the {place.id} that is there, {what}" + (f"; drops shards {lost}" if lost else ""))
    elif lost:
        message = f"{place.id} has shards that {where} lacks: {lost}"
        raise DatasetExistsError(message, hint="use a place that has them too, or drop them with --force")


def read_objects(place: DatasetPlace) -> list[dict[str, Any]]:
    """The records of the objects that the dataset at a place was made from; empty where it cannot be read."""
    try:
        return list(read_manifest(place.path).source.get("objects", []))
    except RbdataError:
        return []


def _differences(manifest: Manifest, options: ConvertOptions) -> list[str]:
    """The options in which an existing dataset differs from what is asked for; an option not given asks for nothing."""
    recorded = manifest.source.get("options", {})
    asked = {
        "codec": None if options.codec == "auto" else options.codec,
        "layout": None if options.layout == "auto" else options.layout,
        "unknown_next": options.unknown_next,
        "time_limit": options.time_limit,
        **{name: value for name, value in options.extra.items() if value != "auto"},
    }
    return [name for name, value in asked.items() if value is not None and recorded.get(name, value) != value]
