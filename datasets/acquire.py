"""Download and convert: plan, fill, commit, for any source.

``download`` fetches from the provider or a mirror and converts on the way; ``convert`` does the same with raw data that
are already in a folder. Both go on where an earlier run stopped, and take over from a smaller dataset of the same id what
it already holds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import settings
from .._version import __version__
from ..errors import (
    DatasetExistsError,
    FormatVersionError,
    NotADatasetError,
    ObjectNotFoundError,
    RbdataError,
    UnknownDatasetError,
    UsageError,
)
from ..storage.checksums import crc32c
from ..storage.column_writer import ColumnWriter
from ..storage.folder import RAW, DatasetPlace, check_space, make_writable, remove_tree
from ..storage.manifest import Manifest, read_manifest
from ..storage.reuse import OldDataset
from ..storage.schema import Schema
from ..storage.writer import DatasetWriter, fingerprint
from . import catalogue
from .fetch import RemoteObject, open_location
from .ingest.estimate import column_bytes, compressed, expected, planned, unread
from .ingest.protocol import ConvertOptions, Job, Plan, RawObject, settling, spooling
from .ingest.raw_files import fetch_all, keep_raw
from .ingest.request import Listener as Listener
from .ingest.request import Outcome as Outcome
from .ingest.request import Outlook as Outlook
from .ingest.request import Request as Request
from .ingest.staging import spool_all
from .mirrors import pull as converted
from .workers.pool import run_tasks, usable_cpus

MAX_PROCS = 8


def download(request: Request, listener: Listener | None = None) -> Outcome:
    """Get one dataset from its source.

    Raises UnknownDatasetError, the fetch errors of `errors`, CorruptSourceError, DiskSpaceError, RootNotWritableError,
    DatasetBusyError, DatasetExistsError. Whatever was finished before an error or Ctrl-C is kept for the next run.
    """
    listener = listener or Listener()
    root = settings.root(request.root)
    address = catalogue.split_address(request.id)
    if address:
        request = replace(request, id=address[0], mirror=request.mirror or address[1])
    dataset_id, source = converted.resolve(request.id, request.mirror)
    mirror = request.mirror or settings.mirror(dataset_id.partition("/")[0])
    if source is None and mirror is None:
        raise UsageError(f"{dataset_id} comes from no source and cannot be downloaded")
    request = replace(request, id=dataset_id, root=root)
    place = DatasetPlace(root, dataset_id)
    existing = what_is_there(place, request)
    if existing is not None:
        return Outcome(dataset_id, place.path, "complete", existing)
    name = dataset_id.partition("/")[2]
    url = mirror or (source.place(name) if source else "")
    if mirror or not (source and source.makes):  # what is made on this machine is looked for nowhere
        listener.stage(f"looking for {dataset_id} at {open_location(url, options=request.fetch).url}")
    copied = _copy(url, place, request, listener) if mirror else None
    if isinstance(copied, Outcome):
        return copied
    try:
        if source is None:
            message = f"no dataset is called {dataset_id!r}, and {open_location(url).url} holds none of that name"
            raise UnknownDatasetError(message, hint=catalogue.suggestion(dataset_id))
        job = converted.open_raw(source, name, url, request.options, request.fetch)
    except ObjectNotFoundError as error:
        if copied is None:
            raise
        message = f"{url} holds {dataset_id} with {', '.join(copied)}, and no raw objects to convert otherwise"
        raise ObjectNotFoundError(message, hint="ask for it as it is there, or use another mirror") from error
    if request.keep_raw and not request.dry_run:
        make_writable(root)
        listener.stage("fetching the raw files")
        home, why = job.location.url, job.why
        kept = keep_raw(root, source.name, job.raw_objects(), listener.fetched)
        options = replace(request.options, extra={**request.options.extra, **job.decided})
        job = source.open(name, open_location(kept, options=request.fetch), options)
        job.why = why
        return _run(job, place, request, listener, home)
    return _run(job, place, request, listener, job.location.url)


def convert(path: Path, source_name: str, request: Request, listener: Listener | None = None) -> Outcome:
    """Convert raw data in a folder, which is left as it is, into the dataset ``request.id``. Raises as ``download``."""
    listener = listener or Listener()
    request = replace(request, root=settings.root(request.root))
    source = catalogue.load_source(source_name)
    if not path.is_dir():
        raise ObjectNotFoundError(f"{path} is not a folder", hint="give the folder that holds the raw files")
    assert request.root is not None
    place = DatasetPlace(request.root, request.id)
    existing = what_is_there(place, request)
    if existing is not None:
        return Outcome(request.id, place.path, "complete", existing)
    location = open_location(str(path.resolve()), options=request.fetch)
    return _run(source.open_folder(location, request.options), place, request, listener, location.url)


def _copy(url: str, place: DatasetPlace, request: Request, listener: Listener) -> Outcome | list[str] | None:
    """Take a converted dataset from a mirror as it is; what it has otherwise where it is not what is asked for."""
    if request.keep_raw:
        return None  # raw objects are wanted, and those are not in it
    found = converted.find_converted(url, place.id, request.fetch)
    if found is None:
        return None
    differs = _missing(found[1], request.options)
    if differs:
        recorded = found[1].source.get("options", {})
        return [f"{name} {recorded.get(name, 'of its own')}" for name in differs]
    began = time.monotonic()
    if request.dry_run:
        outlook, _ = converted.fetch_converted(*found, place, listener, force=request.force, dry_run=True)
        return Outcome(place.id, place.path, "planned", None, time.monotonic() - began, outlook)
    make_writable(place.root)
    with place.lock():
        place.recover()
        existing = what_is_there(place, request)
        if existing is not None:
            return Outcome(place.id, place.path, "complete", existing)
        outlook, manifest = converted.fetch_converted(*found, place, listener, force=request.force, dry_run=False)
    return Outcome(place.id, place.path, "written", manifest, time.monotonic() - began, outlook)


def what_is_there(place: DatasetPlace, request: Request) -> Manifest | None:
    """The dataset at a place if it already is what is asked for; None if there is work to do.

    Raises DatasetExistsError when something else is there.
    """
    if request.force or not place.path.exists():
        return None
    try:
        manifest = read_manifest(place.path)
    except FormatVersionError:
        raise
    except NotADatasetError as error:
        if not place.path.is_dir() or any(place.path.iterdir()):
            message = f"{place.path} is in the way: it is not a dataset"
            raise DatasetExistsError(message, hint="move it away, or choose another --root") from error
        return None
    if manifest.id != place.id and manifest.id.lower() == place.id.lower():
        message = f"{place.path} holds {manifest.id}: on this disk, names that differ in case alone are one"
        raise DatasetExistsError(message, hint="write it as it is there, or choose another --root")
    differs = _differences(manifest, request.options)
    if differs:
        message = f"{place.id} is there already, converted with another {' and '.join(differs)}"
        raise DatasetExistsError(message, hint="replace it with --force, or delete it first")
    return None if _missing(manifest, request.options) else manifest


def _missing(manifest: Manifest, options: ConvertOptions) -> list[str]:
    """What keeps a dataset from being what is asked for; one that holds more serves, too."""
    wanted, have = options.parts, manifest.source
    enough = have.get("all_shards", True) if wanted is None else set(wanted) <= set(have.get("shards", []))
    return _differences(manifest, options) + ([] if enough else ["choice of shards"])


def _differences(manifest: Manifest, options: ConvertOptions) -> list[str]:
    """In which options an existing dataset differs from what is asked for; an option not given asks for nothing."""
    recorded = manifest.source.get("options", {})
    asked = {
        "codec": None if options.codec == "auto" else options.codec,
        "layout": None if options.layout == "auto" else options.layout,
        "unknown_next": options.unknown_next,
        "time_limit": options.time_limit,
        **{name: value for name, value in options.extra.items() if value != "auto"},
    }
    return [name for name, value in asked.items() if value is not None and recorded.get(name, value) != value]


def _run(job: Job, place: DatasetPlace, request: Request, listener: Listener, url: str) -> Outcome:
    began = time.monotonic()
    if request.dry_run:
        outlook = _dry_run(job, place, listener)
        listener.outlook(outlook)
        return Outcome(place.id, place.path, "planned", None, time.monotonic() - began, outlook)
    make_writable(place.root)
    with place.lock() as lock:
        place.recover()
        existing = what_is_there(place, request)  # another process may have finished it meanwhile
        if existing is not None:
            return Outcome(place.id, place.path, "complete", existing)
        late = settling(job)
        if late and request.force and place.exists():
            late.replaces(_objects_of(place))
        # What is read whole before it is planned takes nothing over.
        old = None if request.force or spooling(job) else OldDataset.open(place.path, job.schema)
        identity = {"id": place.id, "extends": old.identity if old else None, **job.identity()}
        writer = DatasetWriter(
            place, job.schema, fingerprint(identity), bulk=job.bulk, parts=job.parts(), restart=request.force
        )
        try:
            outlook, manifest = _write(writer, job, place, request, listener, old, url)
            lock.check()
            writer.commit(manifest)
        except BaseException:
            if not writer.parts_done() and not (writer.folder / RAW).exists():
                remove_tree(writer.folder)  # nothing worth keeping for the next run
            raise
    return Outcome(place.id, place.path, "written", manifest, time.monotonic() - began, outlook)


def _write(
    writer: DatasetWriter,
    job: Job,
    place: DatasetPlace,
    request: Request,
    listener: Listener,
    old: OldDataset | None,
    url: str,
) -> tuple[Outlook, Manifest]:
    """Plan and fill; what is left is to commit."""

    def procs(tasks: int) -> int:
        return min(settings.procs(request.procs) or min(MAX_PROCS, usable_cpus()), max(1, tasks))

    remote = [item for item in job.files() if not is_local(item)]
    if remote:
        listener.outlook(unread(job, place, sum(item.size or 0 for item in remote)))
        listener.stage("fetching the raw files")
    paths = _local_files(job, remote, writer.folder / RAW, listener)
    first = spooling(job)
    told = spool_all(first, writer.folder / RAW, place, procs, usable_cpus(), listener) if first else None
    late = settling(job)
    if late:
        late.settle(paths)
        writer.lay_out(job.schema, job.bulk, job.parts())
    columns = writer.columns()
    try:
        plan = job.plan(columns, paths, listener.planned)
        files = columns.close()
    finally:
        columns.abandon()
    writer.planned(files, plan.episodes, plan.digest)
    dictionary = b""
    for leaf in compressed(job):
        if told is None:
            listener.stage("sampling frames")
        dictionary = old.dictionary(leaf) if old else writer.stored_dictionary(leaf) or job.dictionary()
        writer.dictionary(leaf, dictionary)
    _check_same_objects(writer, plan, place)
    if old:
        _take_over(writer, plan, old, listener)
    writer.merge()
    done = writer.parts_done().keys()
    outlook = planned(job, plan, place, dictionary, done, fetched=bool(remote))
    if told is None:
        listener.outlook(outlook)
        check_space(place.path, outlook.disk_bytes - column_bytes(job, plan), place.id)
    else:
        listener = Listener(stage=listener.stage)  # the parts were told of as they were decoded
    left = [index for index in range(job.parts()) if index not in writer.parts_done()]
    # Rows that were compressed as they were spooled are only moved: not worth starting processes for.
    count = 1 if told and compressed(job) else procs(len(left))
    tasks = [task for task in job.tasks(writer.folder, max(1, usable_cpus() // count)) if task.index in left]
    for index, record in run_tasks(tasks, count, listener.progress):
        writer.part_done(index, record)
        writer.merge()
        listener.part_done(index)
    listener.stage("writing the manifest")
    for index, record in writer.parts_done().items():
        plan.parts[index]["object"]["crc32c"] = record["crc32c"] or plan.parts[index]["object"]["crc32c"]
    return outlook, _manifest(job, plan, place.id, url)


def _check_same_objects(writer: DatasetWriter, plan: Plan, place: DatasetPlace) -> None:
    """What an earlier run converted must be what the source states now; it may have come from another mirror."""
    for index, record in writer.parts_done().items():
        stated, found = plan.parts[index]["object"]["crc32c"], record.get("crc32c")
        if stated and found and stated != found:
            message = (
                f"{plan.parts[index]['name']} of the unfinished {place.id} came from another object than the one here"
            )
            raise DatasetExistsError(message, hint=f"start over with --force ({writer.folder})")


def _objects_of(place: DatasetPlace) -> list[dict[str, Any]]:
    """What the dataset at a place was made from; nothing where that cannot be read any more."""
    try:
        return list(read_manifest(place.path).source.get("objects", []))
    except RbdataError:
        return []


def _take_over(writer: DatasetWriter, plan: Plan, old: OldDataset, listener: Listener) -> None:
    """Copy what a smaller dataset already holds."""
    listener.stage("taking over what is there")
    for index, part in enumerate(plan.parts):
        record = None if index in writer.parts_done() else old.take_over(writer, index, part)
        if record is not None:
            writer.part_done(index, record)


def _dry_run(job: Job, place: DatasetPlace, listener: Listener) -> Outlook:
    """What would be done. Where raw files must be fetched whole before they can be read, only their sizes are known."""
    first = spooling(job)
    if first:
        return expected(first, place)
    remote = [item for item in job.files() if not is_local(item)]
    if remote:
        return unread(job, place, sum(item.size or 0 for item in remote))
    paths = _local_files(job, remote, place.working, listener)
    late = settling(job)
    if late:
        late.settle(paths)
    plan = job.plan(ColumnWriter(None, _plan_schema(job)), paths, listener.planned)
    return planned(job, plan, place, job.dictionary() if compressed(job) else b"")


def _local_files(job: Job, remote: Sequence[RemoteObject], folder: Path, listener: Listener) -> dict[str, Path]:
    """Where a job's whole files lie: in place where the source is a directory, else fetched into ``folder``."""
    if remote:
        fetch_all(folder, [RawObject(_file_name(item), item, job.location) for item in remote], listener.fetched)
    return {item.url: Path(item.url) if is_local(item) else folder / _file_name(item) for item in job.files()}


def is_local(item: RemoteObject) -> bool:
    """Whether an object is a file that can be opened where it is."""
    return item.url.startswith("/")


def _file_name(item: RemoteObject) -> str:
    """Different objects may have the same last name."""
    return f"{crc32c(item.url.encode())}-{item.name}"


def _plan_schema(job: Job) -> Schema:
    return Schema(tuple(leaf for leaf in job.schema.steps if leaf.name not in job.bulk))


def _manifest(job: Job, plan: Plan, dataset_id: str, url: str) -> Manifest:
    about = job.about()
    returns, lengths = plan.episodes.summary()
    return Manifest(
        id=dataset_id,
        schema=job.schema,
        steps=plan.steps,
        episodes=len(plan.episodes),
        source={**about["source"], "objects": [*job.objects(), *(part["object"] for part in plan.parts)]},
        parts=plan.parts,
        spaces=plan.spaces,
        counts=plan.counts,
        notes=plan.notes,
        returns=returns,
        lengths=lengths,
        licence=about.get("licence"),
        citation=about.get("citation"),
        provenance={
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "rbdata_version": __version__,
            "location": url,
            **({"why": job.why} if job.why else {}),
        },
    )
