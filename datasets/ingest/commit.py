"""The parts of all units become a dataset: episodes from bits and rewards, the manifest, and the pieces of each leaf in order,
which `storage.join` makes its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from ...errors import CorruptSourceError, SchemaError
from ...storage.codecs import codec_of
from ...storage.episodes import EpisodeTable
from ...storage.folder import DatasetPlace
from ...storage.join import Piece, begin_join
from ...storage.leaf import Leaf
from ...storage.manifest import Manifest
from .append import Base
from .block import END_MIDWAY, ENDS, outcomes
from .reader import Reader
from .unit import BITS, LEAD, Part, PartSection


def begin_commit(
    reader: Reader,
    place: DatasetPlace,
    lead: Sequence[Part],
    parts: Sequence[Part],
    url: str,
    original: Manifest | None = None,
    base: Base | None = None,
) -> None:
    """Decide the dataset of a reader, and begin to join it; ``parts`` are those of its units, in order, ``base`` what it is
    appended to. For ``original`` see `begin_join`.

    Raises CorruptSourceError where there is no step, or a reward is not finite, and what `Reader.facts` raises.
    """
    schema = reader.schema
    if not schema.leaves:
        raise CorruptSourceError(f"{reader.title} holds no episode with a step")
    episodes = episodes_of([*lead, *parts], schema["next/reward"], reader.return_steps, place.id)
    infinite = ~np.isfinite(episodes.returns)
    if infinite.any():
        message = f"{place.id}: rewards of episode {int(infinite.argmax())} are not finite numbers, as float32"
        raise CorruptSourceError(message, hint="the source must leave them out, or clip them")
    facts = reader.facts(parts, episodes)
    if facts.midway is not None:
        episodes = replace(episodes, midway=facts.midway)
    manifest = reader.manifest(place.id, facts, episodes, url)
    pieces = {leaf.name: _pieces(reader, leaf, [*lead, *parts]) for leaf in schema if leaf.constant is None}
    if base is not None:
        episodes = base.episodes(episodes)
        manifest = base.grown(manifest, episodes)
        pieces = {name: [*base.all_pieces[name], *some] for name, some in pieces.items()}
    begin_join(place, manifest, episodes, pieces, reader.bulk, original)


def _pieces(reader: Reader, leaf: Leaf, parts: Sequence[Part]) -> list[Piece]:
    """The pieces of a leaf in order. A unit without rows has an empty one in a large leaf."""
    found: list[tuple[tuple[int, ...], Piece]] = []
    there = {LEAD}
    for part in parts:
        for section in part.sections:
            for piece in part.pieces(section, leaf, reader.checksum_range(part.unit, section.range)):
                found.append((section.place, piece))
                there.add(part.unit)
        if leaf.name in reader.bulk and part.is_last and part.unit not in there:
            at = part.sections[0].place if part.sections else (part.unit,)
            lengths = None if codec_of(leaf).fixed_rows else np.zeros(0, np.int64)
            found.append((at, Piece(part.folder, 0, 0, "", 0, reader.checksum_range(part.unit, 0), lengths)))
    return [piece for _, piece in sorted(found, key=lambda one: one[0])]


# -- episodes ----------------------------------------------------------------------------------------------------------------


def episodes_of(parts: Sequence[Part], reward: Leaf, size: int, title: str) -> EpisodeTable:
    """The episodes of all sections with steps, in their order. Rewards are summed in blocks of ``size`` steps of each unit's
    section.

    Raises SchemaError where the last one has no end.
    """
    lengths, returns, ends = [np.zeros(0, np.int64)], [np.zeros(0)], [np.zeros(0, np.uint8)]
    length, total = 0, 0.0
    for bits, rewards in _stretches(parts, reward, size):
        last = np.flatnonzero(bits & ENDS)
        starts = np.concatenate([np.zeros(1, np.int64), last + 1])
        counts = np.diff(np.append(starts, len(bits)))
        sums, filled = np.zeros(len(starts)), counts > 0
        sums[filled] = np.add.reduceat(rewards, starts[filled], dtype=np.float64)
        counts[0] += length
        sums[0] += total
        length, total = int(counts[-1]), float(sums[-1])
        lengths.append(counts[:-1])
        returns.append(sums[:-1])
        ends.append(bits[last])
    if length:
        message = f"the last {length} steps of {title} belong to an episode without an end"
        raise SchemaError(message, hint="the last step of an episode says how it ended: END_CUT where the data end")
    every, bits = np.concatenate(lengths), np.concatenate(ends)
    midway = (bits & END_MIDWAY) != 0
    return EpisodeTable(np.cumsum(every) - every, every, np.concatenate(returns), outcomes(bits), midway)


def _stretches(parts: Sequence[Part], reward: Leaf, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Bits and rewards in blocks of ``size`` steps, none of which spans two places."""
    with_steps = [(part, section) for part in parts for section in part.sections if section.steps]
    with_steps.sort(key=_place)
    empty = np.zeros(0, np.uint8), np.zeros(0, np.float32)
    for _, some in groupby(with_steps, key=_place):
        held = empty
        for part, section in some:
            bits = part.rows(section, BITS)
            rewards = part.rows(section, reward) if reward.constant is None else np.full(len(bits), reward.constant)
            low = 0
            while low < len(bits):
                high = low + size - len(held[0])
                held = np.concatenate([held[0], bits[low:high]]), np.concatenate([held[1], rewards[low:high]])
                low = high
                if len(held[0]) == size:
                    yield held
                    held = empty
        if len(held[0]):
            yield held


def _place(one: tuple[Part, PartSection]) -> tuple[int, ...]:
    return one[1].place
