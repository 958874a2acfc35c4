"""One run of the DQN Replay dataset, from its shards to a dataset: what is planned, and what workers then fill.

The plan is made from the small arrays of all shards (`ring`). The frames of a shard then go to the dataset in blocks:

    network -> gunzip -> blocks of rows -> (padding left out, blank states put in) -> sink

The network and the unpacking run in their own threads, so that a part is as fast as the slowest of the three; memory
is a few blocks, whatever the size of the shard.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import ChecksumError, CorruptSourceError
from ....storage.amounts import plural
from ....storage.checksums import crc32c
from ....storage.codecs import codec_of
from ....storage.episodes import CUT, TERMINATED, TRUNCATED, EpisodeTable
from ....storage.threads import map_in_threads
from ...fetch import Location, RemoteObject, read_ahead, read_all, resolve
from ...formats.npy import Expected, NpyStream
from ...formats.packed import gunzip
from ...ingest.block import END_CUT, END_MIDWAY, END_TERMINATED, END_TRUNCATED, Block, final_states
from ...ingest.counted_stream import CountedStream
from ...ingest.reader import Reader
from ...ingest.records import ConvertOptions, RawObject
from ...ingest.request import select_numbered
from ...ingest.unit import BITS, LEAD, Facts, Part, Unit
from .raw_files import DQN_REPLAY, FRAME, Shard
from .ring import PartPlan, RingArrays, RingPlanner
from .run_job import RunJob, describe, spaces

ROW_BYTES = FRAME[0] * FRAME[1]
#: Small blocks stay in the cache between the stages, and their memory is reused instead of mapped again.
BLOCK_ROWS = 512
_EXPECTED = Expected("uint8", (-1, *FRAME))
#: Rows read from the heads of shards to train the dictionary on, and how many of them it is trained on.
SAMPLE_READ, SAMPLE_ROWS, SAMPLE_SHARDS = 65_536, 3_000, 16


@dataclass(frozen=True)
class FrameUnit(Unit):
    """The frames of one shard; progress counts the rows of its file.

    ``final``: which of the part's states are the last of their episode, ``goes_on``: whether its first one is not the first of
    its episode; known where states fill two step leaves. ``apart``: the seam row, which is written last, is a range of its own.
    """

    part: PartPlan
    obj: RemoteObject
    location: Location
    final: np.ndarray | None
    goes_on: bool
    apart: bool

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        part, size = self.part, BLOCK_ROWS
        if not part.states:
            return  # a final dump without new rows
        segments = part.segments[np.argsort(part.segments[:, 0], kind="stable")]
        source = CountedStream(self.location, self.obj)
        begin = int(segments[0, 2])
        with _frame_blocks(source, self.obj, size) as (rows, blocks):
            if rows != part.capacity:
                message = f"{self.obj.url} has {rows} frames; the other arrays have {part.capacity} rows"
                raise CorruptSourceError(message, hint="the shard's files are of different versions; check the mirror")
            for first, count, block in blocks:
                _check_padding(part, segments, first, count, block)
                frames = block.reshape(-1, *FRAME)
                for position, taken in _runs_of(segments, first, count):
                    is_seam = position < begin
                    yield self._block(position, frames[taken], is_seam, first + count, source)
            yield Block(
                {},
                place=(self.index, 1),
                done=part.capacity,
                fetched=source.fetched,
                retries=source.retries,
                record={"crc32c": source.crc32c},
            )

    def _block(self, position: int, frames: np.ndarray, is_seam: bool, done: int, source: CountedStream) -> Block:
        final, goes_on = None, False
        if self.final is not None:
            final = self.final[position : position + len(frames)]
            goes_on = not self.final[position - 1] if position else self.goes_on
        return Block(
            {"observation": frames},
            final=final,
            place=(self.index, 0 if is_seam else 1),
            goes_on=goes_on,
            range=int(self.apart and not is_seam),
            done=done,
            fetched=source.fetched,
            retries=source.retries,
        )


@dataclass(frozen=True)
class StepUnit(Unit):
    """All steps of a run, from the small arrays of its shards (about 1 MB each), and where the frames of each shard go."""

    job: AtariReader

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        emitted: list[Sequence[np.ndarray]] = []
        job, told = self.job, 0

        def peek(number: int, rows: list[int]) -> list[bool]:
            (shard,) = (shard for shard in job.chosen if shard.number == number)
            return _peek_blank(job.location, shard.observation, rows)

        planner = RingPlanner(
            lambda *columns: emitted.append(columns),
            peek,
            unknown_next=job.options.unknown_next,
            time_limit=job.time_limit,
        )
        before, found = job.neighbour(), dict[str, str]()
        # A few shards ahead of the planner, so that latency is paid once.
        read = map_in_threads(job.read_small, job.chosen, 4, "rbdata-plan", ahead=1)
        for done, (ring, sums) in enumerate(read, 1):
            planner.add(ring, before if done == 1 else None)
            found.update(sums)
            yield from _step_blocks(emitted, planner.episodes.rows[told:], done)
            told = len(planner.episodes)
        planner.finish()
        yield from _step_blocks(emitted, planner.episodes.rows[told:], len(job.chosen))
        parts = [{**vars(part), "segments": part.segments.tolist()} for part in planner.parts]
        yield Block({}, record={"parts": parts, "counts": planner.counts, "found": found}, done=len(job.chosen))


def _step_blocks(
    emitted: list[Sequence[np.ndarray]], ended: Sequence[tuple[int, float, int, bool]], done: int
) -> Iterator[Block]:
    """The steps that the planner has emitted; ``ended`` are the episodes that end in them."""
    if not emitted:
        return
    action, reward, terminated, truncated = (np.concatenate(columns) for columns in zip(*emitted))
    emitted.clear()
    bits = terminated * END_TERMINATED | truncated * END_TRUNCATED
    kinds = {TERMINATED: END_TERMINATED, TRUNCATED: END_TRUNCATED, CUT: END_CUT}
    bits[np.flatnonzero(bits)] = [kinds[outcome] | midway * END_MIDWAY for _, _, outcome, midway in ended]
    yield Block({"action": action, "next/reward": reward}, bits.astype(np.uint8), done=done)


def _runs_of(segments: np.ndarray, first: int, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Where the rows of a block go: pairs of (position, rows of the block from there on).

    The block holds file rows ``first..first+count-1`` and after them one row of zeros. ``segments`` is a part's, in file
    order. Consecutive positions come as one pair.
    """
    low = int(np.searchsorted(segments[:, 0] + segments[:, 1], first, "right"))
    high = int(np.searchsorted(segments[:, 0], first + count, "left"))
    run: list[np.ndarray] = []
    begin = end = -1
    for row, rows, position, zero in segments[low:high].tolist():
        skip = max(0, first - row)
        stop = min(rows, first + count - row)
        starts = row - first + np.arange(skip, stop)
        if zero and stop == rows:
            starts = np.append(starts, count)
        if position + skip != end:
            if run:
                yield begin, np.concatenate(run)
            run, begin = [], position + skip
        run.append(starts)
        end = position + skip + len(starts)
    if run:
        yield begin, np.concatenate(run)


def _check_padding(part: PartPlan, segments: np.ndarray, first: int, count: int, block: np.ndarray) -> None:
    """Padding rows are known by their place; that they are blank confirms that the place is right."""
    rows = np.arange(first, first + count)
    index = np.searchsorted(segments[:, 0], rows, "right") - 1
    inside = (index >= 0) & (rows < segments[index, 0] + segments[index, 1])
    expected = (rows < part.valid) | ((rows == part.capacity - 1) & part.seam)
    padding = np.flatnonzero(expected & ~inside)
    for row in padding.tolist():
        if first + row == part.dropped or not block[row * ROW_BYTES : (row + 1) * ROW_BYTES].any():
            continue
        message = f"{part.name}: the frame of row {first + row} should be blank padding, but is not"
        raise CorruptSourceError(message, hint="the file was not written by the DQN Replay logger, or is damaged")


@contextmanager
def _frame_blocks(
    source: Iterable[bytes], obj: RemoteObject, size: int
) -> Iterator[tuple[int, Iterable[tuple[int, int, np.ndarray]]]]:
    """The rows of an observation object, and its blocks of ``size`` rows: ``(first, count, bytes)``, with one row of zeros
    after the rows of each."""
    npy = NpyStream(gunzip(read_ahead(source, 16), obj.url), _EXPECTED, obj.url)
    with closing(read_ahead(npy.blocks(size, spare=1), 2)) as blocks:
        yield npy.rows, blocks


def _peek_blank(location: Location, obj: RemoteObject, rows: list[int]) -> list[bool]:
    """Which of these rows are all zero. Reads no further than the last of them."""
    blank = dict.fromkeys(rows, False)
    with _frame_blocks(CountedStream(location, obj), obj, 256) as (_, blocks):
        for first, count, block in blocks:
            frame = block.reshape(-1, ROW_BYTES)
            blank |= {row: not frame[row - first].any() for row in rows if first <= row < first + count}
            if first + count > max(rows):
                break
    return [blank[row] for row in rows]


def _sample_frames(location: Location, parts: list[tuple[PartPlan, RemoteObject]]) -> np.ndarray:
    """Frames to train the dictionary on, uint8 ``[n, row_bytes]``: from the heads of shards spread over the run.

    Early and late training look different, so up to ``SAMPLE_SHARDS`` shards give rows; only their first few thousand
    are fetched. The choice depends on nothing but the plan. There may be none: the first step of a final dump, which can be
    its only one, is the last row of the file.
    """
    parts = [entry for entry in parts if entry[0].states]
    chosen = [parts[i] for i in np.unique(np.linspace(0, len(parts) - 1, SAMPLE_SHARDS).astype(int))]
    head = max(1, SAMPLE_READ // len(chosen))
    want = max(1, SAMPLE_ROWS // len(chosen))
    samples = []
    for part, obj in chosen:
        segments = part.segments[part.segments[:, 0] < min(head, part.valid)]
        runs = [np.arange(row, min(row + count, head)) for row, count, _, _ in segments.tolist()]
        rows = np.concatenate([np.empty(0, np.int64), *runs])
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(want, len(rows))).astype(int))]
        with _frame_blocks(CountedStream(location, obj), obj, BLOCK_ROWS) as (_, blocks):
            for first, count, block in blocks:
                inside = rows[(rows >= first) & (rows < first + count)] - first
                samples.append(block[: count * ROW_BYTES].reshape(count, ROW_BYTES)[inside])
                if first + count > (int(rows[-1]) if len(rows) else 0):
                    break
    return np.concatenate(samples)


#: The arrays that the plan is made from.
SMALL = {
    "action": Expected("int32", (-1,)),
    "reward": Expected("float32", (-1,)),
    "terminal": Expected("uint8", (-1,)),
    "add_count": Expected("int64", ()),
}
#: A compressed small array is at most about as large as its 4 M bytes; this leaves room for rings 60 times as long.
_SMALL_BYTES = 1 << 28
#: gzip shrinks frames at most this many times, which bounds the rows of a shard by the size of its frames.
_LARGEST_RATIO, _FEW_ROWS = 1040, 1 << 16
#: The limit if that size is not stated. Published shards have 1 M rows.
MAX_ROWS = 1 << 22


class AtariReader(RunJob[Shard], Reader):
    """One run, from shards at a place to a dataset."""

    upstream, piece = DQN_REPLAY, "shard"
    #: Set by `units`.
    _parts: list[PartPlan]
    _lead: Mapping[str, Any]

    def __init__(self, name: str | None, location: Location, shards: list[Shard], options: ConvertOptions) -> None:
        super().__init__(name, location, shards, options)
        chosen = select_numbered({one.number: one for one in shards}, options.parts, self.title, self.piece)
        for shard in chosen:
            if shard.missing:
                message = f"shard {shard.number} of {self.title} lacks {', '.join(shard.missing)}"
                raise CorruptSourceError(message, hint="complete the mirror, or leave the shard out with --shards")
        earlier = [shard for shard in shards if shard.number < chosen[0].number and not shard.missing][-1:]
        objects = [item for shard in earlier + chosen for item in shard.objects.values()]
        stated = {item.url: item for item in resolve(location, objects)}
        described = [
            Shard(shard.number, {key: stated[item.url] for key, item in shard.objects.items()})
            for shard in earlier + chosen
        ]
        #: The shard right before the first selected one, if there is one: it determines how that begins.
        self.before = described[0] if earlier else None
        self.chosen = described[len(earlier) :]

    def identity(self) -> dict[str, Any]:
        # Without what a mirror states about the files, which may be wrong: the plan's digest covers the contents of the small
        # files, and finished parts are compared with their files.
        objects = [[shard.number, key] for shard in self.chosen for key in sorted(shard.objects)]
        return {**super().identity(), "objects": objects}

    # -- plan ------------------------------------------------------------------------------------------------------

    def lead(self) -> StepUnit:
        return StepUnit(LEAD, self.title, len(self.chosen), "steps", self)

    def units(self, lead: Part | None) -> list[FrameUnit]:
        assert lead is not None
        self._lead = told = lead.about
        self._parts = [
            PartPlan(**{**part, "segments": np.array(part["segments"], np.int64).reshape(-1, 4)})
            for part in told["parts"]
        ]
        self.notes = self._notes(told["counts"])
        final = self._final_states(lead) if self.options.layout == "ted" and lead.sections() else None
        apart = all(codec_of(self.schema[name]).fixed_rows for name in self.bulk)
        units = []
        for index, (part, shard) in enumerate(zip(self._parts, self.chosen)):
            spec = self.describe_part(part.number, part.first, part.states, _layout(part), shard.observation)
            here = None if final is None else final[part.first : part.first + part.states]
            goes_on = final is not None and part.first > 0 and not final[part.first - 1]
            where = (part, shard.observation, self.location, here, goes_on, apart)
            units.append(FrameUnit(index, spec.name, part.capacity, spec.layout, *where, spec=spec))
        small = sorted(
            (shard.number, key, told["found"][shard.objects[key].url]) for shard in self.chosen for key in SMALL
        )
        self.digest = crc32c(json.dumps([small, [unit.identity for unit in units]]).encode())
        return units

    def _final_states(self, lead: Part) -> np.ndarray:
        """Which states are the last of their episode, bool ``[states]``."""
        return np.concatenate([final_states(lead.rows(section, BITS)) for section in lead.sections()])

    def neighbour(self) -> RingArrays | None:
        """The small arrays of the shard before the first selected one; None if it is missing or damaged."""
        try:
            return self.read_small(self.before)[0] if self.before else None
        except (ChecksumError, CorruptSourceError):
            return None  # perhaps the reason why it is not selected

    def read_small(self, shard: Shard) -> tuple[RingArrays, dict[str, str]]:
        """The small arrays of a shard, and the checksums of their objects by url."""
        size = shard.observation.size
        most_rows = max(_FEW_ROWS, MAX_ROWS if size is None else size * _LARGEST_RATIO // ROW_BYTES)
        arrays, found = {}, {}
        for key, expected in SMALL.items():
            item = shard.objects[key]
            data = read_all(self.location, item, limit_bytes=_SMALL_BYTES)
            found[item.url] = crc32c(data)
            arrays[key] = NpyStream(gunzip([data], item.url), expected, item.url, most_rows).array()
        count = int(arrays.pop("add_count"))
        return RingArrays(shard.number, f"shard {shard.number} of {self.title}", add_count=count, **arrays), found

    # -- frames ----------------------------------------------------------------------------------------------------

    def sample_rows(self) -> np.ndarray:
        return _sample_frames(
            self.location, [(part, shard.observation) for part, shard in zip(self._parts, self.chosen)]
        )

    # -- what the manifest says ------------------------------------------------------------------------------------

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        specs = [
            self.describe_part(plan.number, plan.first, plan.states, _layout(plan), shard.observation).with_checksum(
                part.about.get("crc32c")
            )
            for plan, shard, part in zip(self._parts, self.chosen, parts)
        ]
        return Facts(self._lead["counts"], self.notes, specs, spaces())

    def objects(self) -> list[dict[str, Any]]:
        return [
            describe(item, self._lead["found"].get(item.url))
            for shard in self.chosen
            for key, item in sorted(shard.objects.items())
            if key != "observation"  # these are in the parts
        ]

    def raw_objects(self) -> list[RawObject]:
        return [
            RawObject(f"dqn/{self.name}/replay_logs/{item.name}", item, self.location)
            for shard in self.chosen
            for item in shard.objects.values()
        ]

    def _notes(self, counts: Mapping[str, Any]) -> list[str]:
        first = (
            f"Converted from DQN Replay shards: {counts['pad_rows']} rows of padding before episodes were left out; episodes "
            "that continue in the next shard are whole."
        )
        dropped = (
            f"Dropped: {plural(counts['given_up_steps'], 'step')} with no next state (end of the data, missing rows, or the "
            "time limit); the frame of such a step is the final observation of the step before it."
        )
        gaps = []
        for gap in counts["gaps"]:
            lost = gap["laps_missing"]
            what = "an unknown number of laps" if lost is None else plural(lost, "lap")
            gaps.append(f"Missing before shard {gap['before_shard']}: {what} of the ring buffer.")
        never = sum(bool(part.valid) and not part.seam for part in self._parts)
        stale = counts["stale_rows"]
        unread = [f"{plural(stale, 'stale row')} (not overwritten since an earlier shard)"] if stale else []
        unread += [f"{plural(never, 'row')} of a slot that the ring buffer had not filled"] if never else []
        if unread:
            gaps.append(f"Not read: {' and '.join(unread)}.")
        return list(self.sentences(counts, first, dropped, gaps))


def _layout(part: PartPlan) -> str:
    """Identifies which frames of an object become which state rows of a part."""
    rows = [part.capacity, part.valid, part.seam, part.states, part.segments.tolist()]
    return crc32c(json.dumps(rows).encode())
