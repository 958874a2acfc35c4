"""Download and convert: plan, fill, commit, for any source.

``download`` fetches from the provider or a mirror and converts on the way; ``convert`` does the same with raw data that
are already in a folder. Both go on where an earlier run stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from .. import config
from .._version import __version__
from ..errors import DatasetExistsError, NotADatasetError, ObjectNotFoundError, UsageError
from ..storage.columns import ColumnWriter
from ..storage.folder import DatasetPlace, check_space, free_bytes, make_writable
from ..storage.manifest import Manifest, read_manifest
from ..storage.writer import DatasetWriter, fingerprint
from . import catalogue
from .fetch import FetchOptions, open_location
from .pool import TaskProgress, run_tasks, usable_cpus
from .source import ConvertOptions, Job, Plan

Action = Literal["skip", "fetch"]


@dataclass(frozen=True)
class Outlook:
    """What a run is about to do; a dry run ends with it."""

    id: str
    path: Path
    location: str
    shards: int
    fetch_bytes: int
    steps: int
    episodes: int
    disk_bytes: int
    free_bytes: int
    done_parts: int
    parts: int
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Outcome:
    """What a run did."""

    id: str
    path: Path
    action: Literal["complete", "written", "planned"]
    manifest: Manifest | None
    seconds: float = 0.0
    outlook: Outlook | None = None


@dataclass
class Listener:
    """How a run reports; every member may be replaced. The library itself never prints."""

    stage: Callable[[str], None] = lambda text: None
    planned: Callable[[int, int], None] = lambda done, total: None
    outlook: Callable[[Outlook], None] = lambda outlook: None
    progress: Callable[[list[TaskProgress]], None] = lambda tasks: None
    part_done: Callable[[int], None] = lambda index: None
    fetched: Callable[[str, int, int], None] = lambda name, done, total: None


@dataclass(frozen=True)
class Request:
    """What is wanted; the arguments of ``download`` and ``convert`` in one place.

    ``mirror`` replaces the provider's own place. ``procs`` worker processes fill parts (None: one for each processor, up
    to 8). ``keep_raw`` also stores the raw objects, below ``<root>/.raw/``, laid out as a mirror. ``force`` begins anew
    and replaces what is there. ``dry_run`` plans and stops.
    """

    id: str
    root: Path | None = None
    mirror: str | None = None
    procs: int | None = None
    options: ConvertOptions = field(default_factory=ConvertOptions)
    fetch: FetchOptions = field(default_factory=FetchOptions)
    keep_raw: bool = False
    force: bool = False
    dry_run: bool = False


def download(request: Request, listener: Listener | None = None) -> Outcome:
    """Get one dataset from its source.

    Raises UnknownDatasetError, the fetch errors of `errors`, CorruptSourceError, DiskSpaceError, RootNotWritableError,
    DatasetBusyError, DatasetExistsError. Whatever was finished before an error or Ctrl-C is kept for the next run.
    """
    listener = listener or Listener()
    root = config.root(request.root)
    dataset_id, source = catalogue.resolve(request.id)
    if source is None:
        raise UsageError(f"{dataset_id} comes from no source and cannot be downloaded")
    place = DatasetPlace(root, dataset_id)
    existing = what_is_there(place, request)
    if existing is not None:
        return Outcome(dataset_id, place.path, "complete", existing)
    url = request.mirror or config.mirror(source.name) or source.home
    location = open_location(url, options=request.fetch)
    listener.stage(f"looking for {dataset_id} at {location.url}")
    name = dataset_id.partition("/")[2]
    job = source.open(name, location, request.options)
    if request.keep_raw and not request.dry_run:
        make_writable(root)
        location = open_location(_keep_raw(root, source.name, job, listener), options=request.fetch)
        job = source.open(name, location, request.options)
    return run(job, place, replace(request, id=dataset_id, root=root), listener, url)


def convert(path: Path, source_name: str, request: Request, listener: Listener | None = None) -> Outcome:
    """Convert raw data in a folder, which is left as it is, into the dataset ``request.id``. Raises as ``download``."""
    listener = listener or Listener()
    root = config.root(request.root)
    source = catalogue.load_source(source_name)
    if not path.is_dir():
        raise ObjectNotFoundError(f"{path} is not a folder", hint="give the folder that holds the raw files")
    place = DatasetPlace(root, request.id)
    existing = what_is_there(place, request)
    if existing is not None:
        return Outcome(request.id, place.path, "complete", existing)
    location = open_location(str(path.resolve()), options=request.fetch)
    job = source.open_folder(location, request.options)
    return run(job, place, replace(request, root=root), listener, location.url)


def what_is_there(place: DatasetPlace, request: Request) -> Manifest | None:
    """The dataset at a place if it already is what is asked for; None if there is work to do.

    Raises DatasetExistsError when something else is there.
    """
    if request.force or not place.path.exists():
        return None
    hint = f"delete it first, or replace it with --force ({place.path})"
    try:
        manifest = read_manifest(place.path)
    except NotADatasetError as error:
        if any(place.path.iterdir()):
            message = f"{place.path} is in the way: it is not a dataset"
            raise DatasetExistsError(message, hint="move it away, or choose another --root") from error
        return None
    wanted, have = request.options, manifest.source
    options = have.get("options", {})
    differs = [
        name
        for name, value in (
            ("codec", None if wanted.codec == "auto" else wanted.codec),
            ("layout", wanted.layout),
            ("unknown_next", wanted.unknown_next),
            ("time_limit", wanted.time_limit),
        )
        if value is not None and options.get(name, value) != value
    ]
    if differs:
        message = f"{place.id} is there already, converted with another {', '.join(differs)}"
        raise DatasetExistsError(message, hint=hint)
    shards = have.get("shards", [])
    if wanted.parts is None:
        enough = have.get("all_shards", True)
    else:
        enough = set(wanted.parts) <= set(shards)
    return manifest if enough else None


def run(job: Job, place: DatasetPlace, request: Request, listener: Listener, url: str) -> Outcome:
    """Plan, fill and commit one job."""
    began = time.monotonic()
    if request.dry_run:
        plan = job.plan(ColumnWriter(None, _small(job)), listener.planned)
        dictionary = job.dictionary() if _compressed(job) else b""
        outlook = _outlook(job, plan, place, dictionary, done=set())
        listener.outlook(outlook)
        return Outcome(place.id, place.path, "planned", None, time.monotonic() - began, outlook)
    make_writable(config.root(request.root))
    procs = request.procs or min(8, usable_cpus())
    with place.lock():
        place.recover()
        identity = fingerprint({"id": place.id, **job.identity()})
        writer = DatasetWriter(
            place, job.schema, identity, bulk=job.bulk, parts=job.parts(), restart=request.force and _fresh(place)
        )
        columns = writer.columns()
        try:
            plan = job.plan(columns, listener.planned)
            files = columns.close()
        except BaseException:
            columns.abandon()
            raise
        writer.planned(files, plan.episodes)
        dictionary = b""
        for leaf in _compressed(job):
            dictionary = job.dictionary()
            writer.dictionary(leaf, dictionary)
        done = writer.done()
        outlook = _outlook(job, plan, place, dictionary, done)
        listener.outlook(outlook)
        check_space(place.path, outlook.disk_bytes, place.id)
        writer.merge()
        running = min(procs, max(1, job.parts() - len(done)))
        tasks = [task for task in job.tasks(writer.folder, max(1, usable_cpus() // running)) if task.index not in done]
        for index, record in run_tasks(job, tasks, procs, listener.progress):
            writer.part_done(index, record)
            writer.merge()
            listener.part_done(index)
        listener.stage("writing the manifest")
        manifest = _manifest(job, plan, place.id, url)
        writer.commit(manifest)
    return Outcome(place.id, place.path, "written", manifest, time.monotonic() - began, outlook)


def _fresh(place: DatasetPlace) -> bool:
    """--force replaces what is complete; work begun after that is continued like any other."""
    return True


def _small(job: Job) -> Any:
    from ..storage.schema import Schema

    return Schema(tuple(leaf for leaf in job.schema.steps if leaf.name not in job.bulk))


def _compressed(job: Job) -> list[Any]:
    return [leaf for leaf in job.schema.states if leaf.codec == "zstd"]


def _outlook(job: Job, plan: Plan, place: DatasetPlace, dictionary: bytes, done: set[int]) -> Outlook:
    """Work out what is still to be fetched and written."""
    left = [index for index in range(job.parts()) if index not in done]
    states = sum(plan.parts[index]["states"] for index in left)
    disk = int(states * job.row_estimate(dictionary))
    if _compressed(job) and states:
        # A finished part lies beside the blob until it is appended.
        disk += int(disk / max(1, len(left)))
    return Outlook(
        id=place.id,
        path=place.path,
        location=job.location.url,
        shards=job.parts(),
        fetch_bytes=sum(plan.fetch_bytes[index] for index in left),
        steps=plan.steps,
        episodes=len(plan.episodes),
        disk_bytes=disk,
        free_bytes=free_bytes(place.path),
        done_parts=len(done),
        parts=job.parts(),
        notes=plan.notes,
    )


def _manifest(job: Job, plan: Plan, dataset_id: str, url: str) -> Manifest:
    about = job.about()
    returns, lengths = plan.episodes.summary()
    return Manifest(
        id=dataset_id,
        schema=job.schema,
        steps=plan.steps,
        episodes=len(plan.episodes),
        source={**about["source"], "objects": list(job.objects())},
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
        },
    )


def _keep_raw(root: Path, source: str, job: Job, listener: Listener) -> str:
    """Fetch a job's raw objects into ``<root>/.raw/<source>``, in the provider's layout; returns that mirror."""
    raise NotImplementedError
