"""What a run is about to do, worked out from what is known so far. Nothing is fetched or written here.

A job whose counts are known before its bulk is read has a plan (`planned`). One that must have its raw files first knows
only their sizes (`unread`), one that must have decoded them has a guess (`expected`).
"""

from __future__ import annotations

from collections.abc import Collection

from ...storage.folder import DatasetPlace, free_bytes
from ...storage.schema import Leaf
from .protocol import Job, Plan, SpoolingJob
from .request import Outlook

#: Bytes of an episode in the episode table (`storage.episodes`).
_EPISODE = 26


def compressed(job: Job) -> list[Leaf]:
    """The leaves that need a dictionary."""
    return [leaf for leaf in job.schema.states if leaf.codec == "zstd"]


def planned(
    job: Job, plan: Plan, place: DatasetPlace, dictionary: bytes, done: Collection[int] = (), *, fetched: bool = False
) -> Outlook:
    """What is left of a plan, without the parts that are ``done``; ``fetched``: its raw files were told of before."""
    left = [index for index in range(job.parts()) if index not in done]
    return Outlook(
        id=place.id,
        path=place.path,
        location=job.location.url,
        shards=job.parts(),
        fetch_bytes=sum(plan.fetch_bytes[index] for index in left),
        steps=plan.steps,
        episodes=len(plan.episodes),
        disk_bytes=bulk_bytes(job, plan, dictionary, left) + column_bytes(job, plan),
        free_bytes=free_bytes(place.path),
        done_parts=len(done),
        parts=job.parts(),
        part_names=[str(part["name"]) for part in plan.parts],
        notes=plan.notes,
        why=job.why,
        fetched=fetched,
    )


def bulk_bytes(job: Job, plan: Plan, dictionary: bytes, left: Collection[int]) -> int:
    """What the parts that are left take on the disk while they are filled."""
    states = sum(plan.parts[index]["states"] for index in left)
    size = int(states * job.row_estimate(dictionary)) if states else 0
    if compressed(job) and left:
        size += size // len(left)  # a finished part lies beside the blob until it is appended
    return size


def column_bytes(job: Job, plan: Plan) -> int:
    """What the plan itself writes: step leaves (zeros everywhere are holes) and the episode table."""
    row = sum(leaf.row_bytes for leaf in job.schema.steps if leaf.name not in job.bulk and leaf.constant != 0)
    return plan.steps * row + len(plan.episodes) * _EPISODE


def unread(job: Job, place: DatasetPlace, fetch_bytes: int) -> Outlook:
    """Before raw files of so many bytes are fetched: only their sizes are known."""
    files = job.files()
    return Outlook(
        id=place.id,
        path=place.path,
        location=job.location.url,
        shards=len(files),
        fetch_bytes=fetch_bytes,
        steps=0,
        episodes=0,
        disk_bytes=fetch_bytes,
        free_bytes=free_bytes(place.path),
        done_parts=0,
        parts=0,
        why=job.why,
        unread=True,
    )


def expected(job: SpoolingJob, place: DatasetPlace, done: int = 0) -> Outlook:
    """What is likely to be fetched and written, where that is known when all is decoded. Reads the heads of a few files."""
    expectation = job.expect()
    left = 1 - done / max(1, job.parts())
    return Outlook(
        id=place.id,
        path=place.path,
        location=job.location.url,
        shards=job.parts(),
        fetch_bytes=int(expectation.fetch_bytes * left),
        steps=expectation.steps,
        episodes=expectation.episodes,
        disk_bytes=int(expectation.disk_bytes * left),
        free_bytes=free_bytes(place.path),
        done_parts=done,
        parts=job.parts(),
        part_names=expectation.part_names,
        why=job.why,
        estimated=True,
    )
