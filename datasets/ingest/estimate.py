"""Estimates of the work of a run, from the facts known so far. Nothing is fetched or written here.

A job whose counts are known before its large rows are read has a plan (`estimate_plan`). If raw files must be fetched first,
only their sizes are known (`estimate_fetch`); a staged job makes a guess (`expect`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ...storage.codecs import codec_of
from ...storage.folder import DatasetPlace, free_bytes
from ...storage.schema import Leaf
from .job import Job, Plan, StagedJob
from .request import Estimate
from .row_source import SampleRows

#: Bytes of an episode in the episode table (`storage.episodes`).
_EPISODE = 26

#: Returns sample rows of the large leaves when they are needed (`Job.sample_rows`).
Samples = Callable[[], SampleRows]


def compressed_leaves(job: Job) -> list[Leaf]:
    """The state leaves whose rows are compressed."""
    return [leaf for leaf in job.schema.states if not codec_of(leaf).fixed_rows]


def estimate_plan(
    job: Job,
    plan: Plan,
    place: DatasetPlace,
    state_bytes: Callable[[], float],
    done: Collection[int] = (),
    *,
    fetched: bool = False,
    dictionary_bytes: Callable[[], int] = lambda: 0,
) -> Estimate:
    """The remaining work of a plan, without the parts that are ``done``; ``fetched``: an earlier estimate counted the raw
    files.

    ``state_bytes`` gives the bytes on disk of one state (`bytes_of_state`), ``dictionary_bytes`` those of the dictionary; they
    are called only if parts are left.
    """
    left = [part for index, part in enumerate(plan.parts) if index not in done]
    states = sum(part.states for part in left)
    large = int(states * state_bytes()) if states else 0
    stored = large + (dictionary_bytes() if states else 0) + bytes_of_columns(job, plan)
    if compressed_leaves(job) and left:
        large += large // len(left)  # a finished part lies beside the blob until it is appended
    return _estimate(
        job,
        place,
        shards=job.parts(),
        fetch_bytes=sum(part.fetch_bytes for part in left),
        steps=plan.steps,
        episodes=len(plan.episodes),
        disk_bytes=large + bytes_of_columns(job, plan),
        stored_bytes=(stored, stored),
        done_parts=len(done),
        parts=job.parts(),
        part_names=[part.name for part in plan.parts],
        notes=plan.notes,
        fetched=fetched,
    )


def bytes_of_state(job: Job, dictionary: bytes, samples: Samples) -> float:
    """Bytes on disk of the large rows of one state."""
    leaves = [job.schema[name] for name in job.bulk]
    raw = sum(leaf.row_bytes for leaf in leaves)
    if not compressed_leaves(job):
        return raw
    rows, codec = samples(), codec_of(compressed_leaves(job)[0])
    if not len(rows):
        return raw
    stored = int(codec.encoded_lengths(rows, dictionary).sum())
    return raw * stored / max(1, sum(map(len, rows))) + codec.index_bytes * len(leaves)


def bytes_of_columns(job: Job, plan: Plan) -> int:
    """What the plan itself writes: step leaves (zeros everywhere are holes) and the episode table."""
    row = sum(leaf.row_bytes for leaf in job.schema.steps if leaf.name not in job.bulk and leaf.constant != 0)
    return plan.steps * row + len(plan.episodes) * _EPISODE


def estimate_fetch(job: Job, place: DatasetPlace, fetch_bytes: int) -> Estimate:
    """Before raw files of this total size are fetched: only their sizes are known."""
    return _estimate(job, place, shards=len(job.files()), fetch_bytes=fetch_bytes, disk_bytes=fetch_bytes, unread=True)


def expect(job: StagedJob, place: DatasetPlace, done: int = 0) -> Estimate:
    """What a staged job is likely to fetch and write, ``done`` parts being staged. Reads the heads of a few files."""
    expectation = job.expect()
    left = 1 - done / max(1, job.parts())
    stored = expectation.stored_bytes
    return _estimate(
        job,
        place,
        shards=job.parts(),
        fetch_bytes=int(expectation.fetch_bytes * left),
        steps=expectation.steps,
        episodes=expectation.episodes,
        disk_bytes=int(expectation.disk_bytes * left),
        stored_bytes=None if stored is None else (int(stored[0] * left), int(stored[1] * left)),
        done_parts=done,
        parts=job.parts(),
        part_names=expectation.part_names,
        notes=expectation.notes,
        estimated=True,
    )


def certain_bytes(job: StagedJob, done: int = 0) -> int:
    """What a staged job needs on the disk in any case, ``done`` parts being staged."""
    expectation = job.expect()
    certain = expectation.disk_bytes if expectation.certain_bytes is None else expectation.certain_bytes
    return int(certain * (1 - done / max(1, job.parts())))


def _estimate(job: Job, place: DatasetPlace, **facts: Any) -> Estimate:
    known = {"steps": 0, "episodes": 0, "done_parts": 0, "parts": 0, **facts}
    return Estimate(
        id=place.id,
        path=place.path,
        location=job.location.shown,
        free_bytes=free_bytes(place.path),
        why=job.why,
        **known,
    )
