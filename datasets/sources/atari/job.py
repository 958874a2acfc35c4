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
from ....storage.checksums import crc32c
from ....storage.column_writer import ColumnWriter
from ...fetch import Location, RemoteObject, read_all, resolve
from ...formats.gunzip import gunzip
from ...formats.npy import NpyStream
from ...ingest.number_ranges import format_numbers
from ...ingest.protocol import ConvertOptions, Job, PartSpec, Plan, RawObject
from . import frames
from .common import CLIPPED, about, schema, spaces, time_limit
from .laps import RingArrays
from .ring import PartPlan, RingPlanner
from .shards import ARRAYS, UPSTREAM, Shard, select

#: The arrays that the plan is made from.
SMALL = ("action", "reward", "terminal", "add_count")
#: A compressed small array is at most about as large as its 4 M bytes; this leaves room for rings 60 times as long.
_SMALL_BYTES = 1 << 28


class AtariJob(Job):
    """One run, from shards at a place to a dataset."""

    decided: Mapping[str, Any] = {"upstream": UPSTREAM}

    def __init__(self, name: str | None, location: Location, shards: list[Shard], options: ConvertOptions) -> None:
        self.name, self.location, self.options = name, location, options
        self.available = shards
        chosen = select(shards, options.parts, f"{name or location.url}")
        earlier = [shard for shard in shards if shard.number < chosen[0].number and not shard.missing][-1:]
        objects = [item for shard in earlier + chosen for item in shard.objects.values()]
        stated = {item.url: item for item in resolve(location, objects)}
        described = [
            Shard(shard.number, {key: stated[item.url] for key, item in shard.objects.items()})
            for shard in earlier + chosen
        ]
        #: The shard right before the first one wanted, where there is one: it knows what that one begins with.
        self.before = described[0] if earlier else None
        self.shards = described[len(earlier) :]
        self.time_limit = time_limit(options)
        self.schema = schema(options)
        self.bulk = tuple(name for name in ("observation", "next/observation") if name in self.schema)
        self._parts: list[Any] = []
        self._found: dict[str, str] = {}

    def identity(self) -> dict[str, Any]:
        return {
            "converter": "atari-dqn-replay 1",
            "leaves": [leaf.to_json() for leaf in self.schema],
            "unknown_next": self.options.unknown_next,
            "time_limit": self.time_limit,
            # Not the checksums: one mirror states them, another does not. The plan's digest is of the contents.
            "objects": [
                [shard.number, key, item.size] for shard in self.shards for key, item in sorted(shard.objects.items())
            ],
        }

    def parts(self) -> int:
        return len(self.shards)

    # -- plan ------------------------------------------------------------------------------------------------------

    def plan(self, columns: ColumnWriter, files: Mapping[str, Path], on_progress: Callable[[int, int], None]) -> Plan:
        """Fetches the small arrays of every shard (about 1 MB each) and lays out all rows."""

        def emit(action: np.ndarray, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> None:
            columns.append(
                {
                    "action": action,
                    "next/reward": reward[:, None],
                    "next/done": (terminated | truncated)[:, None],
                    "next/terminated": terminated[:, None],
                    "next/truncated": truncated[:, None],
                }
            )

        def peek(number: int, rows: list[int]) -> list[bool]:
            (shard,) = (shard for shard in self.shards if shard.number == number)
            return frames.peek_blank(self.location, shard.observation, rows)

        planner = RingPlanner(emit, peek, unknown_next=self.options.unknown_next, time_limit=self.time_limit)
        before = self._neighbour()
        for done, ring in enumerate(self._small_arrays()):
            planner.add(ring, before if not done else None)
            on_progress(done + 1, len(self.shards))
        planner.finish()
        self._parts = planner.parts
        parts = [
            PartSpec(
                name=f"shard {part.number}",
                number=part.number,
                first_state=part.first,
                states=part.states,
                layout=_layout(part),
                object=_describe(shard.observation),
                fetch_bytes=shard.observation.size or 0,
            )
            for part, shard in zip(planner.parts, self.shards)
        ]
        small = sorted(
            (shard.number, key, self._found[shard.objects[key].url]) for shard in self.shards for key in SMALL
        )
        return Plan(
            digest=crc32c(json.dumps([small, [part.layout for part in parts]]).encode()),
            episodes=planner.episodes.table(),
            counts=dataclasses.asdict(planner.counts),
            notes=_notes(planner, self),
            parts=parts,
            spaces=spaces(),
        )

    def _neighbour(self) -> RingArrays | None:
        """The small arrays of the shard before the first one wanted; None where there is none, or it is damaged."""
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
            futures = deque(pool.submit(self._read_small, shard) for shard in self.shards[:ahead])
            for index in range(len(self.shards)):
                yield futures.popleft().result()
                if index + ahead < len(self.shards):
                    futures.append(pool.submit(self._read_small, self.shards[index + ahead]))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _read_small(self, shard: Shard) -> RingArrays:
        arrays = {}
        for key in SMALL:
            item = shard.objects[key]
            data = read_all(self.location, item, limit_bytes=_SMALL_BYTES)
            self._found[item.url] = crc32c(data)
            arrays[key] = NpyStream(gunzip([data], item.url), ARRAYS[key], item.url).array()
        count = int(arrays.pop("add_count"))
        label = f"shard {shard.number} of {self.name or self.location.url}"
        return RingArrays(shard.number, label, add_count=count, **arrays)

    # -- frames ----------------------------------------------------------------------------------------------------

    def sample_rows(self) -> np.ndarray:
        pairs = [(part, shard.observation) for part, shard in zip(self._parts, self.shards)]
        samples = frames.sample_rows(self.location, pairs)
        if not len(samples):
            raise CorruptSourceError(f"no frames could be sampled from {self.location.url}")
        return samples

    def row_sources(self) -> list[frames.FrameSource]:
        return [
            frames.FrameSource(part, shard.observation, self.location) for part, shard in zip(self._parts, self.shards)
        ]

    # -- what the manifest says ------------------------------------------------------------------------------------

    def objects(self) -> list[dict[str, Any]]:
        return [
            _describe(item, self._found.get(item.url))
            for shard in self.shards
            for key, item in sorted(shard.objects.items())
            if key != "observation"  # these are in the parts
        ]

    def raw_objects(self) -> list[RawObject]:
        return [
            RawObject(f"dqn/{self.name}/replay_logs/{item.name}", item, self.location)
            for shard in self.shards
            for item in shard.objects.values()
        ]

    def about(self) -> dict[str, Any]:
        return about(UPSTREAM, self.name, self.options, [shard.number for shard in self.shards])


def _layout(part: PartPlan) -> str:
    """Stands for which frames of an object become which state rows of a part."""
    rows = [part.capacity, part.valid, part.seam, part.states, part.segments.tolist()]
    return crc32c(json.dumps(rows).encode())


def _describe(item: RemoteObject, found: str | None = None) -> dict[str, Any]:
    """An object as the manifest records it; the checksum is the one found, or else the one stated."""
    return {"name": item.name, "size": item.size, "crc32c": found or item.checksums.get("crc32c")}


def _notes(planner: RingPlanner, job: AtariJob) -> list[str]:
    """What a user should know about the values, in sentences."""
    counts = planner.counts
    notes = [
        f"From the DQN Replay shards: {counts.pad_rows} rows of padding before episodes were left out; an episode that goes "
        "on in the next shard is whole.",
        CLIPPED,
    ]
    if counts.time_limit_episodes:
        notes.append(
            f"{counts.time_limit_episodes} episodes of exactly {job.time_limit} rows ended by the clock: the data say "
            "terminal, they are truncated here."
        )
    if job.options.unknown_next == "zero" and (counts.cut_episodes or counts.time_limit_episodes):
        notes.append("Rows whose successor is not in the data are kept, truncated, with a successor of zeros.")
    elif counts.given_up_steps:
        notes.append(
            f"Given up: {counts.given_up_steps} row{'s' * (counts.given_up_steps != 1)} whose successor is not in the data "
            "(the data end there, a lap is missing, or the clock ran out). Their frame is the final observation of the "
            "step before."
        )
    for gap in counts.gaps:
        lost = gap["laps_missing"]
        what = "an unknown number of laps is" if lost is None else f"{lost} lap{'s are' if lost != 1 else ' is'}"
        notes.append(f"Before shard {gap['before_shard']} {what} missing.")
    if counts.unclipped_rewards:
        notes.append(f"{counts.unclipped_rewards} rewards lie outside [-1, 1], unlike in the published data.")
    left_out = sorted({shard.number for shard in job.available} - {shard.number for shard in job.shards})
    if left_out:
        notes.append(f"Shards not taken: {format_numbers(left_out)}.")
    return notes
