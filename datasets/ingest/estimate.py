"""Estimates of the work of a run, from the facts known so far: steps, bytes to fetch, and bytes on disk. Where rows are
compressed, these are right within a quarter, without the dictionary (some 100 kB). Nothing is fetched or written here.

A job whose counts are known before its large rows are read has a plan (`estimate_plan`). If raw files must be fetched first,
only their sizes are known (`estimate_fetch`); a staged job makes a guess (`expect`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...storage.codecs import codec_of
from ...storage.codecs.codec import Codec
from ...storage.folder import DatasetPlace, free_bytes
from ...storage.schema import Leaf
from .job import Expectation, Job, Plan, StagedJob
from .request import Estimate
from .row_source import SampleRows

if TYPE_CHECKING:
    from .unit import Reader, Unit

#: Bytes of an episode in the episode table (`storage.episodes`).
_EPISODE = 26
#: Bytes of sample rows that stand in for a dictionary, and the most rows that are encoded.
_DICTIONARY_BYTES, _ENCODED_ROWS = 1 << 20, 500


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
) -> Estimate:
    """The remaining work of a plan, without the parts that are ``done``; ``fetched``: an earlier estimate counted the raw
    files. ``state_bytes`` gives the bytes on disk of one state; it is called only if parts are left."""
    left = [part for index, part in enumerate(plan.parts) if index not in done]
    states = sum(part.states for part in left)
    return _estimate(
        job,
        place,
        shards=job.parts(),
        fetch_bytes=sum(part.fetch_bytes for part in left),
        steps=plan.steps,
        episodes=len(plan.episodes),
        disk_bytes=int(states * state_bytes() if states else 0) + bytes_of_columns(job, plan),
        done_parts=len(done),
        parts=job.parts(),
        part_names=[part.name for part in plan.parts],
        notes=plan.notes,
        fetched=fetched,
    )


def bytes_of_state(job: Job, samples: Callable[[], SampleRows]) -> float:
    """Bytes on disk of the large rows of one state; ``samples`` (`Job.sample_rows`) are read only if they are compressed."""
    raw, compressed = sum(job.schema[name].row_bytes for name in job.bulk), compressed_leaves(job)
    if not compressed or not len(rows := samples()):
        return raw
    codec = codec_of(compressed[0])
    return raw * compressed_share(codec, rows) + codec.index_bytes * len(job.bulk)


def compressed_share(codec: Codec | type[Codec], rows: SampleRows) -> float:
    """The share of their size that rows like these (uint8) take when they are encoded; right within a quarter.

    No dictionary is trained: some of the rows serve as one, and others are encoded.
    """
    most = _DICTIONARY_BYTES // max(1, max(map(len, rows)))
    known = set(np.linspace(0, len(rows) - 1, max(1, min(most, len(rows) // 2))).astype(int).tolist())
    others = [row for number, row in enumerate(rows) if number not in known] or list(rows)
    others = others[:: max(1, len(others) // _ENCODED_ROWS)]
    dictionary = b"".join(rows[number].tobytes() for number in sorted(known)) if codec.uses_dictionary else b""
    return int(codec.encoded_lengths(others, dictionary).sum()) / max(1, sum(map(len, others)))


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
    return _estimate(
        job,
        place,
        shards=job.parts(),
        fetch_bytes=int(expectation.fetch_bytes * left),
        steps=expectation.steps,
        episodes=expectation.episodes,
        disk_bytes=int(expectation.disk_bytes * left),
        done_parts=done,
        parts=job.parts(),
        part_names=expectation.part_names,
        notes=expectation.notes,
        estimated=True,
    )


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


# -- of readers ------------------------------------------------------------------------------------------------------------


def estimate_units(
    reader: Reader,
    place: DatasetPlace,
    units: Sequence[Unit],
    done: Collection[int],
    counted: tuple[int, int],
    state_bytes: Callable[[], float],
    *,
    fetched: bool = False,
) -> Estimate:
    """The remaining work of units, without those that are ``done``; ``counted`` are the steps and episodes of the lead."""
    (steps, episodes), left = counted, [unit for unit in units if unit.index not in done]
    states = sum(unit.spec.states for unit in left if unit.spec)
    row = sum(leaf.row_bytes for leaf in reader.schema.steps if leaf.name not in reader.bulk and leaf.constant != 0)
    return _estimate(
        reader,
        place,
        shards=len(units),
        fetch_bytes=sum(unit.spec.fetch_bytes for unit in left if unit.spec),
        steps=steps,
        episodes=episodes,
        disk_bytes=int(states * state_bytes() if states else 0) + steps * row + episodes * _EPISODE,
        done_parts=len(done),
        parts=len(units),
        part_names=[unit.name for unit in units],
        notes=reader.notes,
        fetched=fetched,
    )


def estimate_expected(
    reader: Reader, place: DatasetPlace, expected: Expectation, parts: int, done: int = 0
) -> Estimate:
    """What a reader expects to fetch and write, ``done`` of its ``parts`` being there."""
    left = 1 - done / max(1, parts)
    return _estimate(
        reader,
        place,
        shards=parts,
        fetch_bytes=int(expected.fetch_bytes * left),
        steps=expected.steps,
        episodes=expected.episodes,
        disk_bytes=int(expected.disk_bytes * left),
        done_parts=done,
        parts=parts,
        part_names=expected.part_names,
        notes=expected.notes,
        estimated=True,
    )


def estimate_join(reader: Reader, place: DatasetPlace) -> Estimate:
    """Nothing is left but to join."""
    return _estimate(reader, place, shards=0, fetch_bytes=0, disk_bytes=0)


#: The share of their size that compressed frames take if none can be tried: from 1/200 (Pong) to 1/2 (noise).
_GUESSED = 0.1


def expect_rows(reader: Reader, steps: int, episodes: int = 0, ratio: float = _GUESSED) -> Expectation:
    """The expected size on disk of so many steps; ``ratio``: the share of their size that compressed rows take."""
    large = 0.0
    for column in reader.columns:
        if column.large:
            leaf = reader.schema[column.key]
            plain = codec_of(leaf).fixed_rows
            large += column.row_bytes if plain else ratio * column.row_bytes + codec_of(leaf).index_bytes
    lasting = sum(leaf.row_bytes for leaf in reader.schema.steps if leaf.name not in reader.bulk)
    lasting += int(large) * (2 if reader.options.layout == "ted" else 1)
    return Expectation(0, steps, episodes, steps * lasting, ["recording"])
