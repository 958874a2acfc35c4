"""Estimates of the work of a run, from the facts known so far: steps, bytes to fetch, and bytes on disk. Where rows are
compressed, these are right within a quarter, without the dictionary (some 100 kB). Nothing is fetched or written here.

A reader with a lead knows its counts before large rows are read (`estimate_units`). If raw files must be fetched first, only
their sizes are known (`estimate_fetch`); others make a guess (`estimate_expected`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...storage.codecs import codec_of
from ...storage.codecs.codec import Codec
from ...storage.folder import DatasetPlace, free_bytes
from .records import Expectation
from .request import Estimate

if TYPE_CHECKING:
    from .reader import Reader
    from .unit import SampleRows, Unit

#: Bytes of an episode in the episode table (`storage.episodes`).
_EPISODE = 26
#: Bytes of sample rows that stand in for a dictionary, and the most rows that are encoded.
_DICTIONARY_BYTES, _ENCODED_ROWS = 1 << 20, 500


def bytes_of_state(reader: Reader, samples: Callable[[], SampleRows]) -> float:
    """Bytes on disk of the large rows of one state; ``samples`` (`Reader.sample_rows`) are read only if they are compressed."""
    raw, compressed = sum(reader.schema[name].row_bytes for name in reader.bulk), reader.compressed()
    if not compressed or not len(rows := samples()):
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


def estimate_fetch(reader: Reader, place: DatasetPlace, fetch_bytes: int) -> Estimate:
    """Before raw files of this total size are fetched: only their sizes are known."""
    return _estimate(
        reader, place, shards=len(reader.files()), fetch_bytes=fetch_bytes, disk_bytes=fetch_bytes, unread=True
    )


def _estimate(reader: Reader, place: DatasetPlace, **facts: Any) -> Estimate:
    known = {"steps": 0, "episodes": 0, "done_parts": 0, "parts": 0, **facts}
    return Estimate(
        id=place.id,
        path=place.path,
        location=reader.location.shown,
        free_bytes=free_bytes(place.path),
        why=reader.why,
        **known,
    )


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
        notes=expected.notes,
        estimated=not expected.counted,
        fetched=expected.counted and any("://" in item.url for item in reader.files()),
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
    lasting = sum(leaf.row_bytes for leaf in reader.schema.steps if leaf.name not in reader.bulk and leaf.constant != 0)
    lasting += int(large) * (2 if reader.options.layout == "ted" else 1)
    return Expectation(0, steps, episodes, steps * lasting + episodes * _EPISODE)
