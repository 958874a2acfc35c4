"""The work in pieces: sections, within them chunks, within them batches or episodes.

    batch        the input of one call (per batch, sample); its random numbers follow from its first step
    episode      the input of one call (per episode); its random numbers follow from its number
    section      a fixed number of steps, or consecutive whole episodes of up to about as many steps, at least one
    chunk        consecutive batches or episodes of a section: a worker's unit of work, finished and resumed as a whole

All follow from the data and the request alone. The bytes of the result follow from sections and batches: ranges of checksums,
the parts that the manifest lists, samples for dictionaries, the order in which statistics are merged; not from the chunks.

The episodes that are cut (`Episodes`) are those of the first N steps of the input, or slices of them. Slices are pieces of L
steps of an episode, the last one shorter. For functions and in the result each is an episode:

    episode of 8 steps, --slice-len 3      s0 s1 s2 | s3 s4 s5 | s6 s7        the last step of each truncated
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..storage.episodes import CUT, EpisodeTable


@dataclass(frozen=True, eq=False)
class Episodes:
    """The episodes of a view. All arrays but ``starts`` are bool ``[episodes]``.

    ``starts``: int64 ``[episodes + 1]``, steps. ``cut``: the recording or a slice ends there, not the episode. ``midway``:
    the beginning is missing. ``added``: the episode ends there in the view, not in the dataset.
    """

    starts: np.ndarray
    cut: np.ndarray
    midway: np.ndarray
    added: np.ndarray

    def __len__(self) -> int:
        return len(self.cut)

    @property
    def steps(self) -> int:
        return int(self.starts[-1])


def view_episodes(table: EpisodeTable, num_frames: int | None, slice_len: int | None) -> Episodes:
    """Return the episodes of the first ``num_frames`` steps, the last one shortened, in slices of ``slice_len`` steps."""
    steps = table.steps if num_frames is None else min(num_frames, table.steps)
    count = int(np.searchsorted(table.starts, steps, "left"))
    starts = np.asarray(table.starts[:count], np.int64)
    ends = np.minimum(starts + table.lengths[:count], steps)
    added = ends < starts + table.lengths[:count]
    cut = (table.outcomes[:count] == CUT) | added
    midway = np.array(table.midway[:count], bool)
    if slice_len is not None:
        pieces = -(-(ends - starts) // slice_len)
        last = np.cumsum(pieces) - 1
        within = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        is_last = np.zeros(len(within), bool)
        is_last[last] = True
        starts = np.repeat(starts, pieces) + within * slice_len
        ends = np.append(starts[1:], steps) if len(starts) else ends
        cut = np.where(is_last, np.repeat(cut, pieces), True)
        added = np.where(is_last, np.repeat(added, pieces), True)
        midway = np.repeat(midway, pieces) | (within > 0)
    return Episodes(np.append(starts, steps).astype(np.int64), cut, midway, added)


#: Limits of the default batch size: bytes of the input of a function, and steps.
BATCH_BYTES, BATCH_STEPS = 8 << 20, 1 << 14
#: Small datasets are cut into this many batches of at least this many steps, so that a slow function is called several times.
BATCHES, LEAST_BATCH_STEPS = 64, 32
#: Limits of the size of a section: bytes, steps, and batches (of the largest or the requested size).
SECTION_BYTES, SECTION_STEPS, SECTION_BATCHES = 64 << 20, 1 << 16, 16
#: A small dataset is cut into about this many chunks, as many as there are processes without ``--procs``: a part costs
#: milliseconds.
CHUNKS = 8


@dataclass(frozen=True)
class Chunk:
    """Steps ``start..stop-1``; ``first..last-1`` are the episodes of the view that these steps belong to.

    ``section``: the number of the section that it is a part of.
    """

    index: int
    start: int
    stop: int
    first: int
    last: int
    section: int = field(default=0, compare=False)

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def label(self) -> str:
        """``steps 0..65,535``"""
        return step_range(self.start, self.stop)


def step_range(start: int, stop: int) -> str:
    """``steps 0..65,535``, or ``step 7``"""
    return f"steps {start:,}..{stop - 1:,}" if stop - start > 1 else f"step {start:,}"


def choose_sizes(batch_size: int | None, step_bytes: int, steps: int) -> tuple[int, int]:
    """Return the number of steps of a batch, as requested or chosen for ``steps`` steps of ``step_bytes``, and of a section."""
    largest = batch_size or max(1, min(BATCH_STEPS, BATCH_BYTES // step_bytes))
    section = min(SECTION_STEPS, SECTION_BYTES // step_bytes)
    section = largest * max(1, min(SECTION_BATCHES, section // largest))
    return batch_size or min(largest, max(LEAST_BATCH_STEPS, -(-steps // BATCHES))), section


def chunk_size(steps: int, batch: int, section: int, whole_episodes: bool) -> int:
    """Return the number of steps of a chunk of ``steps`` steps in all."""
    wanted = min(section, -(-steps // CHUNKS))
    return max(1, wanted) if whole_episodes else batch * -(-wanted // batch)


def cut(episodes: Episodes, size: int, whole_episodes: bool) -> list[Chunk]:
    """Return all sections, in order."""
    return split(Chunk(0, 0, episodes.steps, 0, len(episodes)), episodes, size, whole_episodes)


def cut_sections(sections: Sequence[Chunk], episodes: Episodes, size: int, whole_episodes: bool) -> list[Chunk]:
    """Return the chunks of all sections, of ``size`` steps each, numbered throughout."""
    pieces = ((section, piece) for section in sections for piece in split(section, episodes, size, whole_episodes))
    return [replace(piece, index=number, section=section.index) for number, (section, piece) in enumerate(pieces)]


def split(chunk: Chunk, episodes: Episodes, size: int, whole_episodes: bool) -> list[Chunk]:
    """Return the pieces of a chunk, such as its batches, in order and numbered from 0."""
    starts = episodes.starts
    if whole_episodes:
        edges = _runs(starts, chunk.first, chunk.last, size)
        return [Chunk(n, int(starts[a]), int(starts[b]), a, b) for n, (a, b) in enumerate(edges)]
    steps = np.arange(chunk.start, chunk.stop, size)
    stops = np.minimum(steps + size, chunk.stop)
    first = np.searchsorted(starts, steps, "right") - 1
    last = np.searchsorted(starts, stops, "left")
    rows = zip(steps.tolist(), stops.tolist(), first.tolist(), last.tolist())
    return [Chunk(n, *row) for n, row in enumerate(rows)]


def _runs(starts: np.ndarray, first: int, last: int, size: int) -> list[tuple[int, int]]:
    """Episodes ``first..last-1`` in runs of at most ``size`` steps; a longer episode is a run by itself."""
    runs = []
    while first < last:
        high = int(np.searchsorted(starts, starts[first] + size, "right")) - 1
        high = min(max(high, first + 1), last)
        runs.append((first, high))
        first = high
    return runs
