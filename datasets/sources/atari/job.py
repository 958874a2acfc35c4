"""One run of the DQN Replay dataset, from its shards to a dataset: what is planned, and what workers then fill."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import ChecksumError, CorruptSourceError
from ....storage.amounts import plural
from ....storage.checksums import crc32c
from ....storage.writer import ColumnWriter
from ...fetch import Location, read_all, resolve
from ...formats.gunzip import gunzip
from ...formats.npy import Expected, NpyStream
from ...ingest.protocol import ConvertOptions, Plan, RawObject
from ...ingest.trajectories import results
from . import frames
from .ring import Counts, PartPlan, RingArrays, RingPlanner
from .run_job import RunJob, describe, spaces
from .shards import UPSTREAM, Shard

#: The arrays that the plan is made from.
SMALL = {
    "action": Expected("int32", (-1,)),
    "reward": Expected("float32", (-1,)),
    "terminal": Expected("uint8", (-1,)),
    "add_count": Expected("int64", ()),
}
#: A compressed small array is at most about as large as its 4 M bytes; this leaves room for rings 60 times as long.
_SMALL_BYTES = 1 << 28
#: gzip shrinks frames at most so many times, which bounds the rows of a shard by the size of its frames.
_LARGEST_RATIO, _FEW_ROWS = 1040, 1 << 16
#: Where that size is not stated. Published shards have 1 M rows.
MAX_ROWS = 1 << 22


class AtariJob(RunJob[Shard]):
    """One run, from shards at a place to a dataset."""

    upstream, piece = UPSTREAM, "shard"
    #: Set by `plan`.
    _parts: list[PartPlan]

    def __init__(self, name: str | None, location: Location, shards: list[Shard], options: ConvertOptions) -> None:
        super().__init__(name, location, shards, options)
        chosen = self.select()
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
        #: The shard right before the first one wanted, where there is one: it knows what that one begins with.
        self.before = described[0] if earlier else None
        self.chosen = described[len(earlier) :]
        self._found: dict[str, str] = {}

    def identity(self) -> dict[str, Any]:
        # Not what a mirror states of the files, which may be wrong once: the plan's digest is of the small ones' contents, and
        # finished parts are compared with their files.
        objects = [[shard.number, key] for shard in self.chosen for key in sorted(shard.objects)]
        return {**super().identity(), "objects": objects}

    # -- plan ------------------------------------------------------------------------------------------------------

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        """Fetches the small arrays of every shard (about 1 MB each) and lays out all rows."""

        def emit(action: np.ndarray, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> None:
            columns.append({"action": action, **results(reward, terminated, truncated)})

        def peek(number: int, rows: list[int]) -> list[bool]:
            (shard,) = (shard for shard in self.chosen if shard.number == number)
            return frames.peek_blank(self.location, shard.observation, rows)

        planner = RingPlanner(emit, peek, unknown_next=self.options.unknown_next, time_limit=self.time_limit)
        before = self._neighbour()
        for done, ring in enumerate(self._small_arrays()):
            planner.add(ring, before if not done else None)
            on_progress(done + 1, len(self.chosen))
        planner.finish()
        self._parts = planner.parts
        parts = [
            self.describe_part(part.number, part.first, part.states, _layout(part), shard.observation)
            for part, shard in zip(planner.parts, self.chosen)
        ]
        small = sorted(
            (shard.number, key, self._found[shard.objects[key].url]) for shard in self.chosen for key in SMALL
        )
        return Plan(
            digest=crc32c(json.dumps([small, [part.layout for part in parts]]).encode()),
            episodes=planner.episodes.table(),
            counts=dataclasses.asdict(planner.counts),
            notes=self._notes(planner.counts),
            parts=parts,
            spaces=spaces(),
        )

    def _neighbour(self) -> RingArrays | None:
        """The small arrays of the shard before the first one wanted; None if it is missing or damaged."""
        try:
            return self._read_small(self.before) if self.before else None
        except (ChecksumError, CorruptSourceError):
            return None  # perhaps the reason why it is not wanted

    def _small_arrays(self) -> Iterator[RingArrays]:
        """In order, a few shards ahead of the planner, so that latency is paid once."""
        from concurrent.futures import ThreadPoolExecutor

        ahead = 4
        pool = ThreadPoolExecutor(ahead, "rbdata-plan")
        try:
            futures = deque(pool.submit(self._read_small, shard) for shard in self.chosen[:ahead])
            for index in range(len(self.chosen)):
                yield futures.popleft().result()
                if index + ahead < len(self.chosen):
                    futures.append(pool.submit(self._read_small, self.chosen[index + ahead]))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _read_small(self, shard: Shard) -> RingArrays:
        size = shard.observation.size
        most_rows = max(_FEW_ROWS, MAX_ROWS if size is None else size * _LARGEST_RATIO // frames.ROW_BYTES)
        arrays = {}
        for key, expected in SMALL.items():
            item = shard.objects[key]
            data = read_all(self.location, item, limit_bytes=_SMALL_BYTES)
            self._found[item.url] = crc32c(data)
            rows = NpyStream(gunzip([data], item.url), expected, item.url, most_rows)
            arrays[key] = rows.array()
        count = int(arrays.pop("add_count"))
        label = f"shard {shard.number} of {self.title}"
        return RingArrays(shard.number, label, add_count=count, **arrays)

    # -- frames ----------------------------------------------------------------------------------------------------

    def sample_rows(self) -> np.ndarray:
        pairs = [(part, shard.observation) for part, shard in zip(self._parts, self.chosen)]
        return frames.sample_rows(self.location, pairs)

    def row_sources(self) -> list[frames.FrameSource]:
        return [
            frames.FrameSource(part, shard.observation, self.location) for part, shard in zip(self._parts, self.chosen)
        ]

    # -- what the manifest says ------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        return [
            describe(item, self._found.get(item.url))
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

    def _notes(self, counts: Counts) -> list[str]:
        first = (
            f"Converted from DQN Replay shards: {counts.pad_rows} rows of padding before episodes were left out; episodes "
            "that continue in the next shard are whole."
        )
        dropped = (
            f"Dropped: {plural(counts.given_up_steps, 'step')} with no next state (end of the data, missing rows, or the time "
            "limit); the frame of such a step is the final observation of the step before it."
        )
        gaps = []
        for gap in counts.gaps:
            lost = gap["laps_missing"]
            what = "an unknown number of laps" if lost is None else plural(lost, "lap")
            gaps.append(f"Missing before shard {gap['before_shard']}: {what} of the ring buffer.")
        never = sum(bool(part.valid) and not part.seam for part in self._parts)
        unread = [
            f"{plural(counts.stale_rows, 'stale row')} (not overwritten since an earlier shard)"
            * bool(counts.stale_rows),
            f"{plural(never, 'row')} of a slot that the ring buffer had not filled" * bool(never),
        ]
        if any(unread):
            gaps.append(f"Not read: {' and '.join(filter(None, unread))}.")
        return list(self.sentences(dataclasses.asdict(counts), first, dropped, gaps))


def _layout(part: PartPlan) -> str:
    """Stands for which frames of an object become which state rows of a part."""
    rows = [part.capacity, part.valid, part.seam, part.states, part.segments.tolist()]
    return crc32c(json.dumps(rows).encode())
