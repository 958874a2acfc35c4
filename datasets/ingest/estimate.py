"""Estimates of the work of a run, from the facts known so far: steps, bytes to fetch, and bytes on disk. Where rows are
compressed, these are right within a quarter, without the dictionary (some 100 kB). Nothing is fetched or written here.

A reader makes a guess (`Reader.expect`), or has a lead, which counts before large rows are read. If raw files must be fetched
first, only their sizes are known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...storage.codecs import codec_of
from ...storage.codecs.codec import Codec
from ...storage.folder import DatasetPlace, free_bytes
from ...storage.old_dataset import OldDataset
from .records import Expectation
from .request import Estimate

if TYPE_CHECKING:
    from .reader import Reader
    from .unit import Part, SampleRows, Unit

#: Bytes of an episode in the episode table (`storage.episodes`).
_EPISODE = 26
#: Bytes of sample rows that stand in for a dictionary, and the most rows that are encoded.
_DICTIONARY_BYTES, _ENCODED_ROWS = 1 << 20, 500


def bytes_of_state(reader: Reader, samples: Callable[[], SampleRows | None]) -> float:
    """Bytes on disk of the large rows of one state; ``samples`` (`Reader.sample_rows`) are read only if they are compressed."""
    raw, compressed = sum(reader.schema[name].row_bytes for name in reader.bulk), reader.compressed()
    rows = samples() if compressed else None
    if rows is None or not len(rows):
        return raw
    codec = codec_of(compressed[0])
    return raw * compressed_share(codec, rows) + codec.index_bytes * len(reader.bulk)


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


def estimate_work(
    reader: Reader,
    place: DatasetPlace,
    units: Sequence[Unit],
    done: Collection[int],
    lead: Part | None,
    old: OldDataset | None,
    samples: Callable[[], SampleRows | None],
) -> Estimate:
    """The work of units, without those that are ``done``: what the reader expects, or what the ``lead`` has counted. A state is
    as large as in the ``old`` dataset, or as ``samples`` say (`Reader.sample_rows`)."""
    expected = reader.expect()
    if expected is not None:
        left = 1 - len(done) / max(1, len(units))
        fetch, disk = int(expected.fetch_bytes * left), int(expected.disk_bytes * left)
        return estimate_expected(
            reader, place, replace(expected, fetch_bytes=fetch, disk_bytes=disk), len(units), len(done)
        )
    assert lead is not None
    specs = [unit.spec for unit in units if unit.index not in done and unit.spec]
    states, steps, episodes = sum(spec.states for spec in specs), lead.steps, lead.episodes
    disk = steps * _small_row(reader) + episodes * _EPISODE
    if states:
        disk += int(states * (old.bytes_of_state() if old else bytes_of_state(reader, samples)))
    fetch = sum(spec.fetch_bytes for spec in specs)
    expected = Expectation(fetch, steps, episodes, disk, reader.notes, counted=True)
    return estimate_expected(reader, place, expected, len(units), len(done))


def estimate_expected(
    reader: Reader, place: DatasetPlace, expected: Expectation, parts: int, done: int = 0
) -> Estimate:
    """What is expected to be fetched and written, ``done`` of the ``parts`` being there."""
    return Estimate(
        id=place.id,
        path=place.path,
        location=reader.location.shown,
        shards=parts,
        fetch_bytes=expected.fetch_bytes,
        steps=expected.steps,
        episodes=expected.episodes,
        disk_bytes=expected.disk_bytes,
        free_bytes=free_bytes(place.path),
        done_parts=done,
        parts=parts,
        notes=expected.notes,
        why=reader.why,
        estimated=not expected.counted,
        fetched=expected.counted and any("://" in item.url for item in reader.files()),
    )


def estimate_fetch(reader: Reader, place: DatasetPlace, fetch_bytes: int) -> Estimate:
    """Before raw files of this total size are fetched: only their sizes are known."""
    sizes = estimate_expected(reader, place, Expectation(fetch_bytes, 0, 0, fetch_bytes), 0)
    return replace(sizes, shards=len(reader.files()), estimated=False, unread=True)


def _small_row(reader: Reader) -> int:
    """Bytes of a step in the small leaves."""
    return sum(leaf.row_bytes for leaf in reader.schema.steps if leaf.name not in reader.bulk and leaf.constant != 0)


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
    lasting = _small_row(reader) + int(large) * (2 if reader.options.layout == "ted" else 1)
    return Expectation(0, steps, episodes, steps * lasting + episodes * _EPISODE)
