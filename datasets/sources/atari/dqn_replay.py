"""One run of the DQN Replay dataset, from its shards: what is planned (`ring`), and the frames that go where the plan says.

    network -> gunzip -> blocks of rows -> (padding left out, blank states put in) -> part

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
from ....storage.episodes import EpisodeTable
from ....storage.threads import map_in_threads
from ...fetch import Location, RemoteObject, read_ahead, read_all, resolve
from ...formats.npy import Expected, NpyStream
from ...formats.packed import gunzip
from ...ingest.block import Block, LazyRows, final_states
from ...ingest.counted_stream import CountedStream
from ...ingest.records import ConvertOptions, PartSpec, RawObject
from ...ingest.request import select_numbered
from ...ingest.unit import BITS, LEAD, Facts, Part, Unit
from .raw_files import DQN_REPLAY, FRAME, Shard
from .reader import ROW_BYTES, SPACES, RunReader, describe
from .ring import PartPlan, RingArrays, RingPlanner, Steps

#: Small blocks stay in the cache between the stages, and their memory is reused instead of mapped again.
BLOCK_ROWS = 512
_FRAMES = Expected("uint8", (-1, *FRAME))
#: Rows read from the heads of shards to train the dictionary on, and how many of them it is trained on.
SAMPLE_READ, SAMPLE_ROWS, SAMPLE_SHARDS = 65_536, 3_000, 16
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


@contextmanager
def _frame_blocks(
    source: Iterable[bytes], obj: RemoteObject
) -> Iterator[tuple[int, Iterable[tuple[int, int, np.ndarray]]]]:
    """The rows of an observation object, and its blocks: ``(first, count, frames)``, with a row of zeros after the rows."""
    npy = NpyStream(gunzip(read_ahead(source, 16), obj.url), _FRAMES, obj.url)
    numbered = enumerate(npy.blocks(BLOCK_ROWS, spare=1))
    blocks = ((number * BLOCK_ROWS, len(frames) - 1, frames) for number, frames in numbered)
    with closing(read_ahead(blocks, 2)) as ahead:
        yield npy.rows, ahead


def _frames_at(location: Location, obj: RemoteObject, rows: np.ndarray) -> np.ndarray:
    """The frames of some rows (ascending) of an observation object. Reads no further than the last of them."""
    found = [np.zeros((0, *FRAME), np.uint8)]
    if len(rows):
        with _frame_blocks(CountedStream(location, obj), obj) as (_, blocks):
            for first, count, frames in blocks:
                found.append(frames[rows[(rows >= first) & (rows < first + count)] - first])
                if first + count > rows[-1]:
                    break
    return np.concatenate(found)


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

    def fits(self, part: Part) -> bool:
        """As far as its place states what the object is."""
        about = part.about  # empty where it has no rows
        return part.identity == self.identity and (not about or self.obj.may_hold(about["size"], about["crc32c"]))

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        part = self.part
        if not part.states:
            return  # a final dump without new rows
        rows, blank = part.sources()
        # States from the last row of the file, which is the first in time.
        seam = int(np.count_nonzero(rows == part.capacity - 1)) if part.seam else 0
        padding = part.padding(rows)
        source = CountedStream(self.location, self.obj)
        with _frame_blocks(source, self.obj) as (found, blocks):
            if found != part.capacity:
                message = f"{self.obj.url} has {found} frames; the other arrays have {part.capacity} rows"
                raise CorruptSourceError(message, hint="the shard's files are of different versions; check the mirror")
            for first, count, frames in blocks:
                _check_padding(part, np.flatnonzero(padding[first : first + count]), first, frames)
                low, high = (seam + np.searchsorted(rows[seam:], [first, first + count])).tolist()
                for begin, end in [(low, high), (0, seam)] if first + count == part.capacity else [(low, high)]:
                    if begin < end:
                        taken = _runs(frames, np.where(blank[begin:end], count, rows[begin:end] - first))
                        states = LazyRows("uint8", FRAME, taken)
                        yield self._block({"observation": states}, begin, end, begin < seam, first + count, source)
        about = {"size": source.fetched, "crc32c": source.crc32c}
        yield self._block({}, 0, 0, False, part.capacity, source, about)

    def _block(
        self, columns: Any, begin: int, end: int, is_seam: bool, done: int, source: CountedStream, record: Any = None
    ) -> Block:
        told: dict[str, Any] = {"fetched": source.fetched, "retries": source.retries, "record": record}
        if self.final is not None and columns:
            told["final"] = self.final[begin:end]
            told["goes_on"] = not self.final[begin - 1] if begin else self.goes_on
        place, apart = (self.index, int(not is_seam)), int(self.apart and not is_seam)
        return Block(columns, place=place, range=apart, done=done, **told)


def _runs(frames: np.ndarray, rows: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of ``frames`` as slices: picked out one by one, all frames of a run would be copied once more."""
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        yield frames[run[0] : run[-1] + 1]


def _check_padding(part: PartPlan, rows: np.ndarray, first: int, frames: np.ndarray) -> None:
    """Padding rows are known by their place; that they are blank confirms that the place is right."""
    loud = rows[frames[rows].any((1, 2))]
    if len(loud):
        message = f"{part.name}: the frame of row {first + loud[0]} should be blank padding, but is not"
        raise CorruptSourceError(message, hint="the file was not written by the DQN Replay logger, or is damaged")


@dataclass(frozen=True)
class StepUnit(Unit):
    """All steps of a run, from the small arrays of its shards (about 1 MB each), and where the frames of each shard go."""

    reader: DqnReplayReader

    def blocks(self, resume: Any, threads: int) -> Iterator[Block]:
        reader, found = self.reader, dict[str, str]()
        planner = RingPlanner(reader.blank_rows, unknown_next=reader.options.unknown_next, time_limit=reader.time_limit)
        before = reader.read_before()
        # A few shards ahead of the planner, so that latency is paid once.
        read = map_in_threads(reader.read_small, reader.chosen, 4, "rbdata-plan", ahead=1)
        for done, (ring, sums) in enumerate(read, 1):
            found.update(sums)
            yield from _step_blocks(planner.add(ring, before if done == 1 else None), done)
        yield from _step_blocks(planner.finish(), self.rows)
        record = {"parts": [part.to_json() for part in planner.parts], "counts": planner.counts, "found": found}
        yield Block({}, record=record, done=self.rows)


def _step_blocks(known: Sequence[Steps], done: int) -> Iterator[Block]:
    if known:
        action, reward, bits = map(np.concatenate, zip(*known))
        yield Block({"action": action, "next/reward": reward}, bits, done=done)


class DqnReplayReader(RunReader[Shard]):
    """One run, from shards at a place."""

    upstream, piece = DQN_REPLAY, "shard"
    #: Set by `units`.
    _plans: list[PartPlan]
    _specs: list[PartSpec]
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
        self._plans, self._specs = [PartPlan.from_json(part) for part in told["parts"]], []
        self.notes = self._notes(told["counts"])
        final = None
        if self.options.layout == "ted" and lead.sections:
            final = np.concatenate([final_states(lead.rows(section, BITS)) for section in lead.sections])
        apart = all(codec_of(self.schema[name]).fixed_rows for name in self.bulk)
        units = []
        for index, (plan, shard) in enumerate(zip(self._plans, self.chosen)):
            layout = [plan.capacity, plan.valid, plan.seam, plan.states, plan.segments.tolist()]
            item, identity = shard.observation, crc32c(json.dumps(layout).encode())
            about = (describe(item), plan.number, plan.first, item.size or 0)
            spec = PartSpec(f"shard {plan.number}", plan.states, identity, *about)
            self._specs.append(spec)
            here = None if final is None else final[plan.first : plan.first + plan.states]
            goes_on = final is not None and plan.first > 0 and not final[plan.first - 1]
            where = (plan, item, self.location, here, goes_on, apart)
            units.append(FrameUnit(index, spec.name, plan.capacity, identity, *where, spec=spec))
        small = sorted(
            (shard.number, key, told["found"][shard.objects[key].url]) for shard in self.chosen for key in SMALL
        )
        self.digest = crc32c(json.dumps([small, [unit.identity for unit in units]]).encode())
        return units

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

    def read_before(self) -> RingArrays | None:
        """The small arrays of the shard before the first selected one; None if it is missing or damaged."""
        try:
            return self.read_small(self.before)[0] if self.before else None
        except (ChecksumError, CorruptSourceError):
            return None  # perhaps the reason why it is not selected

    def blank_rows(self, number: int, rows: list[int]) -> list[bool]:
        """Which of these frames of a shard are all zero."""
        (shard,) = (shard for shard in self.chosen if shard.number == number)
        order = np.argsort(rows)  # the last row of a ring comes first in time
        blank = np.zeros(len(rows), bool)
        blank[order] = ~_frames_at(self.location, shard.observation, np.array(rows)[order]).any((1, 2))
        return blank.tolist()

    def sample_rows(self) -> np.ndarray:
        """Frames from the heads of shards spread over the run: early and late training look different.

        Only their first few thousand are fetched. The choice depends on nothing but the plan. There may be none: the first step
        of a final dump, which can be its only one, is the last row of the file.
        """
        every = [pair for pair in zip(self._plans, self.chosen) if pair[0].states]
        chosen = [every[i] for i in np.unique(np.linspace(0, len(every) - 1, SAMPLE_SHARDS).astype(int))]
        head, want = max(1, SAMPLE_READ // len(chosen)), max(1, SAMPLE_ROWS // len(chosen))
        samples = []
        for plan, shard in chosen:
            rows, blank = plan.sources()
            rows = rows[~blank & (rows < min(head, plan.valid))]
            picked = np.unique(np.linspace(0, len(rows) - 1, min(want, len(rows))).astype(int))
            samples.append(_frames_at(self.location, shard.observation, rows[picked]))
        return np.concatenate(samples).reshape(-1, ROW_BYTES)

    # -- what the manifest says ------------------------------------------------------------------------------------

    def facts(self, parts: Sequence[Part], episodes: EpisodeTable) -> Facts:
        specs = [spec.with_checksum(part.about.get("crc32c")) for spec, part in zip(self._specs, parts)]
        return Facts(self._lead["counts"], self.notes, specs, SPACES)

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
        never = sum(bool(plan.valid) and not plan.seam for plan in self._plans)
        stale = counts["stale_rows"]
        unread = [f"{plural(stale, 'stale row')} (not overwritten since an earlier shard)"] if stale else []
        unread += [f"{plural(never, 'row')} of a slot that the ring buffer had not filled"] if never else []
        if unread:
            gaps.append(f"Not read: {' and '.join(unread)}.")
        return list(self.sentences(counts, first, dropped, gaps))
