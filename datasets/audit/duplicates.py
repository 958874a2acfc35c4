"""Episodes and transitions that occur twice, by hashes of their rows: 8 bytes an episode, and at most 16 MiB for transitions.

A transition is its state, action and reward; of a state, only the leaves of columns. If there are many transitions, only those
whose hash ends in zeros are kept: the same transitions of two datasets are then kept or left out together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...storage.amounts import count, exact_percent
from ...storage.episodes import EpisodeTable
from .blocks import Array, StepBlock
from .findings import Finding, Hits, Severity, find

#: Hashes of transitions that are kept.
_KEPT = 1 << 20
#: Shorter episodes may be equal by chance; for counts and frames, episodes shorter than the second number.
_SHORT, _SHORT_COUNTS = 3, 20
#: Share of duplicates among transitions that is a warning, and the one that is a note (a fixed policy in a deterministic
#: environment meets its own path again); of two datasets, a warning.
_MANY, _SOME, _SHARED = 0.5, 0.005, 0.01

_FACTORS = np.random.default_rng(20).integers(1 << 62, 1 << 63, 4096, np.uint64) * np.uint64(2) + np.uint64(1)


def _mix(values: Array) -> Array:
    """Scramble uint64 values, so that their sums differ (the finaliser of MurmurHash3, Appleby, in part)."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    return values ^ (values >> np.uint64(29))


def row_hashes(columns: Sequence[Array]) -> Array:
    """A hash of each row of arrays ``[n, elements]`` or ``[n]``, uint64 ``[n]``; the same for the same bytes of a row."""
    total = np.zeros(len(columns[0]), np.uint64)
    for number, values in enumerate(columns):
        rows = np.ascontiguousarray(values.reshape(len(values), -1)).view(np.uint8)
        if rows.shape[1] % 8:
            rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8)))
        for column, words in enumerate(np.ascontiguousarray(rows.view(np.uint64).T)):
            total += _mix(words ^ _FACTORS[(column + 37 * number) % len(_FACTORS)]) * _FACTORS[column % len(_FACTORS)]
    return total


class Duplicates:
    """The hashes of one dataset. ``measured``: its states are not only counts, choices or pixels, or there are none of columns
    (``blind``), so that actions and rewards alone are compared."""

    def __init__(self, names: Sequence[str], table: EpisodeTable, *, measured: bool, blind: bool) -> None:
        self.names, self._table = (*names, "next/reward"), table
        self.measured, self.blind, self.steps = measured, blind, 0
        self._starts = np.asarray(table.starts)
        self.by_episode = not len(table) or int(np.max(table.lengths)) > 1
        #: The hash of each episode.
        self.episodes = np.zeros(len(table) if self.by_episode else 0, np.uint64)
        #: Kept hashes end in this many zeros.
        self.zeros = 0
        self._kept: list[tuple[Array, Array]] = [(np.zeros(0, np.uint64), np.zeros(0, np.int64))]
        self._held = 0

    def see(self, block: StepBlock) -> None:
        self.steps += len(block)
        hashes = row_hashes([block.rows[name] for name in self.names])
        if self.by_episode:
            episodes, begins = block.pieces
            place = (np.arange(block.low, block.high) - self._starts[block.episode]).astype(np.uint64)
            self.episodes[episodes] += np.add.reduceat(_mix(hashes + _mix(place)), begins)
        if not self.blind:
            self._keep(_mix(hashes), np.arange(block.low, block.high))

    def _keep(self, hashes: Array, steps: Array) -> None:
        mask = (hashes & np.uint64((1 << self.zeros) - 1)) == 0
        self._kept.append((hashes[mask], steps[mask]))
        self._held += int(mask.sum())
        while self._held > _KEPT:
            self.zeros += 1
            self._kept = [self.kept(self.zeros)]
            self._held = len(self._kept[0][0])

    def kept(self, zeros: int) -> tuple[Array, Array]:
        """Return the hashes that end in ``zeros`` zeros, and their steps."""
        hashes, steps = (np.concatenate(parts) for parts in zip(*self._kept))
        mask = (hashes & np.uint64((1 << zeros) - 1)) == 0
        return hashes[mask], steps[mask]

    def comparable(self) -> Array:
        """Return which episodes are too long to be equal by chance, bool ``[episodes]``."""
        length = np.asarray(self._table.lengths)
        return length >= (_SHORT if self.measured else _SHORT_COUNTS)

    def findings(self) -> Iterator[Finding]:
        again, of = repeats(self.episodes)
        what = "the same actions and rewards" if self.blind else "the same states, actions and rewards"
        if self.by_episode and len(again):
            long = self.comparable()[again]
            severity: Severity = "warning" if long.any() else "note"
            again, of = (again[long], of[long]) if long.any() else (again, of)
            hits = Hits.of(again)
            sentence = f"episodes have {what} as an earlier one: {count(int(again[0]))} as {count(int(of[0]))}"
            yield find("episode_duplicate", sentence, hits, len(self.episodes), unit="episode", severity=severity)
            if severity == "warning":
                return
        hashes, steps = self.kept(self.zeros)
        if not self.measured or len(hashes) < 100:
            return
        again, _ = repeats(hashes)
        share = len(again) / len(hashes)
        if share >= _SOME:
            hits = Hits.of(np.sort(steps[again]))
            sentence = f"{exact_percent(share)} of the transitions have {what} as an earlier one"
            sentence += f", in a sample of {count(len(hashes))}" if self.zeros else ""
            severity = "warning" if share >= _MANY else "note"
            yield find("transition_duplicate", sentence, hits, len(hashes), severity=severity)


def repeats(hashes: Array) -> tuple[Array, Array]:
    """Return the numbers of the hashes that occurred before, ascending, and for each the number of its first occurrence."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    new = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    first = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))] if len(order) else order
    again = np.flatnonzero(~new)
    ascending = np.argsort(order[again])
    return order[again][ascending], first[again][ascending]


def compare(first: Duplicates, second: Duplicates) -> Iterator[Finding]:
    """Yield what two datasets share; the numbers are of the second. Nothing if their leaves have different names."""
    if first.names != second.names or first.blind != second.blind:
        return
    if first.by_episode and second.by_episode:
        shared = np.flatnonzero(np.isin(second.episodes, first.episodes) & second.comparable())
        if len(shared):
            hits = Hits.of(shared)
            what = "episodes are also in the other dataset, with the same rows"
            yield find("episode_shared", what, hits, len(second.episodes), unit="episode")
            return
    zeros = max(first.zeros, second.zeros)
    known, (hashes, steps) = first.kept(zeros)[0], second.kept(zeros)
    shared = np.flatnonzero(np.isin(hashes, known))
    if first.measured and second.measured and len(hashes) and len(shared) >= max(5, _SHARED * len(hashes)):
        hits = Hits.of(np.sort(steps[shared]))
        what = f"{exact_percent(len(shared) / len(hashes))} of the transitions are also in the other dataset"
        yield find("transition_shared", what, hits, len(hashes))
